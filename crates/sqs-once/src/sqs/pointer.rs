//! JSON pointers: the values that they find in a body, and the parts of keys that these make.

use std::{borrow::Cow, fmt};

use serde_json::Value;

use crate::protocol::KeyPart;

/// One or more JSON pointers, valid by RFC 6901, section 3.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pointers(Vec<String>);

impl Pointers {
    /// Parses pointers joined with commas. A pointer must not be empty, because the whole body cannot be a
    /// key.
    pub(super) fn new(text: &str) -> Option<Self> {
        // In a list of pointers, a slash follows a comma only between two pointers, or behind a name that
        // ends with a comma.
        let rest = text.strip_prefix('/')?;
        let valid = |pointer: &str| {
            let mut escapes = pointer.split('~').skip(1);
            escapes.all(|rest| rest.starts_with(['0', '1']))
        };
        let pointers: Vec<String> = rest
            .split(",/")
            .map(|pointer| format!("/{pointer}"))
            .collect();
        pointers
            .iter()
            .all(|pointer| valid(pointer))
            .then_some(Self(pointers))
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(String::as_str)
    }
}

/// Shows the pointers as they were written.
impl fmt::Display for Pointers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join(","))
    }
}

/// Returns the value that a pointer finds. The pointer may lead through strings that contain JSON.
pub(super) fn find<'a>(json: &'a Value, pointer: &str) -> Option<Cow<'a, Value>> {
    let mut found = Cow::Borrowed(json);
    for token in pointer.split('/').skip(1) {
        if let Value::String(text) = found.as_ref() {
            found = Cow::Owned(serde_json::from_str(text).ok()?);
        }
        let step = format!("/{token}");
        found = match found {
            Cow::Borrowed(value) => Cow::Borrowed(value.pointer(&step)?),
            Cow::Owned(mut value) => Cow::Owned(value.pointer_mut(&step)?.take()),
        };
    }
    Some(found)
}

/// Returns the part of a key that a value makes.
pub(super) fn key_part(value: &Value) -> KeyPart<'_> {
    match value {
        Value::String(text) => KeyPart::Text(text.into()),
        Value::Number(n) => KeyPart::Json(n.to_string()),
        other => KeyPart::Json(canonical(other)),
    }
}

/// Returns whether no other value makes the same part of a key.
pub(super) fn is_distinct(value: &Value) -> bool {
    match value {
        // By its digits.
        Value::Number(n) => n.is_i64() || n.is_u64(),
        other => is_exact(other),
    }
}

/// Returns whether every number in the value stays distinct in canonical form. That form writes numbers as
/// doubles (RFC 8785, section 3.2.2.3), which represent all whole numbers below 2^53.
fn is_exact(value: &Value) -> bool {
    match value {
        Value::Number(n) => n.as_i64().is_some_and(|n| n.unsigned_abs() < 1 << 53),
        Value::Array(items) => items.iter().all(is_exact),
        Value::Object(members) => members.values().all(is_exact),
        Value::Null | Value::Bool(_) | Value::String(_) => true,
    }
}

pub(super) fn canonical(value: &Value) -> String {
    // This fails only on numbers that are not finite, which a `Value` cannot hold.
    serde_json_canonicalizer::to_string(value).unwrap_or_else(|_| value.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pointers_are_separated_by_commas_and_slashes() {
        let pointers = |text| Pointers::new(text).map(|Pointers(pointers)| pointers);
        let two = ["/tenant", "/order/id"].map(str::to_owned).to_vec();
        assert_eq!(pointers("/tenant,/order/id"), Some(two));
        assert_eq!(pointers("tenant"), None);
        assert_eq!(pointers("/a~2"), None);
    }
}

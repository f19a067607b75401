//! [`Canonical`]: the canonical form of JSON (RFC 8785).

use std::{fmt, ops::Range, sync::LazyLock};

use serde::{
    Deserializer,
    de::{DeserializeSeed, Error, IgnoredAny, MapAccess, SeqAccess, Visitor},
};

/// Longest JSON that gets a canonical form, in bytes. Sorting a longer one would take too much memory.
pub(super) const MAX_CANONICAL_BYTES: usize = 64 * 1024;

/// The member under which serde_json hands over a number, as text, in a program that enables its feature
/// `arbitrary_precision`.
const NUMBER: &str = "$serde_json::private::Number";

/// True if this program enables that feature. Otherwise a producer's member may have the name.
static NUMBERS_ARE_MAPS: LazyLock<bool> = LazyLock::new(|| {
    let mut number = serde_json::Deserializer::from_str("1");
    number.deserialize_any(IsMap).unwrap_or(false)
});

struct IsMap;

impl<'de> Visitor<'de> for IsMap {
    type Value = bool;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number")
    }

    fn visit_u64<E>(self, _: u64) -> Result<bool, E> {
        Ok(false)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<bool, A::Error> {
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(true)
    }
}

/// A JSON value in canonical form.
#[derive(Debug)]
pub(super) struct Canonical {
    pub(super) text: String,
    pub(super) content: Content,
}

/// What a key needs to know about a JSON value.
#[derive(Clone, Copy, Debug)]
pub(super) struct Content {
    /// True if no two different numbers look alike in canonical form. That form writes numbers as doubles (RFC 8785,
    /// section 3.2.2.3), which represent all whole numbers below 2^53.
    pub(super) is_exact: bool,
    /// True if the value has nothing but null, empty texts, and lists and objects of them.
    pub(super) is_empty: bool,
}

impl Canonical {
    /// Returns the canonical form. `None` for text of more than [`MAX_CANONICAL_BYTES`], and for JSON with more
    /// than 127 levels, a number beyond a double or half of a surrogate pair.
    pub(super) fn of(json: &str) -> Option<Self> {
        if json.len() > MAX_CANONICAL_BYTES {
            return None;
        }
        let mut text = String::with_capacity(json.len());
        let mut deserializer = serde_json::Deserializer::from_str(json);
        let content = Writer(&mut text).deserialize(&mut deserializer).ok()?;
        deserializer.end().ok()?;
        Some(Self { text, content })
    }
}

impl Content {
    const NOTHING: Self = Self {
        is_exact: true,
        is_empty: true,
    };
    const SOMETHING: Self = Self {
        is_exact: true,
        is_empty: false,
    };

    fn and(self, other: Self) -> Self {
        Self {
            is_exact: self.is_exact && other.is_exact,
            is_empty: self.is_empty && other.is_empty,
        }
    }
}

/// Appends one value to the text.
struct Writer<'t>(&'t mut String);

impl Writer<'_> {
    fn number(self, number: f64, is_exact: bool) -> Content {
        self.0.push_str(ryu_js::Buffer::new().format_finite(number));
        Content {
            is_exact,
            is_empty: false,
        }
    }

    /// serde_json escapes text as RFC 8785, section 3.2.2.2, says.
    fn string<E: Error>(&mut self, text: &str) -> Result<(), E> {
        self.0
            .push_str(&serde_json::to_string(text).map_err(E::custom)?);
        Ok(())
    }
}

impl<'de> DeserializeSeed<'de> for Writer<'_> {
    type Value = Content;

    fn deserialize<D: Deserializer<'de>>(self, value: D) -> Result<Content, D::Error> {
        value.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Writer<'_> {
    type Value = Content;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Content, E> {
        self.0.push_str("null");
        Ok(Content::NOTHING)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Content, E> {
        self.0.push_str(if value { "true" } else { "false" });
        Ok(Content::SOMETHING)
    }

    fn visit_i64<E>(self, value: i64) -> Result<Content, E> {
        Ok(self.number(value as f64, value.unsigned_abs() < 1 << 53))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Content, E> {
        Ok(self.number(value as f64, value < 1 << 53))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Content, E> {
        Ok(self.number(value, false))
    }

    fn visit_str<E: Error>(mut self, value: &str) -> Result<Content, E> {
        self.string(value)?;
        Ok(if value.is_empty() {
            Content::NOTHING
        } else {
            Content::SOMETHING
        })
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Content, A::Error> {
        let mut all = Content::NOTHING;
        self.0.push('[');
        while let Some(element) = list.next_element_seed(Writer(&mut *self.0))? {
            all = all.and(element);
            self.0.push(',');
        }
        close(self.0, ']');
        Ok(all)
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<Content, A::Error> {
        let start = self.0.len();
        let mut members: Vec<(String, Range<usize>, Content)> = Vec::new();
        while let Some(name) = map.next_key()? {
            if name == NUMBER && members.is_empty() && *NUMBERS_ARE_MAPS {
                let digits = map.next_value::<String>()?;
                let whole = digits.parse::<i64>();
                let is_exact = whole.is_ok_and(|whole| whole.unsigned_abs() < 1 << 53);
                let number = digits
                    .parse::<f64>()
                    .ok()
                    .filter(|number| number.is_finite());
                return Ok(self.number(
                    number.ok_or_else(|| A::Error::custom("beyond a double"))?,
                    is_exact,
                ));
            }
            let from = self.0.len() - start;
            let content = map.next_value_seed(Writer(&mut *self.0))?;
            members.push((name, from..self.0.len() - start, content));
        }
        // RFC 8785, section 3.2.3. The sort is stable.
        members.sort_by(|(one, ..), (other, ..)| one.encode_utf16().cmp(other.encode_utf16()));
        let values = self.0.split_off(start);
        let mut all = Content::NOTHING;
        self.0.push('{');
        // Of members with one name, the last wins, as in a tree.
        for same_name in members.chunk_by(|(one, ..), (other, ..)| one == other) {
            if let [.., (name, value, content)] = same_name {
                all = all.and(*content);
                self.string(name)?;
                self.0.push(':');
                self.0.push_str(&values[value.clone()]);
                self.0.push(',');
            }
        }
        close(self.0, '}');
        Ok(all)
    }
}

/// Ends a list or object, which has a comma behind each value.
fn close(text: &mut String, end: char) {
    if text.ends_with(',') {
        text.pop();
    }
    text.push(end);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    fn text(json: &str) -> Option<String> {
        Canonical::of(json).map(|canonical| canonical.text)
    }

    #[test]
    fn member_named_like_a_number_of_serde_is_a_member() {
        for json in [
            r#"{"$serde_json::private::Number":"7"}"#,
            r#"{"$serde_json::private::Number":"7","a":1}"#,
        ] {
            assert_eq!(text(json).as_deref(), Some(json));
        }
    }

    #[test]
    fn canonical_form_is_that_of_rfc_8785() {
        // Sections 3.2.2 and 3.2.3.
        let example = r#"{
            "numbers": [333333333.33333329, 1E30, 4.50, 2e-3, 0.000000000000000000000000001],
            "string": "\u20ac$\u000F\u000aA'\u0042\u0022\u005c\\\"\/",
            "literals": [null, true, false]
        }"#;
        let canonical = r#"{"literals":[null,true,false],"numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27],"string":"€$\u000f\nA'B\"\\\\\"/"}"#;
        assert_eq!(text(example).as_deref(), Some(canonical));
        let names =
            r#"{"\u20ac":1,"\r":2,"\ufb33":3,"1":4,"\ud83d\ude00":5,"\u0080":6,"\u00f6":7}"#;
        let sorted = "{\"\\r\":2,\"1\":4,\"\u{80}\":6,\"ö\":7,\"€\":1,\"😀\":5,\"\u{fb33}\":3}";
        assert_eq!(text(names).as_deref(), Some(sorted));
        let odd = r#" { "b" : [ ] , "a" : { } , "b" : [ -0 , [ { } ] ] , "," : "," } "#;
        let canonical = r#"{",":",","a":{},"b":[0,[{}]]}"#;
        assert_eq!(text(odd).as_deref(), Some(canonical));
    }

    #[test]
    fn value_without_canonical_form_has_none() {
        let nested = |levels| ["[".repeat(levels), "]".repeat(levels)].concat();
        for (json, has_form) in [
            (format!("\"{}\"", "x".repeat(MAX_CANONICAL_BYTES - 2)), true),
            (
                format!("\"{}\"", "x".repeat(MAX_CANONICAL_BYTES - 1)),
                false,
            ),
            (nested(127), true),
            (nested(128), false),
            (r#""\ud83d""#.into(), false),
            (r#"{"\ud83d":1}"#.into(), false),
            ("[1e999]".into(), false),
            ("1 2".into(), false),
            ("plain text".into(), false),
            (String::new(), false),
        ] {
            assert_eq!(text(&json).is_some(), has_form, "{json:.40}");
        }
    }

    fn value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<f64>().prop_map(Value::from),
            ".{0,4}".prop_map(Value::from),
            any::<String>().prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 40, 6, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
                prop::collection::vec((".{0,3}", inner), 0..6)
                    .prop_map(|members| members.into_iter().collect()),
            ]
        })
    }

    proptest! {
        #[test]
        fn other_implementation_writes_the_same(value in value()) {
            for json in [value.to_string(), serde_json::to_string_pretty(&value).unwrap()] {
                prop_assert_eq!(text(&json), serde_json_canonicalizer::to_string(&value).ok());
            }
            let twice = json!({"x": value}).to_string().replace(r#"{"x""#, r#"{"x":0.5,"x""#);
            let once = serde_json_canonicalizer::to_string(&json!({"x": value})).ok();
            prop_assert_eq!(text(&twice), once);
        }
    }
}

//! [`Document`]: the text of a JSON body.

use std::{
    borrow::Cow,
    fmt,
    sync::{Mutex, MutexGuard, PoisonError},
};

use serde::{
    Deserializer as _,
    de::{DeserializeSeed, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor},
};
use serde_json::{Deserializer, value::RawValue};

use crate::handler::without_bom;

/// A body that is JSON. We never build a tree from it. A tree of tiny values takes a hundred times the size of
/// its text, so one small message could end the process.
///
/// We only skip values that nobody asks for, so they may have any depth, numbers beyond a double, and halves of surrogate pairs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Document<'a>(&'a str);

impl<'a> Document<'a> {
    pub(super) fn parse(body: &'a str) -> serde_json::Result<Self> {
        let text = without_bom(body);
        serde_json::from_str::<IgnoredAny>(text)?;
        Ok(Self(text))
    }

    /// Returns the JSON text of the value that a pointer finds. The pointer may lead through strings that
    /// contain JSON.
    pub(super) fn find(self, pointer: &str) -> Option<Cow<'a, str>> {
        let mut found = Cow::Borrowed(self.0.trim_start());
        for token in pointer.split('/').skip(1) {
            if found.starts_with('"') {
                found = Cow::Owned(serde_json::from_str(&found).ok()?);
            }
            let name = token.replace("~1", "/").replace("~0", "~");
            found = match found {
                Cow::Borrowed(text) => Cow::Borrowed(child(text, &name)?),
                Cow::Owned(text) => Cow::Owned(child(&text, &name)?.to_owned()),
            };
        }
        Some(found)
    }
}

/// Waits until no other thread is removing an envelope, or making a key or a fingerprint from JSON. A process
/// with several invocations then needs memory for one body, not for one per thread.
pub(super) fn one_at_a_time() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the text of a member or element.
fn child<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let mut deserializer = Deserializer::from_str(without_bom(text));
    let child = deserializer.deserialize_any(Child(name)).ok()?;
    deserializer.end().ok()?;
    Some(child.get())
}

/// Finds the value of a member of an object, or of an element of an array.
struct Child<'n>(&'n str);

impl<'de> Visitor<'de> for Child<'_> {
    type Value = &'de RawValue;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object or an array")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut found = None;
        while let Some(is_named_so) = map.next_key_seed(IsName(self.0))? {
            if is_named_so {
                found = Some(map.next_value()?); // the last one, as in a tree
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        found.ok_or_else(|| A::Error::custom("no such member"))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        // RFC 6901, section 4, allows digits without a sign or leading zeros.
        let index: usize = self.0.parse().map_err(A::Error::custom)?;
        let mut found = None;
        if index.to_string() == self.0 {
            let mut before = 0;
            while before < index && list.next_element::<IgnoredAny>()?.is_some() {
                before += 1;
            }
            found = list.next_element()?;
            while list.next_element::<IgnoredAny>()?.is_some() {}
        }
        found.ok_or_else(|| A::Error::custom("no such element"))
    }
}

/// Compares the name of a member. Names are read as bytes, because a name may contain half of a surrogate pair.
struct IsName<'n>(&'n str);

impl<'de> DeserializeSeed<'de> for IsName<'_> {
    type Value = bool;

    fn deserialize<D: serde::Deserializer<'de>>(self, name: D) -> Result<bool, D::Error> {
        name.deserialize_bytes(self)
    }
}

impl Visitor<'_> for IsName<'_> {
    type Value = bool;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a name")
    }

    fn visit_bytes<E>(self, name: &[u8]) -> Result<bool, E> {
        Ok(name == self.0.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find<'a>(body: &'a str, pointer: &str) -> Option<Cow<'a, str>> {
        Document::parse(body).unwrap().find(pointer)
    }

    #[test]
    fn pointer_finds_the_text_of_a_value() {
        let body = r#" { "id": 7, "id": "last", "a/b": { "~": [1, {"c": null}, "x"] }, "": 0,
            "inner": "{\"detail\": {\"id\": [true, \"\\\"q\\\"\"]}}", "n\u00e9": 1.5, "list": [ ],
            "marked": "\ufeff{\"id\": 1}", "text": "no JSON", "more": "{} {}" } "#;
        for (pointer, value) in [
            ("/id", Some(r#""last""#)),
            ("/missing", None),
            ("/a~1b", Some(r#"{ "~": [1, {"c": null}, "x"] }"#)),
            ("/a~1b/~0/1/c", Some("null")),
            ("/a~1b/~0/2", Some(r#""x""#)),
            ("/a~1b/~0/02", None),
            ("/a~1b/~0/+2", None),
            ("/a~1b/~0/-", None),
            ("/a~1b/~0/3", None),
            ("/a~1b/~0/18446744073709551615", None),
            ("/", Some("0")),
            ("/inner/detail/id", Some(r#"[true, "\"q\""]"#)),
            ("/inner/detail/id/1", Some(r#""\"q\"""#)),
            ("/inner/detail/id/1/x", None),
            ("/né", Some("1.5")),
            ("/né/x", None),
            ("/list/0", None),
            ("/id/x", None),
            ("/marked/id", Some("1")),
            ("/text/id", None),
            ("/more/id", None),
        ] {
            assert_eq!(find(body, pointer).as_deref(), value, "{pointer}");
        }
        // JSON in a string, after white space.
        assert_eq!(find(r#" "{\"id\": 7}""#, "/id").as_deref(), Some("7"));
    }

    #[test]
    fn values_that_nobody_reads_are_skipped() {
        let deep = ["[".repeat(1_000), "]".repeat(1_000)].concat();
        for member in [
            r#""x": "\ud83d""#,
            r#""\ud83d": 1"#,
            r#""x": {"\udc00": "\ud83d\ud83d"}"#,
            r#""x": 1e999"#,
            &format!(r#""x": {deep}"#),
        ] {
            for body in [
                format!(r#"{{"id": 7, {member}}}"#),
                format!(r#"{{{member}, "id": 7}}"#),
                format!(r#"[{{{member}}}, {{"id": 7}}]"#),
                format!("\u{feff}{{{member}, \"id\": 7}}"),
            ] {
                let pointer = if body.starts_with('[') {
                    "/1/id"
                } else {
                    "/id"
                };
                assert_eq!(find(&body, pointer).as_deref(), Some("7"), "{member:.40}");
            }
        }
    }

    #[test]
    fn body_that_is_not_json_is_refused() {
        for body in [
            "",
            "\u{feff}",
            " \u{feff}{}",
            "{}\u{feff}",
            "[1] 2",
            "[1,]",
            "{}\0",
            "\0{}",
            "{'id': 1}",
            "NaN",
            "[01]",
            "[\"\n\"]",
        ] {
            assert!(Document::parse(body).is_err(), "{body:?}");
        }
    }
}

//! [`Document`]: the JSON of a body, as a tree or, if it is long, as text.

use std::{borrow::Cow, fmt};

use serde::{
    Deserialize, Deserializer,
    de::{Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor},
};
use serde_json::{Value, value::RawValue};

use super::pointer::find;

/// Longest body that we parse into a tree, in bytes. SQS carries no longer one, but a body in S3 can be
/// longer. A tree of tiny values takes a hundred times the size of its text, so a small
/// message could otherwise end the process.
pub(super) const MAX_TREE_BYTES: usize = 1024 * 1024;

/// A JSON body.
#[derive(Debug)]
pub(super) enum Document<'a> {
    Tree(Value),
    /// JSON of more than [`MAX_TREE_BYTES`].
    Long(&'a str),
}

impl<'a> Document<'a> {
    pub(super) fn parse(body: &'a str) -> serde_json::Result<Self> {
        if body.len() <= MAX_TREE_BYTES {
            return serde_json::from_str(body).map(Self::Tree);
        }
        serde_json::from_str::<Checked>(body)?;
        Ok(Self::Long(body))
    }

    /// Returns the value that a pointer finds. The pointer may lead through strings that contain JSON.
    pub(super) fn find(&self, pointer: &str) -> Option<Cow<'_, Value>> {
        match self {
            Self::Tree(tree) => find(tree, pointer),
            Self::Long(text) => find_in_text(text, pointer).map(Cow::Owned),
        }
    }
}

/// Accepts JSON that could become a tree, and keeps nothing of it. `IgnoredAny` accepts more: any depth,
/// numbers beyond the range of a double, and halves of surrogate pairs.
struct Checked;

impl<'de> Deserialize<'de> for Checked {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Self)
    }
}

impl<'de> Visitor<'de> for Checked {
    type Value = Self;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_bool<E>(self, _: bool) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_str<E>(self, _: &str) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_unit<E>(self) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self, A::Error> {
        while let Some(Self) = list.next_element()? {}
        Ok(self)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self, A::Error> {
        while let Some((Self, Self)) = map.next_entry()? {}
        Ok(self)
    }
}

/// Finds a value like [`find`], but builds no tree of the values on the way.
fn find_in_text(text: &str, pointer: &str) -> Option<Value> {
    let mut found = Cow::Borrowed(text.trim_start());
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
    serde_json::from_str(&found).ok()
}

/// Returns the text of a member or element.
fn child<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let child = deserializer.deserialize_any(Child(name)).ok()?;
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
        while let Some(name) = map.next_key::<Cow<'_, str>>()? {
            if name == self.0 {
                found = Some(map.next_value()?); // the last one, as in a tree
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        found.ok_or_else(|| A::Error::custom("no such member"))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        // RFC 6901, section 4, allows digits without a sign and without leading zeros.
        let index: usize = self.0.parse().map_err(A::Error::custom)?;
        let mut found = None;
        if index.to_string() == self.0 {
            for _ in 0..index {
                list.next_element::<IgnoredAny>()?;
            }
            found = list.next_element()?;
            while list.next_element::<IgnoredAny>()?.is_some() {}
        }
        found.ok_or_else(|| A::Error::custom("no such element"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_bodies_give_the_same_values() {
        let text = r#" { "id": 7, "id": "last", "a/b": { "~": [1, {"c": null}, "x"] }, "": 0,
            "inner": "{\"detail\": {\"id\": [true, \"\\\"q\\\"\"]}}", "né": 1.5, "list": [ ] } "#;
        let tree = serde_json::from_str(text).unwrap();
        for pointer in [
            "/id",
            "/missing",
            "/a~1b",
            "/a~1b/~0/1/c",
            "/a~1b/~0/2",
            "/a~1b/~0/02",
            "/a~1b/~0/+2",
            "/a~1b/~0/-",
            "/a~1b/~0/3",
            "/",
            "/inner",
            "/inner/detail/id",
            "/inner/detail/id/1",
            "/inner/detail/id/1/x",
            "/né",
            "/n\u{e9}/x",
            "/list/0",
            "/id/x",
        ] {
            let (short, long) = (find(&tree, pointer), find_in_text(text, pointer));
            assert_eq!(short.as_deref(), long.as_ref(), "{pointer}");
        }
        // JSON in a string, behind white space.
        let text = r#" "{\"id\": 7}""#;
        assert_eq!(find_in_text(text, "/id"), Some(7.into()));
    }

    #[test]
    fn tree_is_made_of_short_bodies_alone() {
        let list = |length: usize| format!("[{}]", " ".repeat(length - 2));
        let parse = |text: &str| {
            Document::parse(text).map(|document| matches!(document, Document::Tree(_)))
        };
        assert!(parse(&list(MAX_TREE_BYTES)).unwrap());
        assert!(!parse(&list(MAX_TREE_BYTES + 1)).unwrap());
        assert!(parse(&list(MAX_TREE_BYTES + 1)[1..]).is_err());
    }

    #[test]
    fn long_body_is_refused_where_a_short_one_is() {
        let blank = " ".repeat(MAX_TREE_BYTES);
        for (text, accepted) in [
            (
                r#"{"a": [1, -1, 1.5, true, null, "\ud83d\ude00"], "a": {}}"#.to_owned(),
                true,
            ),
            ([&"[".repeat(127)[..], &"]".repeat(127)].concat(), true),
            ([&"[".repeat(128)[..], &"]".repeat(128)].concat(), false),
            ("[1e999]".to_owned(), false),
            (r#"["\ud83d"]"#.to_owned(), false),
            (r#"{"\ud83d": 1}"#.to_owned(), false),
            ("[1] 2".to_owned(), false),
            ("[1,]".to_owned(), false),
        ] {
            for body in [text.clone(), format!("{blank}{text}")] {
                let parsed = Document::parse(&body).is_ok();
                assert_eq!(parsed, accepted, "{text}, {} bytes", body.len());
            }
        }
    }
}

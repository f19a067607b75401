//! Optimistic locking: the condition that an item is unchanged since it was read.

use aws_sdk_dynamodb::types::Put;

use crate::dynamo::{
    item::{Item, number},
    write::Write,
};

/// Name of the attribute that counts an item's changes.
const VERSION: &str = "version";

#[derive(Debug, PartialEq)]
pub(super) enum Unchanged {
    /// No item existed.
    None,
    /// The item had no version.
    Unversioned,
    /// The item had this version.
    Version(u64),
}

impl Unchanged {
    /// Creates the condition from the item that was read.
    ///
    /// The error text has the attribute's name, but never its value.
    pub(super) fn since(found: Option<&Item>) -> Result<Self, String> {
        let Some(item) = found else {
            return Ok(Self::None);
        };
        let Some(version) = item.get(VERSION) else {
            return Ok(Self::Unversioned);
        };
        let number = version.as_n().ok().and_then(|digits| digits.parse().ok());
        number.map(Self::Version).ok_or_else(|| {
            format!(
                "attribute `{VERSION}` of the item must be a whole number from 0, to count changes"
            )
        })
    }

    /// Builds the put of `item` with this condition and the next version. `key` is the name of an
    /// attribute of the primary key.
    pub(super) fn put(&self, table: &str, key: &str, mut item: Item) -> Write<Put> {
        let next = match self {
            Self::None | Self::Unversioned => 1,
            Self::Version(version) => version.saturating_add(1),
        };
        item.insert(VERSION.to_owned(), number(next));
        let put = Write::put_item(table, item);
        match self {
            Self::None => put.when("attribute_not_exists(#id)").name("#id", key),
            Self::Unversioned => put
                .when("attribute_exists(#id) AND attribute_not_exists(#version)")
                .name("#id", key)
                .name("#version", VERSION),
            Self::Version(version) => put
                .when("#version = :version")
                .name("#version", VERSION)
                .raw_value(":version", number(*version)),
        }
    }
}

#[cfg(test)]
mod tests {
    use aws_sdk_dynamodb::types::AttributeValue;

    use super::*;

    #[test]
    fn version_must_be_a_whole_number() {
        let of = |version| Unchanged::since(Some(&Item::from([("version".to_owned(), version)])));
        let n = |text: &str| of(AttributeValue::N(text.into()));
        assert_eq!(Unchanged::since(None), Ok(Unchanged::None));
        assert_eq!(
            Unchanged::since(Some(&Item::new())),
            Ok(Unchanged::Unversioned)
        );
        assert_eq!(n("0"), Ok(Unchanged::Version(0)));
        assert_eq!(n("41"), Ok(Unchanged::Version(41)));
        for strange in [n("-1"), n("1.5"), of(AttributeValue::S("1".into()))] {
            assert!(strange.unwrap_err().contains("`version`"));
        }
    }
}

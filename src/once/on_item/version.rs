//! That nobody changed an item since it was read.

use aws_sdk_dynamodb::types::{AttributeValue, Put};

use crate::store::{Item, Write, number};

/// Counts an item's changes.
const VERSION: &str = "version";

/// The condition that an item is as it was read.
#[derive(Debug, PartialEq)]
pub(super) enum Unchanged {
    /// There was none.
    None,
    /// It had no version yet.
    Unversioned,
    /// It had this one.
    Version(u64),
}

impl Unchanged {
    /// Fails with the reason, which names the attribute and never its value.
    pub(super) fn since(found: Option<&Item>) -> Result<Self, String> {
        let Some(item) = found else {
            return Ok(Self::None);
        };
        match item.get(VERSION) {
            None => Ok(Self::Unversioned),
            Some(AttributeValue::N(version)) if version.parse::<u64>().is_ok() => {
                Ok(Self::Version(version.parse().unwrap_or_default()))
            }
            Some(_) => Err(format!(
                "the item's `{VERSION}` is not a whole number from 0, so its changes can't be counted"
            )),
        }
    }

    /// The put of `item` under this condition, its changes counted. `key` is an attribute of
    /// the primary key.
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

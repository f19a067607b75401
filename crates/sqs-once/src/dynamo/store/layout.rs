//! [`Layout`]: key schema and TTL attribute of the table, and the types of a record's attributes.

use std::borrow::Cow;

use crate::{
    InvalidValue,
    dynamo::item::{self as items, Item},
    protocol::{Fingerprint, key::MAX_KEY_BYTES, record::RecordValue},
};

/// Maximum size of a DynamoDB sort key in bytes (*Amazon DynamoDB Developer Guide*, "Constraints in
/// Amazon DynamoDB").
const MAX_SORT_KEY_BYTES: usize = 1024;
/// Maximum size of an attribute name in a key or an index, in bytes (the same page).
const MAX_NAME_BYTES: usize = 255;

/// A record's attributes of type S.
const TEXTS: [&str; 10] = [
    "failures",
    "fingerprint",
    "last_end",
    "message_id",
    "owner",
    "result",
    "result_in_s3",
    "result_omitted",
    "source",
    "status",
];
/// A record's attributes of type N.
pub(super) const NUMBERS: [&str; 9] = [
    "attempts",
    "exclusive_attempts",
    EXPIRES_AT,
    "first_claimed_at",
    "generation",
    "lease_until",
    "open_other",
    "updated_at",
    "version",
];
/// Returns the attributes of a record, except its key, by their native names.
pub(super) fn attributes() -> impl Iterator<Item = &'static str> {
    TEXTS.into_iter().chain(NUMBERS)
}

/// Marks a sort key that is a hash.
const HASHED: &str = "\\sha256:";

/// Native names of the partition key and of the table's TTL attribute.
const ID: &str = "id";
const EXPIRES_AT: &str = "expires_at";

/// Key schema and TTL attribute of the records in a table.
///
/// Set a layout only for a new table, or for a table whose records already have this layout. The store doesn't
/// find records that have another layout, so handlers would run again for their messages.
///
/// ```
/// use sqs_once::store::Layout;
///
/// // A single-table design: all records in the partition `idempotency`, with the key in `SK`.
/// let shared = Layout::native()
///     .rename([("id", "PK"), ("expires_at", "ttl")])?
///     .sort_key("SK", "idempotency")?;
/// # Ok::<(), sqs_once::InvalidValue>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    id: String,
    expires_at: String,
    sort: Option<SortKey>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct SortKey {
    name: String,
    partition: String,
}

impl Default for Layout {
    fn default() -> Self {
        Self::native()
    }
}

impl Layout {
    /// Returns the layout in [`DynamoStore`](crate::dynamo::store::DynamoStore)'s documentation.
    #[must_use]
    pub fn native() -> Self {
        Self {
            id: ID.to_owned(),
            expires_at: EXPIRES_AT.to_owned(),
            sort: None,
        }
    }

    /// Renames the partition key, `id`, and the table's TTL attribute, `expires_at`.
    ///
    /// # Errors
    ///
    /// Returns [`InvalidValue`] if you name any other attribute, or if a new name is empty, longer than 255 bytes, or
    /// already in use.
    pub fn rename<N: Into<String>>(
        mut self,
        names: impl IntoIterator<Item = (impl AsRef<str>, N)>,
    ) -> Result<Self, InvalidValue> {
        for (native, name) in names {
            match native.as_ref() {
                ID => self.id = name.into(),
                EXPIRES_AT => self.expires_at = name.into(),
                other => {
                    return Err(InvalidValue::new(format!(
                        "only `id` and `expires_at` can have other names: remove `{other}`; if records exist under its other name, drain the queue first, and use a new table"
                    )));
                }
            }
        }
        self.checked()
    }

    /// Stores the key in the sort key `name`. All records of the store have the partition key
    /// value `partition`.
    ///
    /// One partition takes about 1000 writes a second. A sort key has at most 1024 bytes. Longer keys are hashed.
    ///
    /// # Errors
    ///
    /// Returns [`InvalidValue`] if:
    ///
    /// - `name` is empty, longer than 255 bytes, or the name of another attribute;
    /// - `partition` is empty or longer than 2048 bytes.
    pub fn sort_key(
        mut self,
        name: impl Into<String>,
        partition: impl Into<String>,
    ) -> Result<Self, InvalidValue> {
        let (name, partition) = (name.into(), partition.into());
        if !(1..=MAX_KEY_BYTES).contains(&partition.len()) {
            let bytes = partition.len();
            return Err(InvalidValue::new(format!(
                "the partition key has {bytes} bytes, but must have 1 to {MAX_KEY_BYTES}"
            )));
        }
        self.sort = Some(SortKey { name, partition });
        self.checked()
    }

    fn checked(self) -> Result<Self, InvalidValue> {
        let sort = self.sort.iter().map(|sort| sort.name.as_str());
        let names = attributes().map(|native| self.named(native));
        let names: Vec<_> = names.chain([&*self.id]).chain(sort).collect();
        for (n, name) in names.iter().enumerate() {
            if !(1..=MAX_NAME_BYTES).contains(&name.len()) {
                return Err(InvalidValue::new(format!(
                    "the attribute name `{name}` has {} bytes, but must have 1 to {MAX_NAME_BYTES}",
                    name.len()
                )));
            }
            if names[..n].contains(name) {
                return Err(InvalidValue::new(format!(
                    "two attributes have the name `{name}`"
                )));
            }
        }
        Ok(self)
    }

    /// Returns what this table calls the attribute whose native name is `native`.
    pub(super) fn named<'a>(&'a self, native: &'a str) -> &'a str {
        match native {
            ID => &self.id,
            EXPIRES_AT => &self.expires_at,
            other => other,
        }
    }

    pub(super) fn primary_key(&self, id: &str) -> Item {
        items::owned(self.key_attributes(id))
    }

    /// Returns the attributes of the primary key, partition key first.
    pub(super) fn key_attributes<'a>(
        &'a self,
        id: &'a str,
    ) -> impl Iterator<Item = (&'a str, RecordValue<'a>)> {
        let partition = &*self.id;
        let (partition, sort) = match &self.sort {
            None => ((partition, id.into()), None),
            Some(sort) => {
                let key = (partition, sort.partition.as_str().into());
                (key, Some((sort.name.as_str(), sort_key(id))))
            }
        };
        let both = [Some(partition), sort].into_iter().flatten();
        both.map(|(name, text)| (name, RecordValue::Text(text)))
    }

    /// Returns the name of the key attribute that differs between records.
    pub(super) fn key_name(&self) -> &str {
        let sort = self.sort.as_ref().map(|sort| sort.name.as_str());
        sort.unwrap_or(&self.id)
    }

    /// Returns the primary key of `item`, exactly as the item has it.
    pub(super) fn primary_key_of(&self, item: &Item) -> Item {
        let names = [&*self.id, self.key_name()];
        let pairs = names.map(|name| Some((name.to_owned(), item.get(name)?.clone())));
        pairs.into_iter().flatten().collect()
    }
}

/// Returns the sort key of the record with the key `id`, or a hash if the key is too long. No other key begins like a hash: see
/// `Key`.
fn sort_key(id: &str) -> Cow<'_, str> {
    if id.len() <= MAX_SORT_KEY_BYTES {
        id.into()
    } else {
        format!("{HASHED}{}", Fingerprint::of(id.as_bytes())).into()
    }
}

/// Returns whether a record's key in the table is a hash, because the key is too long for a sort key.
pub(super) fn is_hashed(stored: &str) -> bool {
    stored.starts_with(HASHED)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dynamo::item::string;

    #[test]
    fn sort_key_too_long_is_hashed() {
        let layout = Layout::native().sort_key("sk", "all").unwrap();
        let sort = |id: &str| layout.primary_key(id)["sk"].as_s().unwrap().clone();
        assert_eq!(layout.primary_key("ns#a")["id"], string("all"));
        let longest = "x".repeat(MAX_SORT_KEY_BYTES);
        assert_eq!(sort(&longest), longest);
        let (a, b) = (sort(&format!("{longest}a")), sort(&format!("{longest}b")));
        assert!(is_hashed(&a) && a.len() == 72 && a != b, "{a}");
        assert!(!is_hashed(&longest));
    }

    #[test]
    fn attribute_names_are_valid_and_distinct() {
        let too_long = "x".repeat(MAX_NAME_BYTES + 1);
        for (native, name) in [
            ("id", "status"),
            ("id", "expires_at"),
            ("id", ""),
            ("expires_at", &*too_long),
            ("owner", "user"),
        ] {
            let renamed = Layout::native().rename([(native, name)]);
            assert!(renamed.is_err(), "{native}: {name}");
        }
        let swapped = [("id", "expires_at"), ("expires_at", "id")];
        assert!(Layout::native().rename(swapped).is_ok());
        for (name, partition) in [("id", "all"), ("", "all"), ("sk", "")] {
            assert!(
                Layout::native().sort_key(name, partition).is_err(),
                "{name}"
            );
        }
    }
}

//! [`Layout`]: what a record's attributes are called in the table.

use std::{borrow::Cow, str::FromStr};

use crate::{
    dynamodb::item::{Item, string},
    invalid::InvalidValue,
    protocol::{Fingerprint, key::MAX_KEY_BYTES},
};

/// The most bytes that a DynamoDB sort key may have (*Amazon DynamoDB Developer Guide*,
/// "Constraints in Amazon DynamoDB"); an attribute's name in a key or an index may have 255.
const MAX_SORT_KEY_BYTES: usize = 1024;
const MAX_NAME_BYTES: usize = 255;

/// Declares [`Field`] with its native names.
macro_rules! fields {
    ($($(#[$doc:meta])* $field:ident $name:literal)+) => {
        /// An attribute of a record, by what it means. Its text is its native name.
        ///
        /// ```
        /// use sqs_once::store::Field;
        ///
        /// assert_eq!("lease_until".parse(), Ok(Field::LeaseUntil));
        /// assert_eq!(Field::LeaseUntil.native_name(), "lease_until");
        /// ```
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Field { $($(#[$doc])* $field,)+ }

        impl Field {
            const ALL: [Self; [$($name),+].len()] = [$(Self::$field),+];

            /// Its name in [`Layout::native`].
            #[must_use]
            pub const fn native_name(self) -> &'static str {
                match self { $(Self::$field => $name,)+ }
            }
        }
    };
}

fields! {
    /// The partition key: the [`Key`](crate::protocol::Key), or a fixed text where there is a sort key.
    Id "id"
    /// The status word.
    Status "status"
    /// The token of the current or last claim.
    Owner "owner"
    /// Epoch milliseconds; after it the claim can be taken over.
    LeaseUntil "lease_until"
    /// Epoch seconds; the table's TTL attribute.
    ExpiresAt "expires_at"
    /// The fingerprint of the payload.
    Fingerprint "fingerprint"
    /// The message of the current or last claim.
    MessageId "message_id"
    /// Claims made since the record was created.
    Attempts "attempts"
    /// Epoch milliseconds of the earliest open attempt; 0 if its time is not known.
    FirstClaimedAt "first_claimed_at"
    /// How the last attempt ended: `retryable`, `panic` or `deadline`.
    LastEnd "last_end"
    /// The messages that failed permanently under this key.
    FailedMessageIds "failed_message_ids"
    /// The handler's output as JSON.
    Result "result"
    /// The reason why the output was not stored.
    ResultOmitted "result_omitted"
    /// The last permanent failure.
    Error "error"
    /// Epoch milliseconds.
    CreatedAt "created_at"
    /// Epoch milliseconds.
    UpdatedAt "updated_at"
}

impl AsRef<str> for Field {
    fn as_ref(&self) -> &str {
        self.native_name()
    }
}

impl FromStr for Field {
    type Err = InvalidValue;

    fn from_str(name: &str) -> Result<Self, InvalidValue> {
        let field = Self::ALL.into_iter().find(|f| f.native_name() == name);
        field.ok_or_else(|| InvalidValue::new(format!("a record has no `{name}`")))
    }
}

/// How a record stands in the table: what its attributes and its statuses are called, and
/// whether a sort key holds the key.
///
/// Changing it is for a new table, or for one whose records were written that way: records
/// under other names are not found, and what they remember is done again.
///
/// ```
/// use sqs_once::store::Layout;
///
/// // A single-table design: every record in the partition `idempotency`, the key in `SK`.
/// let shared = Layout::native()
///     .rename([("id", "PK"), ("expires_at", "ttl")])?
///     .sort_key("SK", "idempotency")?;
/// # Ok::<(), sqs_once::InvalidValue>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    names: [Cow<'static, str>; Field::ALL.len()],
    sort: Option<SortKey>,
    pub(super) words: Words,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct SortKey {
    name: String,
    partition: String,
}

/// The values of the status attribute. `failed` may be the same as `in_progress`: a failed record
/// then has `lease_until = 0`, and one in progress has a later lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Words {
    pub(super) in_progress: Cow<'static, str>,
    pub(super) completed: Cow<'static, str>,
    pub(super) failed: Cow<'static, str>,
    /// Another word that is read as completed.
    pub(super) expired: Option<&'static str>,
}

impl Words {
    /// Returns whether only `lease_until` separates a failed record from one in progress.
    pub(super) fn failed_is_in_progress(&self) -> bool {
        self.failed == self.in_progress
    }
}

impl Default for Layout {
    fn default() -> Self {
        Self::native()
    }
}

impl Layout {
    /// The names in [`DynamoStore`](super::DynamoStore)'s documentation.
    #[must_use]
    pub fn native() -> Self {
        Self {
            names: Field::ALL.map(|field| field.native_name().into()),
            sort: None,
            words: Words {
                in_progress: "IN_PROGRESS".into(),
                completed: "COMPLETED".into(),
                failed: "FAILED".into(),
                expired: None,
            },
        }
    }

    /// The record of the Powertools for AWS Lambda libraries, so that both can work on one
    /// table: `id`, `status` (`INPROGRESS`, `COMPLETED`), `expiration`,
    /// `in_progress_expiration`, `data`, `validation`. What is only ours stands beside it, under
    /// its native name, and Powertools passes it over.
    ///
    /// Powertools knows no FAILED. Such a record is to it one in progress whose time is over, so
    /// it runs the operation again when it is asked to, as it does after every exception.
    ///
    /// Its ids are `sqs::powertools::hash`es behind its prefix,
    /// and so is its `validation`.
    ///
    /// ```
    /// use sqs_once::store::{Field, Layout};
    ///
    /// // As DynamoDBPersistenceLayer(key_attr="pk", sort_key_attr="sk", static_pk_value="orders").
    /// let layout = Layout::powertools().rename([(Field::Id, "pk")])?.sort_key("sk", "orders")?;
    /// # Ok::<(), sqs_once::InvalidValue>(())
    /// ```
    #[must_use]
    pub fn powertools() -> Self {
        let mut layout = Self::native();
        for (field, name) in [
            (Field::LeaseUntil, "in_progress_expiration"),
            (Field::ExpiresAt, "expiration"),
            (Field::Fingerprint, "validation"),
            (Field::Result, "data"),
        ] {
            layout.names[field as usize] = name.into();
        }
        layout.words.in_progress = "INPROGRESS".into();
        layout.words.failed = "INPROGRESS".into();
        // Written when a function ends after its record expired.
        layout.words.expired = Some("EXPIRED");
        layout
    }

    /// Renames attributes: each from its [native](Self::native) name.
    ///
    /// # Errors
    ///
    /// [`InvalidValue`] if a record has no such attribute, or if a name is empty, longer than 255
    /// bytes, or stands for two attributes.
    pub fn rename<N: Into<String>>(
        mut self,
        names: impl IntoIterator<Item = (impl AsRef<str>, N)>,
    ) -> Result<Self, InvalidValue> {
        for (native, name) in names {
            let field: Field = native.as_ref().parse()?;
            self.names[field as usize] = name.into().into();
        }
        self.checked()
    }

    /// Puts the key into the sort key `name`, behind the partition key `partition`, which is the
    /// same for every record of this store.
    ///
    /// One partition takes about 1000 writes a second. A sort key has at most 1024 bytes; a
    /// longer key is hashed.
    ///
    /// # Errors
    ///
    /// [`InvalidValue`] if the name is not one, or is taken, or the partition is empty or longer
    /// than 2048 bytes.
    pub fn sort_key(
        mut self,
        name: impl Into<String>,
        partition: impl Into<String>,
    ) -> Result<Self, InvalidValue> {
        let (name, partition) = (name.into(), partition.into());
        if !(1..=MAX_KEY_BYTES).contains(&partition.len()) {
            let bytes = partition.len();
            return Err(InvalidValue::new(format!(
                "a partition key of {bytes} bytes is not between 1 and {MAX_KEY_BYTES}"
            )));
        }
        self.sort = Some(SortKey { name, partition });
        self.checked()
    }

    /// Writes these words into the status. `failed` may be the same as `in_progress`, for
    /// readers that know no third.
    ///
    /// ```
    /// use sqs_once::store::Layout;
    ///
    /// assert!(Layout::native().status_words("running", "done", "failed").is_ok());
    /// assert!(Layout::native().status_words("running", "done", "done").is_err());
    /// ```
    ///
    /// # Errors
    ///
    /// [`InvalidValue`] if `completed` is the same as another.
    pub fn status_words(
        mut self,
        in_progress: impl Into<String>,
        completed: impl Into<String>,
        failed: impl Into<String>,
    ) -> Result<Self, InvalidValue> {
        self.words = Words {
            in_progress: in_progress.into().into(),
            completed: completed.into().into(),
            failed: failed.into().into(),
            expired: None,
        };
        if [&self.words.in_progress, &self.words.failed].contains(&&self.words.completed) {
            return Err(InvalidValue::new(
                "a completed record must be told from every other by its status".to_owned(),
            ));
        }
        Ok(self)
    }

    fn checked(self) -> Result<Self, InvalidValue> {
        let sort = self.sort.iter().map(|sort| sort.name.as_str());
        let names: Vec<_> = self.names.iter().map(AsRef::as_ref).chain(sort).collect();
        for (n, name) in names.iter().enumerate() {
            if !(1..=MAX_NAME_BYTES).contains(&name.len()) {
                return Err(InvalidValue::new(format!(
                    "an attribute's name has 1 to {MAX_NAME_BYTES} bytes, and `{name}` has {}",
                    name.len()
                )));
            }
            if names[..n].contains(name) {
                return Err(InvalidValue::new(format!(
                    "two attributes are called `{name}`"
                )));
            }
        }
        Ok(self)
    }

    pub(super) fn name(&self, field: Field) -> &str {
        &self.names[field as usize]
    }

    /// The primary key of the record whose key is `id`.
    pub(super) fn primary_key(&self, id: &str) -> Item {
        let partition = self.name(Field::Id).to_owned();
        let Some(sort) = &self.sort else {
            return Item::from([(partition, string(id))]);
        };
        // No key begins like this: see `Key`.
        let id = if id.len() <= MAX_SORT_KEY_BYTES {
            id.to_owned()
        } else {
            format!("\\sha256:{}", Fingerprint::of(id.as_bytes()))
        };
        Item::from([
            (partition, string(&sort.partition)),
            (sort.name.clone(), string(id)),
        ])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sort_key_too_long_is_hashed() {
        let layout = Layout::native().sort_key("sk", "all").unwrap();
        let sort = |id: &str| layout.primary_key(id)["sk"].as_s().unwrap().clone();
        assert_eq!(layout.primary_key("ns#a")["id"], string("all"));
        let longest = "x".repeat(MAX_SORT_KEY_BYTES);
        assert_eq!(sort(&longest), longest);
        let (a, b) = (sort(&format!("{longest}a")), sort(&format!("{longest}b")));
        assert!(a.starts_with("\\sha256:") && a.len() == 72 && a != b, "{a}");
    }

    #[test]
    fn field_is_found_by_native_name() {
        for field in Field::ALL {
            assert_eq!(field.native_name().parse(), Ok(field));
        }
        assert!("pk".parse::<Field>().is_err());
    }

    #[test]
    fn attribute_names_are_valid_and_distinct() {
        for names in [
            vec![(Field::Id, "status")],
            vec![(Field::Id, "a"), (Field::Owner, "a")],
            vec![(Field::Id, "")],
        ] {
            assert!(Layout::native().rename(names.clone()).is_err(), "{names:?}");
        }
        let swapped = [(Field::Id, "owner"), (Field::Owner, "id")];
        assert!(Layout::native().rename(swapped).is_ok());
        let too_long = "x".repeat(MAX_NAME_BYTES + 1);
        assert!(Layout::native().rename([(Field::Id, too_long)]).is_err());
        for (name, partition) in [("id", "all"), ("", "all"), ("sk", "")] {
            assert!(
                Layout::native().sort_key(name, partition).is_err(),
                "{name}"
            );
        }
    }
}

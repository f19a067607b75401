//! How an operator reads and changes records in DynamoDB, with the command-line tool `sqs-once`.
//!
//! An operator holds no claim, so each change requires that the record hasn't changed since it was read.

use aws_sdk_dynamodb::operation::delete_item::DeleteItemError;

use super::{DynamoStore, layout};
use crate::{
    dynamo::item::Item,
    protocol::{Expect, Key, Record, Swap},
    store::{StoreError, Swapped},
};

/// A record with its key, as read from the table.
#[derive(Clone, Debug)]
pub struct StoredRecord {
    /// The key as the table has it: a hash if the key was too long for the key attribute.
    pub key: String,
    /// The record, or why the item is not a valid record.
    pub record: Result<Record, UnreadableRecord>,
    /// The item as it was read, for the condition of a deletion.
    pub(crate) item: Item,
}

/// An item that is not a valid record.
#[derive(Clone, Debug)]
pub struct UnreadableRecord {
    /// The reason, with the attribute's name but without its value.
    pub reason: String,
    /// The item's attributes as JSON, payload included.
    pub raw: String,
}

impl StoredRecord {
    /// Returns the call key of the current or next attempt, or `None` if the record cannot be read, or if the table has
    /// only a hash of its key.
    #[must_use]
    pub fn call_key(&self) -> Option<String> {
        let record = self.record.as_ref().ok()?;
        if layout::is_hashed(&self.key) {
            return None;
        }
        Some(Key::from_stored(&*self.key).call_key(record.generation))
    }
}

impl DynamoStore {
    /// Reads a record with strong consistency.
    pub async fn show(&self, key: &str) -> Result<Option<StoredRecord>, StoreError> {
        let read = self
            .client
            .get_item()
            .table_name(&self.table)
            .set_key(Some(self.layout.primary_key(key)))
            .consistent_read(true);
        match read.send().await {
            Ok(answer) => Ok(answer.item.map(|item| self.stored(item))),
            Err(error) => {
                let key = Key::from_stored(key);
                Err(self.unavailable("read", "dynamodb:GetItem", &key, error))
            }
        }
    }

    /// Replaces a record. Returns false and changes nothing if the record has changed since it was read, or isn't valid.
    ///
    /// # Errors
    ///
    /// Returns a [`StoreError`] if the request failed. The record may have been replaced anyway.
    pub async fn replace(&self, shown: &StoredRecord, to: Record) -> Result<bool, StoreError> {
        let Ok(record) = &shown.record else {
            return Ok(false);
        };
        let swap = Swap {
            key: Key::from_stored(&shown.key),
            expect: Expect::Unchanged(record.clone()),
            to,
        };
        Ok(self.swap_in(None, &swap).await? == Swapped::Applied)
    }

    /// Deletes a record. Returns false and changes nothing if the record has changed since it was read.
    ///
    /// # Errors
    ///
    /// Returns a [`StoreError`] if the request failed. The record may have been deleted anyway.
    pub async fn delete_record(&self, shown: &StoredRecord) -> Result<bool, StoreError> {
        let item = &shown.item;
        let mut delete = self
            .writing
            .delete_item()
            .table_name(&self.table)
            .set_key(Some(self.layout.primary_key_of(item)));
        // An item that isn't a valid record may lack its stamp.
        let mut condition = Vec::new();
        for (native, name, value) in [
            ("owner", "#owner", ":owner"),
            ("version", "#version", ":version"),
        ] {
            delete = delete.expression_attribute_names(name, native);
            condition.push(match item.get(native) {
                None => format!("attribute_not_exists({name})"),
                Some(found) => {
                    delete = delete.expression_attribute_values(value, found.clone());
                    format!("{name} = {value}")
                }
            });
        }
        let delete = delete.condition_expression(condition.join(" AND "));
        match delete.send().await {
            Ok(_) => Ok(true),
            Err(error) => match error.as_service_error() {
                Some(DeleteItemError::ConditionalCheckFailedException(_)) => Ok(false),
                _ => {
                    let key = Key::from_stored(&shown.key);
                    Err(self.unavailable("delete", "dynamodb:DeleteItem", &key, error))
                }
            },
        }
    }

    fn stored(&self, item: Item) -> StoredRecord {
        StoredRecord {
            key: self.key_of(&item).unwrap_or_default(),
            record: self.layout.read(&item).map_err(|reason| UnreadableRecord {
                reason,
                raw: raw(&item),
            }),
            item,
        }
    }

    fn key_of(&self, item: &Item) -> Option<String> {
        let key = item.get(self.layout.key_name());
        key.and_then(|key| key.as_s().ok()).cloned()
    }
}

/// Returns an item as JSON.
fn raw(item: &Item) -> String {
    let json = serde_dynamo::from_item::<_, serde_json::Value>(item.clone());
    json.map_or_else(|_| format!("{item:?}"), |json| json.to_string())
}

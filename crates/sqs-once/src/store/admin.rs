//! Records as an operator sees them, with the command-line tool `sqs-once`.
//!
//! An operator holds no claim. So each change has the condition that the record is still as it was read.

use crate::{
    dynamo::item::Item,
    protocol::{Key, Record},
};

/// A record with its key, as read from the table.
#[derive(Clone, Debug)]
pub struct StoredRecord {
    /// The key as the table has it: hashed, if it is longer than a DynamoDB sort key may be.
    pub key: String,
    /// The record, or why the item is not a valid record.
    pub record: Result<Record, UnreadableRecord>,
    /// The item that the store has read, as the condition of a deletion.
    pub(crate) item: Item,
}

/// An item that is not a valid record.
#[derive(Clone, Debug)]
pub struct UnreadableRecord {
    /// Reason, with the attribute's name and without a value.
    pub reason: String,
    /// Its attributes as JSON, payload included.
    pub raw: String,
}

impl StoredRecord {
    /// Returns the name under which called systems know the current or next attempt. `None` if the record cannot be read.
    #[must_use]
    pub fn call_key(&self) -> Option<String> {
        let record = self.record.as_ref().ok()?;
        Some(Key::from_stored(&*self.key).call_key(record.generation))
    }
}

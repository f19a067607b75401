//! Records as an operator sees them, with the command-line tool `sqs-once`.
//!
//! An operator holds no claim. So each change has the condition that the record is still as it was read.

use std::{any::Any, sync::Arc};

use crate::protocol::{Key, Record};

/// A record with its key, as read from the table.
#[derive(Clone, Debug)]
pub struct StoredRecord {
    /// The key as the table has it: hashed, if it is longer than a DynamoDB sort key may be.
    pub key: String,
    /// The record, or why the item or row is not a valid record.
    pub record: Result<Record, UnreadableRecord>,
    /// Process id of the PostgreSQL session whose open transaction claims the record. `None` in
    /// DynamoDB, where a claim has a lease.
    pub locked_by: Option<i32>,
    /// The version that the store has read, as the condition of a change.
    pub version: Arc<dyn Any + Send + Sync>,
}

/// An item or a row that is not a valid record.
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

    /// Returns the version that the store has read, as the condition of a change. `None` if another kind of
    /// store read it.
    pub fn version<T: 'static>(&self) -> Option<&T> {
        self.version.downcast_ref()
    }
}

/// A page of records.
#[derive(Clone, Debug)]
pub struct RecordPage {
    /// Records of the page that pass the filter.
    pub records: Vec<StoredRecord>,
    /// Number of items or rows that were read to find them.
    pub read: usize,
    /// Read units that the page took. `None` in PostgreSQL.
    pub units: Option<f64>,
    /// Key after which the next page begins. `None` after the last page.
    pub next: Option<String>,
}

/// A status to list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordStatus {
    /// A worker holds a claim, or left one.
    InProgress,
    /// The operation is completed.
    Completed,
    /// The last attempt failed permanently.
    Failed,
}

/// Which records to list. Records past their retention are never listed.
#[derive(Clone, Debug, Default)]
pub struct RecordFilter {
    /// Only records with this status. `None`: all.
    pub status: Option<RecordStatus>,
    /// If true, only records whose lease has ended.
    pub expired_lease: bool,
    /// Only records whose key begins with this text.
    pub prefix: Option<String>,
}

//! [`MemoryStore`]: records in memory, for tests and for a first try without AWS.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use super::{RequestContext, Store, StoreError, Swapped};
use crate::protocol::{Key, Record, Swap};

/// Records in the process's memory. Clones share their records.
///
/// Use this [`Store`] only in tests. The records are lost when the process ends, and other processes do not see them.
///
/// ```
/// use sqs_once::store::MemoryStore;
///
/// let store = MemoryStore::default();
/// assert!(store.is_empty());
/// ```
#[derive(Clone, Debug, Default)]
pub struct MemoryStore {
    records: Arc<Mutex<HashMap<Key, Record>>>,
}

impl MemoryStore {
    /// Returns the record of a key.
    #[must_use]
    pub fn record(&self, key: &Key) -> Option<Record> {
        self.records().get(key).cloned()
    }

    /// Replaces or deletes the record of a key, as an operator or DynamoDB's TTL would.
    pub fn put(&self, key: &Key, record: Option<Record>) {
        match record {
            Some(record) => self.records().insert(key.clone(), record),
            None => self.records().remove(key),
        };
    }

    /// Returns the number of records, including expired ones, which the store never deletes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.records().len()
    }

    /// Returns whether there are no records.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.records().is_empty()
    }

    /// Applies a swap.
    pub fn apply(&self, swap: &Swap) -> Swapped {
        let mut records = self.records();
        let record = records.get(&swap.key);
        if !swap.admits(record) {
            return Swapped::Found(record.cloned());
        }
        records.insert(swap.key.clone(), swap.to.clone());
        Swapped::Applied
    }

    /// Locks the records. No panic can interrupt a write, so a poisoned lock is harmless.
    fn records(&self) -> MutexGuard<'_, HashMap<Key, Record>> {
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Store for MemoryStore {
    type With = ();

    async fn get(&self, key: &Key, _: &RequestContext) -> Result<Option<Record>, StoreError> {
        Ok(self.record(key))
    }

    async fn swap(&self, swap: &Swap, (): &(), _: &RequestContext) -> Result<Swapped, StoreError> {
        Ok(self.apply(swap))
    }
}

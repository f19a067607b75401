//! [`MemoryStore`]: records in memory, for tests and for a first try without AWS.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use super::{ClaimResponse, RequestContext, SettleResponse, Store, StoreError};
use crate::protocol::{
    ClaimRequest, FencingToken, Key, Record, Settlement, Timestamp,
    decision::{may_claim, may_settle},
};

/// Records in the memory of the process. Clones share their records.
///
/// Use this [`Store`] in tests only. The records are lost when the process ends, and other
/// processes do not see them.
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
    pub fn get(&self, key: &Key) -> Option<Record> {
        self.records().get(key).cloned()
    }

    /// Deletes and returns the record of a key, as DynamoDB's TTL or an operator would.
    pub fn remove(&self, key: &Key) -> Option<Record> {
        self.records().remove(key)
    }

    /// Replaces the record of a key, as an operator would.
    #[cfg(feature = "simulation")]
    pub fn put(&self, key: Key, record: Record) {
        self.records().insert(key, record);
    }

    /// Returns the number of records, including expired ones. The store never deletes expired
    /// records.
    #[must_use]
    pub fn len(&self) -> usize {
        self.records().len()
    }

    /// Returns whether there are no records.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.records().is_empty()
    }

    /// Locks the records. No panic can interrupt a write, so a poisoned lock is harmless.
    fn records(&self) -> MutexGuard<'_, HashMap<Key, Record>> {
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Store for MemoryStore {
    async fn claim(
        &self,
        request: &ClaimRequest,
        _: &RequestContext,
    ) -> Result<ClaimResponse, StoreError> {
        let mut records = self.records();
        let record = records.get(&request.key);
        if !may_claim(record, request)
            && let Some(record) = record
        {
            return Ok(ClaimResponse::ConditionFailed(record.clone()));
        }
        let replaced = records
            .remove(&request.key)
            .filter(|record| !record.is_expired(request.now));
        records.insert(request.key.clone(), request.record(replaced.as_ref()));
        Ok(ClaimResponse::Applied { replaced })
    }

    async fn settle(
        &self,
        fence: &FencingToken,
        settlement: &Settlement,
        now: Timestamp,
        _: &RequestContext,
    ) -> Result<SettleResponse, StoreError> {
        let mut records = self.records();
        let record = records.get(&fence.key);
        if !may_settle(record, fence) {
            return Ok(SettleResponse::ConditionFailed(record.cloned()));
        }
        match record.and_then(|record| settlement.apply(record, now)) {
            Some(settled) => records.insert(fence.key.clone(), settled),
            None => records.remove(&fence.key),
        };
        Ok(SettleResponse::Applied)
    }
}

//! [`Plans`]: records the writes that handlers plan instead of sending them.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use aws_sdk_dynamodb::types::TransactWriteItem;
use serde::de::DeserializeOwned;

use crate::{
    dynamo::{
        condition_failed::{ConditionFailed, FailedWrite},
        item::Item,
        write::{Write, table},
        writes::{Refused, Writes},
    },
    modes::{Operation, Outcome, item::Kind},
    protocol::{Claim, Key, Owner, Record, StoredResult, Swap, Timestamp},
    store::{MemoryStore, RequestContext, Store, StoreError, Swapped},
};

/// A write that a handler planned and that a real mode would have sent.
///
/// `DryRun::writes` returns these.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct PlannedWrite {
    /// The [`Write`]'s label.
    pub label: Option<String>,
    /// The table.
    pub table: String,
    /// The write in the SDK's type: a put, update, delete or condition check.
    pub action: TransactWriteItem,
}

impl PlannedWrite {
    /// Returns a put's item as a `T`, or `None` if the write is not a put, or the item is not a `T`.
    ///
    /// ```
    /// use sqs_once::testing::{DryRun, Message};
    /// use sqs_once::{Attempt, Done, Failure, Write, handler_fn};
    ///
    /// async fn register(user: String, _: Attempt) -> Result<Done<()>, Failure> {
    ///     Ok(Done::new(()).with(Write::put("users", serde_json::json!({ "id": user }))))
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// let dry_run = DryRun::new();
    /// dry_run.run(&handler_fn(register), Message::new("m-1", &"ada")).await;
    /// let item: serde_json::Value = dry_run.writes()[0].put_item().unwrap();
    /// assert_eq!(item["id"], "ada");
    /// # }
    /// ```
    #[must_use]
    pub fn put_item<T: DeserializeOwned>(&self) -> Option<T> {
        let item = self.action.put()?.item().clone();
        serde_dynamo::from_item(item).ok()
    }
}

/// The planned writes, and the conditions that should fail.
#[derive(Clone, Debug, Default)]
pub struct Plans {
    records: MemoryStore,
    state: Arc<Mutex<PlansState>>,
}

#[derive(Debug, Default)]
struct PlansState {
    writes: Vec<PlannedWrite>,
    failing: VecDeque<(String, Option<Item>)>,
    items: HashMap<String, Vec<Item>>,
    /// Operations that have made their change.
    changed: HashSet<Key>,
}

impl Plans {
    /// Returns the writes so far.
    #[must_use]
    pub fn writes(&self) -> Vec<PlannedWrite> {
        self.state().writes.clone()
    }

    /// Makes the condition of the next write with the label `name` fail. If a write has no label, `name` is the name of its
    /// table.
    pub fn fail_condition(&self, name: String, item: Option<Item>) {
        self.state().failing.push_back((name, item));
    }

    /// Replaces the record with that of a worker that claimed the operation long ago and crashed.
    pub fn interrupt(&self, operation: &Operation) {
        const HOUR: u64 = 3600;
        let now = Timestamp::now();
        let quarantine = operation.quarantine.unwrap_or_default().as_millis();
        let quarantine = u64::try_from(quarantine).unwrap_or(u64::MAX);
        let before = quarantine.saturating_add(HOUR * 1000);
        let at = Timestamp::from_millis(now.as_millis().saturating_sub(before));
        let message_id = operation.delivery.message_id();
        let expires_at = now.as_secs() + HOUR;
        let mut claim = Claim::new(Owner::fresh(), message_id, at, at, expires_at);
        claim.fingerprint.clone_from(&operation.fingerprint);
        let record = Record::claimed(&claim, 1, None, None);
        self.records.put(&operation.key, Some(record));
    }

    /// Stores an item that changes may read.
    pub fn keep(&self, table: String, item: Item) {
        self.state().items.entry(table).or_default().push(item);
    }

    /// Returns the most recently stored item with these attributes.
    fn item(&self, table: &str, key: &Item) -> Option<Item> {
        let state = self.state();
        let mut items = state.items.get(table)?.iter().rev();
        let has = |item: &&Item| {
            key.iter()
                .all(|(name, value)| item.get(name) == Some(value))
        };
        items.find(has).cloned()
    }

    /// Records the writes, unless one of their conditions should fail.
    fn write(&self, writes: &[&Write<TransactWriteItem>]) -> Result<(), Refused> {
        let mut state = self.state();
        let mut failed = Vec::new();
        for (index, write) in writes.iter().enumerate() {
            let table = table(&write.action);
            let name = write.label.as_deref().unwrap_or(table);
            let place = (state.failing.iter()).position(|(failed, _)| failed == name);
            if let Some((_, item)) = place.and_then(|place| state.failing.remove(place)) {
                failed.push(FailedWrite {
                    index,
                    label: write.label.clone(),
                    table: table.to_owned(),
                    item,
                });
            }
        }
        if !failed.is_empty() {
            return Err(Refused::Conditions(ConditionFailed::new(failed)));
        }
        state.writes.extend(writes.iter().map(|write| PlannedWrite {
            label: write.label.as_deref().map(str::to_owned),
            table: table(&write.action).to_owned(),
            action: write.action.clone(),
        }));
        Ok(())
    }

    /// Records a change, unless the operation has already made one.
    pub(super) fn change(&self, key: &Key, kind: Kind) -> Result<Outcome, Refused> {
        if self.state().changed.contains(key) {
            return Ok(Outcome::Duplicate(StoredResult::Omitted(
                "the item keeps the key and no result".into(),
            )));
        }
        let (write, result) = match kind.plan(|table, key| self.item(table, key)) {
            Ok(planned) => planned,
            Err(failure) => return Ok(failure.into()),
        };
        self.write(&[&write])?;
        self.state().changed.insert(key.clone());
        Ok(Outcome::Completed(result))
    }

    fn state(&self) -> MutexGuard<'_, PlansState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Store for Plans {
    type With = Writes;

    async fn get(&self, key: &Key, context: &RequestContext) -> Result<Option<Record>, StoreError> {
        self.records.get(key, context).await
    }

    /// Checks the record's condition first, then those of the writes.
    async fn swap(
        &self,
        swap: &Swap,
        with: &Writes,
        _: &RequestContext,
    ) -> Result<Swapped<Refused>, StoreError> {
        let record = self.records.record(&swap.key);
        if !swap.admits(record.as_ref()) {
            return Ok(Swapped::Found(record));
        }
        let puts = with.puts(swap, Some("outbox"))?;
        match self.write(&with.all(&puts)) {
            Ok(()) => Ok(self.records.apply(swap).widened()),
            Err(refused) => Ok(Swapped::Refused(refused)),
        }
    }
}

//! [`ChangeWriter`]: writes a change, and finds out whether the operation was completed before.

use std::panic::{AssertUnwindSafe, catch_unwind};

use aws_sdk_dynamodb::types::{ConditionCheck, Put, Update};

use super::{
    OnItem,
    change::{Change, Kind, Modify, OTHER_ITEM},
    processed_keys::{Lookup, ProcessedKeys},
    send::Sent,
    version::Unchanged,
};
use crate::{
    declined::{Declined, DeclinedAnswer},
    item::Item,
    refused::{Refused, RefusedWrite},
    write::{Action, Write},
};
use sqs_once_core::{
    deadline::Deadline,
    meter::Meter,
    once::{Outcome, repeat::RetryPauses},
    protocol::{Fingerprint, Key, StoredResult},
};

/// Maximum number of retries after other workers changed the item between read and write.
const MAX_COLLISIONS: usize = 20;

/// Writes the changes of one operation.
pub(super) struct ChangeWriter<'a> {
    pub(super) on_item: &'a OnItem,
    pub(super) key: &'a Key,
    /// `None` if payloads are not compared.
    pub(super) fingerprint: Option<Fingerprint>,
    pub(super) deadline: Deadline,
    pub(super) meter: Meter,
}

/// An outcome, or the reason why nothing was written.
type WriteResult = Result<Outcome, Declined>;

impl ChangeWriter<'_> {
    /// Writes a change. After the first round, the change must apply to the `item` of the first.
    pub(super) async fn write<O>(
        &self,
        round: usize,
        change: Change<O>,
        item: Option<&(String, Item)>,
    ) -> Result<Outcome, DeclinedAnswer<Change<O>>> {
        if round > 0 && item.is_none_or(|item| !change.kind.applies_to(item)) {
            return Ok(Outcome::PermanentFailure(OTHER_ITEM.into()));
        }
        let written = match change.kind {
            Kind::Create { put, key, result } => self.create(put, &key, result).await,
            Kind::Update { update, result } => self.update(update, result).await,
            Kind::Modify { target, modify } => self.modify(target, modify).await,
        };
        written.map_err(|declined| DeclinedAnswer {
            declined,
            on_refused: change.on_refused,
        })
    }

    fn processed_keys(&self) -> ProcessedKeys<'_> {
        ProcessedKeys {
            key: self.key,
            now: (self.on_item.clock)(),
            retention: self.on_item.retention,
            fingerprint: self.fingerprint.as_ref(),
        }
    }

    async fn create(&self, put: Write<Put>, key: &str, result: StoredResult) -> WriteResult {
        let keys = self.processed_keys();
        let put = serializable(put)?;
        if !put.action.item.contains_key(key) {
            return Err(Declined::Invalid(format!(
                "the item to create lacks the primary key attribute `{key}`; nothing was written"
            )));
        }
        let mut put = keys.compose_create(put, key);
        put = put.return_item();
        let sent = self.put(&put.action).await;
        self.changed(&keys, sent, &put, result)
    }

    async fn update(&self, update: Write<Update>, result: StoredResult) -> WriteResult {
        let update = serializable(update)?;
        for _ in 0..=MAX_COLLISIONS {
            let keys = self.processed_keys();
            let mut found = None;
            if keys.reads_before_update() {
                let (table, key) = (&update.action.table_name, &update.action.key);
                found = match self.read(table, key, Some(ProcessedKeys::PROJECTION)).await {
                    Ok(found) => found,
                    Err(outcome) => return Ok(outcome),
                };
                check_processed_keys(found.as_ref())?;
                if let Some(known) = known_outcome(&keys, found.as_ref()) {
                    return Ok(known);
                }
            }
            let facts = keys.update_facts(found.as_ref());
            let mut write = keys.compose(update.clone(), &facts);
            write = write.return_item();
            let sent = self.update_item(&write.action).await;
            if let Sent::Refused { item, .. } = &sent
                && keys.reads_before_update()
                && !keys.facts_hold(&facts, item.as_ref())
                && known_outcome(&keys, item.as_ref()).is_none()
            {
                // Another worker changed the processed keys meanwhile.
                continue;
            }
            return self.changed(&keys, sent, &write, result);
        }
        Ok(contended(update.table()))
    }

    async fn modify(&self, target: Write<ConditionCheck>, mut modify: Modify) -> WriteResult {
        let target = serializable(target)?.action;
        let (table, key) = (&target.table_name, &target.key);
        let Some(key_name) = key.keys().next() else {
            return Err(Declined::Invalid(
                "the change has no primary key; nothing was written".into(),
            ));
        };
        let mut pauses = RetryPauses::until(self.deadline.stop());
        let mut found = match self.read(table, key, None).await {
            Ok(found) => found,
            Err(outcome) => return Ok(outcome),
        };
        for _ in 0..=MAX_COLLISIONS {
            let keys = self.processed_keys();
            check_processed_keys(found.as_ref())?;
            if let Some(known) = known_outcome(&keys, found.as_ref()) {
                return Ok(known);
            }
            let modified = catch_unwind(AssertUnwindSafe(|| modify(found.as_ref())));
            let (mut item, result) = match modified {
                Ok(Ok(modified)) => modified,
                Ok(Err(failure)) => return Ok(failure.into()),
                Err(_panic) => return Ok(Outcome::Panicked),
            };
            let unchanged = Unchanged::since(found.as_ref()).map_err(Declined::Invalid)?;
            item.extend(key.clone());
            keys.copy(found.as_ref(), &mut item);
            keys.insert(&mut item);
            let mut put = unchanged.put(table, key_name, item);
            if let Some(found) = &found {
                put = keys.compose_unchanged(put, found);
            }
            put = put.return_item();
            match self.put(&put.action).await {
                // An earlier copy of the request that arrives later fails its version condition.
                Sent::Refused { item, .. } if known_outcome(&keys, item.as_ref()).is_none() => {
                    found = item;
                }
                sent => return self.changed(&keys, sent, &put, result),
            }
            if !pauses.pause().await {
                break;
            }
        }
        Ok(contended(table))
    }

    /// Interprets the result of sending a change.
    fn changed<A: Action>(
        &self,
        keys: &ProcessedKeys<'_>,
        sent: Sent,
        write: &Write<A>,
        result: StoredResult,
    ) -> WriteResult {
        match sent {
            Sent::Applied => Ok(Outcome::Completed(result)),
            Sent::Refused { item, unanswered } => {
                if let Some(known) = known_outcome(keys, item.as_ref()) {
                    return Ok(known);
                }
                if let Some(error) = unanswered {
                    // The earlier copy may still arrive, and its condition may then be met.
                    return Ok(Outcome::commit_unknown(error));
                }
                check_processed_keys(item.as_ref())?;
                Err(Declined::Conditions(Refused::new(vec![RefusedWrite {
                    index: 0,
                    label: write.label.clone(),
                    table: write.table().to_owned(),
                    item,
                }])))
            }
            Sent::Invalid(why) => Err(Declined::Invalid(why)),
            Sent::Contended(why) => Ok(Outcome::RetryableFailure(why)),
            Sent::Unknown(error) => Ok(Outcome::commit_unknown(error)),
            Sent::Unwritten(error) => Ok(Outcome::store_unavailable(error)),
        }
    }
}

/// Returns the write, if all its values could be serialized.
fn serializable<A>(write: Write<A>) -> Result<Write<A>, Declined> {
    match write.fault {
        Some(error) => Err(Declined::Invalid(format!("{error}; nothing was written"))),
        None => Ok(write),
    }
}

/// Checks that the item's processed keys are readable.
fn check_processed_keys(item: Option<&Item>) -> Result<(), Declined> {
    match item.and_then(ProcessedKeys::type_error) {
        Some(error) => Err(Declined::Invalid(error)),
        None => Ok(()),
    }
}

/// Returns the outcome of an operation whose key is on the item.
fn known_outcome(keys: &ProcessedKeys<'_>, item: Option<&Item>) -> Option<Outcome> {
    match keys.lookup(item?) {
        Lookup::Absent => None,
        Lookup::Processed => Some(Outcome::Duplicate(StoredResult::Omitted(
            "an item stores keys and no results".into(),
        ))),
        Lookup::OtherPayload => Some(Outcome::KeyReused),
    }
}

fn contended(table: &str) -> Outcome {
    Outcome::RetryableFailure(format!(
        "other workers changed the item of table `{table}` before each write"
    ))
}

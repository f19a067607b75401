//! [`ChangeWriter`]: writes a change, and finds out whether the operation was already completed.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    time::Duration,
};

use aws_sdk_dynamodb::types::{ConditionCheck, Put, Update};

use super::{
    change::{Kind, Modify},
    processed_keys::{ProcessedKeys, are_same, unchanged},
    send::{ItemRequests, SentChange},
    version::Unchanged,
};
use crate::{
    dynamo::{
        condition_failed::{ConditionFailed, FailedWrite},
        item::Item,
        write::{Action, Write},
        writes::Refused,
    },
    modes::{Outcome, repeat::RetryPauses},
    protocol::{StoredResult, Timestamp},
};

/// Maximum number of retries after other workers changed the item between read and write.
const MAX_COLLISIONS: usize = 20;

/// Writes the changes of one operation.
pub(super) struct ChangeWriter<'a> {
    pub(super) requests: ItemRequests<'a>,
    pub(super) retention: Duration,
    pub(super) clock: fn() -> Timestamp,
}

/// An outcome, or why nothing was written.
type WriteResult = Result<Outcome, Refused>;

impl ChangeWriter<'_> {
    pub(super) async fn write(&self, kind: Kind) -> WriteResult {
        match kind {
            Kind::Create { put, key, result } => self.create(put, &key, result).await,
            Kind::Update { update, result } => self.update(update, result).await,
            Kind::Modify { target, modify } => self.modify(target, modify).await,
        }
    }

    fn processed_keys(&self) -> ProcessedKeys<'_> {
        ProcessedKeys {
            key: self.requests.key,
            now: (self.clock)(),
            retention: self.retention,
        }
    }

    async fn create(&self, put: Write<Put>, key: &str, result: StoredResult) -> WriteResult {
        let keys = self.processed_keys();
        let put = serializable(put)?;
        if !put.action.item.contains_key(key) {
            return Err(Refused::Invalid(format!(
                "the item to create lacks the primary key attribute `{key}`; nothing was written"
            )));
        }
        let put = keys.compose_create(put, key).return_item();
        let sent = self.requests.put(&put.action).await;
        self.changed(&keys, sent, &put, result)
    }

    async fn update(&self, update: Write<Update>, result: StoredResult) -> WriteResult {
        let update = serializable(update)?;
        let mut outdated = None;
        for _ in 0..=MAX_COLLISIONS {
            let keys = self.processed_keys();
            let write = keys.compose(update.clone(), outdated.as_ref());
            let write = write.return_item();
            let failed_on_keys = |item: &Item| match &outdated {
                None => keys.is_outdated(item),
                Some(found) => !are_same(found, item),
            };
            match self.requests.update_item(&write.action).await {
                // After an unanswered copy, we don't retry here: the next delivery finds out whether it was applied.
                SentChange::ConditionFailed {
                    item: Some(item),
                    unanswered: None,
                } if !keys.has_key(&item) && failed_on_keys(&item) => {
                    outdated = Some(item).filter(|item| keys.is_outdated(item));
                }
                SentChange::Invalid(why) if why.contains("can only be used once") => {
                    return Err(Refused::Invalid(format!(
                        "{why}: a SET clause must be the first clause of a change's update expression"
                    )));
                }
                sent => return self.changed(&keys, sent, &write, result),
            }
        }
        Ok(contended(update.table()))
    }

    async fn modify(&self, target: Write<ConditionCheck>, mut modify: Modify) -> WriteResult {
        let target = serializable(target)?.action;
        let (table, key) = (&target.table_name, &target.key);
        let Some(key_name) = key.keys().next() else {
            return Err(Refused::Invalid(
                "the change has no primary key; nothing was written".into(),
            ));
        };
        let mut pauses = RetryPauses::until(self.requests.deadline.handler_cutoff());
        let mut found = match self.requests.read(table, key).await {
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
            let version = Unchanged::since(found.as_ref()).map_err(Refused::Invalid)?;
            item.extend(key.clone());
            keys.insert(found.as_ref(), &mut item);
            let mut put = version.put(table, key_name, item).return_item();
            // A concurrent update changes the keys but not the version.
            if let Some(found) = &found {
                put = unchanged(put, found);
            }
            match self.requests.put(&put.action).await {
                // If an earlier copy of the request arrives later, its version condition fails.
                SentChange::ConditionFailed { item, .. }
                    if known_outcome(&keys, item.as_ref()).is_none() =>
                {
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
        sent: SentChange,
        write: &Write<A>,
        result: StoredResult,
    ) -> WriteResult {
        match sent {
            SentChange::Applied => Ok(Outcome::Completed(result)),
            SentChange::ConditionFailed { item, unanswered } => {
                if let Some(known) = known_outcome(keys, item.as_ref()) {
                    return Ok(known);
                }
                if let Some(error) = unanswered {
                    // The earlier copy may still arrive, and then its condition may be met.
                    return Ok(Outcome::commit_unknown(error));
                }
                check_processed_keys(item.as_ref())?;
                Err(Refused::Conditions(ConditionFailed::new(vec![
                    FailedWrite {
                        index: 0,
                        label: write.label.clone(),
                        table: write.table().to_owned(),
                        item,
                    },
                ])))
            }
            SentChange::Invalid(why) => Err(Refused::Invalid(why)),
            SentChange::Contended(why) => Ok(Outcome::RetryableFailure(why.into())),
            SentChange::Unknown(error) => Ok(Outcome::commit_unknown(error)),
            SentChange::Unwritten(error) => Ok(Outcome::store_unavailable(error)),
        }
    }
}

/// Returns the write, if all its values could be serialized.
fn serializable<A>(write: Write<A>) -> Result<Write<A>, Refused> {
    match write.fault {
        Some(error) => Err(Refused::Invalid(format!("{error}; nothing was written"))),
        None => Ok(write),
    }
}

fn check_processed_keys(item: Option<&Item>) -> Result<(), Refused> {
    match item.and_then(ProcessedKeys::type_error) {
        Some(error) => Err(Refused::Invalid(error)),
        None => Ok(()),
    }
}

/// Returns the outcome of an operation whose key is on the item.
fn known_outcome(keys: &ProcessedKeys<'_>, item: Option<&Item>) -> Option<Outcome> {
    keys.has_key(item?).then(|| {
        Outcome::Duplicate(StoredResult::Omitted(
            "an item stores keys and no results".into(),
        ))
    })
}

fn contended(table: &str) -> Outcome {
    let why = format!("other workers changed the item of table `{table}` before each write");
    Outcome::RetryableFailure(why.into())
}

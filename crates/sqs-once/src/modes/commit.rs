//! Commits a handler's writes together with a record.

use std::sync::OnceLock;

use aws_sdk_dynamodb::types::TransactWriteItem;

use crate::{
    dynamo::{
        done::WriteSet,
        outbox,
        transactional::{Commit, CommitResponse, TransactionalStore},
        write::Write,
    },
    event::{Event, Published},
    flawed::flawed,
    modes::{
        Outcome,
        not_written::NotWritten,
        records::Records,
        repeat::{Answered, Effort, GivenUp, repeat},
    },
    protocol::{Key, Record, Swap},
    store::StoreError,
};

/// The response to a commit.
pub(crate) enum Committed {
    Applied,
    /// The record differs from what was expected. Holds it, or `None` if there is no record.
    Found(Option<Record>),
    /// Condition checks of the writes failed, or the writes are invalid. Nothing was written.
    NotWritten(NotWritten),
    /// DynamoDB did not respond, so the commit may have been applied.
    Unknown(Outcome),
    /// The commit was denied, or contention lasted until the deadline. Nothing was written.
    Unwritten(StoreError),
}

/// Commits writes and events with a record.
///
/// `round` counts the contents that this attempt sends. Together with the owner, it makes the `ClientRequestToken` unique.
pub(crate) async fn commit<S: TransactionalStore>(
    records: &Records<S>,
    round: usize,
    record: Swap,
    effects: WriteSet,
    effort: &Effort,
) -> Committed {
    let (store, key) = (&records.store, record.key.clone());
    // 32 characters and the round, at most 35 in total.
    let token = format!("{}{round:x}", record.to.stamp.owner);
    let WriteSet { mut writes, events } = effects;
    match puts(records, &key, &token, events) {
        Ok(puts) => writes.extend(puts),
        Err(error) => return Committed::Unwritten(error),
    }
    let commit = Commit {
        record,
        writes,
        token,
        sent: OnceLock::new(),
    };
    // Each copy is the same transaction, so DynamoDB applies it once.
    let send = || store.commit(&commit, effort.context());
    match repeat(effort, "commit", &key, send).await {
        Ok(Answered { answer, .. }) => match answer {
            CommitResponse::Applied => Committed::Applied,
            CommitResponse::Found(record) => Committed::Found(record),
            CommitResponse::Cancelled(failed) => {
                Committed::NotWritten(NotWritten::Conditions(failed))
            }
            CommitResponse::Invalid(why) => Committed::NotWritten(NotWritten::Invalid(why)),
        },
        Err(GivenUp {
            error,
            may_have_been_applied,
        }) => match error {
            error @ StoreError::ItemTooLarge { .. } => {
                Committed::NotWritten(NotWritten::Invalid(error.to_string()))
            }
            error if may_have_been_applied => Committed::Unknown(Outcome::commit_unknown(error)),
            error => Committed::Unwritten(error),
        },
    }
}

/// Builds the puts of events into the outbox. If the handler replaces its writes after a failed condition,
/// the events keep their ids.
fn puts<S>(
    records: &Records<S>,
    key: &Key,
    commit: &str,
    events: Vec<Event>,
) -> Result<Vec<Write<TransactWriteItem>>, StoreError> {
    if events.is_empty() || flawed("a commit leaves out its events") {
        return Ok(Vec::new());
    }
    let table = records.outbox.as_deref().ok_or_else(|| StoreError::Rejected {
        action: "commit",
        key: key.to_string(),
        reason: "the handler publishes an event, and no outbox is set: set OUTBOX_TABLE_NAME, or call `Once::outbox`".to_owned(),
    })?;
    let publish = |(index, event)| Published::new(key, index, event);
    let published = events.into_iter().enumerate().map(publish).collect();
    let puts = outbox::puts(table, published, records.now(), commit);
    Ok(puts.into_iter().map(Write::into_item).collect())
}

//! Commits a handler's writes together with a record.

use std::sync::OnceLock;

use aws_sdk_dynamodb::types::TransactWriteItem;

use super::{
    Outcome,
    repeat::{Answered, GivenUp, repeat},
    work::Declined,
};
use crate::{
    deadline::Deadline,
    dynamodb::write::Write,
    protocol::{Owner, Record},
    store::{Commit, CommitAnswer, RecordWrite, StoreError, TransactionalStore},
};

/// The answer to a commit.
pub(super) enum Committed {
    Applied,
    /// The record's condition check failed. Holds the record, or `None` if no record exists.
    Refused(Option<Record>),
    /// Condition checks of the writes failed, or the writes are invalid. Nothing was written.
    Declined(Declined),
    /// DynamoDB did not answer, so the commit may have been applied.
    Unknown(Outcome),
    /// The commit was rejected, or contention lasted until the deadline. Nothing was written.
    Unwritten(StoreError),
}

/// Commits writes with a record.
///
/// `round` counts the handler's answers in one attempt. With the owner, it makes the
/// `ClientRequestToken` unique.
pub(super) async fn commit<S: TransactionalStore>(
    store: &S,
    owner: &Owner,
    round: usize,
    record: RecordWrite,
    writes: Vec<Write<TransactWriteItem>>,
    deadline: Deadline,
) -> Committed {
    let key = record.key().clone();
    let commit = Commit {
        record,
        writes,
        // 32 characters and the round: at most 35.
        token: format!("{owner}{round:x}"),
        sent: OnceLock::new(),
        sent_over: OnceLock::new(),
    };
    // Each retry sends the same transaction, which DynamoDB applies once.
    match repeat(deadline.end(), "commit", &key, || store.commit(&commit)).await {
        Ok(Answered { answer, .. }) => match answer {
            CommitAnswer::Applied => Committed::Applied,
            CommitAnswer::Refused(record) => Committed::Refused(record),
            CommitAnswer::Cancelled(refused) => Committed::Declined(Declined::Conditions(refused)),
            CommitAnswer::Invalid(why) => Committed::Declined(Declined::Invalid(why)),
        },
        Err(GivenUp {
            error,
            may_have_been_applied,
        }) => match error {
            error @ StoreError::ItemTooLarge { .. } => {
                Committed::Declined(Declined::Invalid(error.to_string()))
            }
            error if may_have_been_applied => Committed::Unknown(Outcome::commit_unknown(error)),
            error => Committed::Unwritten(error),
        },
    }
}

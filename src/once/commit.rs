//! Commits writes together with a record.

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
    /// The condition on the record is not met by this record.
    Refused(Option<Record>),
    /// Conditions of the writes are not met, or the writes are invalid. Nothing was written.
    Declined(Declined),
    /// DynamoDB did not answer.
    Unknown(Outcome),
    /// The commit was rejected, or met contention until no time was left. Nothing was written.
    Unwritten(StoreError),
}

/// Commits writes with a record. `round` separates the answers of one attempt, which have one owner.
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
        // 32 characters and the round: 35 at most.
        token: format!("{owner}{round:x}"),
        sent: OnceLock::new(),
        sent_over: OnceLock::new(),
    };
    // Each repetition is the same transaction, which DynamoDB applies once.
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

//! Sending a commit until it is clear what became of it.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, OnceLock},
    time::Duration,
};

use aws_sdk_dynamodb::types::TransactWriteItem;
use tokio::time::{Instant, sleep, timeout_at};

use super::{Outcome, mode::Ended};
use crate::{
    deadline::Deadline,
    dynamodb::{refused::Refused, write::Write},
    handler::{Failure, OnRefused},
    protocol::{Key, Owner, Record, StoredResult},
    store::{Commit, CommitAnswer, RecordWrite, StoreError, TransactionalStore},
};

/// The answer to a commit.
pub(super) enum Committed {
    Applied,
    /// By the record.
    Refused(Option<Record>),
    /// By other conditions, or because it can never be. Nothing was written.
    Declined(Declined),
    /// No answer came.
    Unknown(Outcome),
    /// It was rejected, or met contention until no time was left. Nothing was written.
    Unwritten(StoreError),
}

/// Why nothing was written.
pub(super) enum Declined {
    Conditions(Refused),
    Invalid(String),
}

/// Commits writes with a record. `round` tells apart the plans of one owner.
pub(super) async fn commit<S: TransactionalStore>(
    store: &S,
    owner: &Owner,
    round: usize,
    record: RecordWrite,
    writes: Vec<Write<TransactWriteItem>>,
    deadline: Deadline,
) -> Committed {
    let key = record.key().to_string();
    let commit = Commit {
        record,
        writes,
        // 32 characters and the round: 35 at most.
        token: format!("{owner}{round:x}"),
        sent: OnceLock::new(),
        sent_over: OnceLock::new(),
    };
    let mut backoff = Backoff::until(deadline.end());
    let mut unanswered = false;
    // The answer to the attempt before: contention, where the last attempt is cut off.
    let mut before = None;
    loop {
        match timeout_at(deadline.end(), store.commit(&commit)).await {
            Ok(Ok(CommitAnswer::Applied)) => return Committed::Applied,
            Ok(Ok(CommitAnswer::Refused(record))) => return Committed::Refused(record),
            Ok(Ok(CommitAnswer::Cancelled(refused))) => {
                return Committed::Declined(Declined::Conditions(refused));
            }
            Ok(Ok(CommitAnswer::Invalid(why))) => {
                return Committed::Declined(Declined::Invalid(why));
            }
            Ok(Err(error @ StoreError::ItemTooLarge { .. })) => {
                return Committed::Declined(Declined::Invalid(error.to_string()));
            }
            Ok(Ok(CommitAnswer::Contended(reason))) => {
                let error = StoreError::Rejected {
                    action: "commit",
                    key: key.clone(),
                    reason,
                };
                if !backoff.pause().await {
                    return given_up(error, unanswered);
                }
                before = Some(error);
            }
            // The same transaction again: if this one was applied, it is not applied twice.
            Ok(Err(error)) => {
                unanswered |= error.may_have_been_applied();
                if !(error.may_pass() && backoff.pause().await) {
                    return given_up(error, unanswered);
                }
                before = Some(error);
            }
            Err(_elapsed) => {
                let error = before.unwrap_or_else(|| StoreError::OutOfTime {
                    action: "commit",
                    key,
                });
                return Committed::Unknown(Outcome::CommitUnknown(Arc::new(error)));
            }
        }
    }
}

fn given_up(error: StoreError, unanswered: bool) -> Committed {
    if unanswered {
        Committed::Unknown(Outcome::CommitUnknown(Arc::new(error)))
    } else {
        Committed::Unwritten(error)
    }
}

/// Asks the handler what it means that nothing was written.
pub(super) fn decide<T>(declined: Declined, on_refused: Option<OnRefused<T>>) -> Ended<T> {
    let (refused, decide) = match (declined, on_refused) {
        (Declined::Conditions(refused), Some(decide)) => (refused, decide),
        (Declined::Conditions(refused), None) => {
            return Ended::Failed(Failure::permanent(refused.to_string()));
        }
        (Declined::Invalid(why), _) => return Ended::Failed(Failure::permanent(why)),
    };
    match catch_unwind(AssertUnwindSafe(|| decide(&refused))) {
        Ok(Ok(answer)) => Ended::Well(answer),
        Ok(Err(failure)) => Ended::Failed(failure),
        Err(_panic) => Ended::Panicked,
    }
}

/// Pauses between attempts at one request: a random time up to 20 ms at first, doubled each time,
/// up to a second.
///
/// No pause is longer than half of the time left. So when the contention ends 100 ms before the
/// time does, an attempt follows in which the request can succeed.
pub(super) struct Backoff {
    longest: Duration,
    until: Instant,
}

/// With less time left, no further attempt can succeed.
const TOO_LATE: Duration = Duration::from_millis(10);

impl Backoff {
    pub(super) fn until(until: Instant) -> Self {
        Self {
            longest: Duration::from_millis(20),
            until,
        }
    }

    /// Pauses. Returns false where no time is left for another attempt.
    pub(super) async fn pause(&mut self) -> bool {
        let left = self.until.saturating_duration_since(Instant::now());
        if left <= TOO_LATE {
            return false;
        }
        let pause = self
            .longest
            .mul_f64(crate::system::random_fraction())
            .min(left / 2);
        sleep(pause).await;
        self.longest = (self.longest * 2).min(Duration::from_secs(1));
        true
    }
}

/// Says that a result is too large to keep.
pub(super) fn note_omitted(key: &Key, result: &StoredResult) {
    if let StoredResult::Omitted(why) = result {
        tracing::warn!(%key, result_omitted = why, "the result is not kept");
    }
}

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
    Deadline, Failure,
    handler::OnRefused,
    protocol::{Key, Owner, Record, StoredResult},
    store::{Commit, CommitAnswer, RecordWrite, Refused, StoreError, TransactionalStore, Write},
};

/// What became of a commit.
pub(super) enum Committed {
    Applied,
    /// By the record.
    Refused(Option<Record>),
    /// By other conditions, or because it can never be. Nothing was written.
    Declined(Declined),
    /// Nobody knows, or it collided until time was up.
    Unknown(Outcome),
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
        // 32 characters and the round: 36 at most.
        token: format!("{owner}{round:x}"),
        sent: OnceLock::new(),
    };
    let mut backoff = Backoff::new(deadline);
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
            Ok(Ok(CommitAnswer::Contended(why))) => {
                if !backoff.pause().await {
                    return Committed::Unknown(Outcome::RetryableFailure(why));
                }
            }
            Ok(Err(error)) => {
                return Committed::Unknown(Outcome::CommitUnknown(Arc::new(error)));
            }
            Err(_elapsed) => {
                let error = StoreError::OutOfTime {
                    action: "commit",
                    key,
                };
                return Committed::Unknown(Outcome::CommitUnknown(Arc::new(error)));
            }
        }
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

/// Pauses between tries: up to 20 ms at first, doubled each time, up to a second; each a random
/// part of that, so that those who collided don't collide again.
pub(super) struct Backoff {
    longest: Duration,
    until: Instant,
}

impl Backoff {
    /// While handlers may run.
    pub(super) fn new(deadline: Deadline) -> Self {
        Self {
            longest: Duration::from_millis(20),
            until: deadline.stop(),
        }
    }

    /// Pauses; or says that there is no time left for another try.
    pub(super) async fn pause(&mut self) -> bool {
        let pause = self.longest.mul_f64(fastrand::f64());
        if Instant::now() + pause >= self.until {
            return false;
        }
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

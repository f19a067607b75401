//! [`NextDelivery`]: what a record means for the next delivery of its key.

use sqs_once::{
    internal::StoredRecord,
    protocol::{AfterFailure, MAX_FAILED_MESSAGES, Record, State, Timestamp},
};

/// The fate of a message that arrives now, judging by the record under its key. Ignores the fingerprint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NextDelivery {
    /// The handler runs.
    Runs,
    /// The handler runs, and sees a prior attempt that may have had its effect. A handler with a look-up
    /// waits for its quarantine first. The record does not say how long that lasts.
    RunsWithPriorAttempt,
    /// Another worker holds the lease. The message returns to the queue until the lease ends.
    Waits,
    /// An open transaction locks the record. The message waits until it ends, and then finds the record that
    /// the transaction leaves.
    WaitsForTransaction,
    /// The operation is completed. The message is acknowledged, and the handler does not run.
    Duplicate,
    /// The message gets the stored failure, and the handler does not run.
    StoredFailure,
    /// The record is unreadable.
    Unknown,
}

impl NextDelivery {
    /// Returns what the next delivery does, given a record as it was read.
    pub(crate) fn by(stored: &StoredRecord, after: AfterFailure, now: Timestamp) -> Self {
        match &stored.record {
            _ if stored.locked_by.is_some() => Self::WaitsForTransaction,
            Ok(record) => Self::of(record, after, now),
            Err(_) => Self::Unknown,
        }
    }

    /// Returns what the next delivery does if its message has not failed under the key before.
    fn of(record: &Record, after: AfterFailure, now: Timestamp) -> Self {
        match record.state {
            _ if record.is_expired(now) => Self::Runs,
            State::Completed { .. } => Self::Duplicate,
            State::InProgress { lease_until } if lease_until >= now => Self::Waits,
            State::InProgress { .. } => Self::RunsWithPriorAttempt,
            State::Failed
                if after == AfterFailure::Replay
                    || record.failed_message_ids.len() >= MAX_FAILED_MESSAGES =>
            {
                Self::StoredFailure
            }
            State::Failed => Self::Runs,
        }
    }

    /// Returns one word, for JSON and tables.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Runs => "runs",
            Self::RunsWithPriorAttempt => "runs_with_prior_attempt",
            Self::Waits => "waits",
            Self::WaitsForTransaction => "waits_for_transaction",
            Self::Duplicate => "duplicate",
            Self::StoredFailure => "stored_failure",
            Self::Unknown => "unknown",
        }
    }

    /// Returns a sentence about a message that arrives now.
    pub(crate) const fn text(self) -> &'static str {
        match self {
            Self::Runs => "the handler runs",
            Self::RunsWithPriorAttempt => {
                "the handler runs; an earlier attempt may have had its effect, and the handler gets its data \
                 (a look-up first waits for its quarantine)"
            }
            Self::Waits => "returns to the queue until the lease ends",
            Self::WaitsForTransaction => {
                "waits for the end of the open transaction, and then finds the record that it leaves"
            }
            Self::Duplicate => "acknowledged as a duplicate; the handler does not run",
            Self::StoredFailure => "finds the stored failure; the handler does not run",
            Self::Unknown => "unknown: the record is unreadable",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdict_follows_the_rules_of_claims() {
        let now = Timestamp::from_millis(1_800_000_000_000);
        let record = |state| Record::new(state, 1_800_000_001);
        let lease = |millis| State::InProgress {
            lease_until: Timestamp::from_millis(millis),
        };
        let retry = |record: &Record| NextDelivery::of(record, AfterFailure::Retry, now);
        assert_eq!(
            retry(&record(lease(1_800_000_000_001))),
            NextDelivery::Waits
        );
        assert_eq!(
            retry(&record(lease(1_799_999_999_999))),
            NextDelivery::RunsWithPriorAttempt
        );
        let result = sqs_once::protocol::StoredResult::Json("1".into());
        assert_eq!(
            retry(&record(State::Completed { result })),
            NextDelivery::Duplicate
        );
        let mut failed = record(State::Failed);
        assert_eq!(retry(&failed), NextDelivery::Runs);
        let replay = NextDelivery::of(&failed, AfterFailure::Replay, now);
        assert_eq!(replay, NextDelivery::StoredFailure);
        failed.failed_message_ids = (0..20).map(|n| n.to_string()).collect();
        assert_eq!(retry(&failed), NextDelivery::StoredFailure);
        failed.expires_at = 1_799_999_999;
        assert_eq!(retry(&failed), NextDelivery::Runs);
    }
}

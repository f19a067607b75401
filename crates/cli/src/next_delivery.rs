//! [`NextDelivery`]: what a record means for the next delivery of its key.

use sqs_once::{
    internal::{Standing, StoredRecord, standing},
    protocol::{
        Claim, CrashWaits, Decision, Owner, Record, Rejection, Timestamp, decide,
    },
};

/// The fate of a message that is sent now, judging by the record under its key. Ignores the fingerprint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NextDelivery {
    /// The handler runs.
    Runs,
    /// The handler runs, and sees a prior attempt that may have had its effect. A handler with a lookup
    /// waits for its quarantine first. The record does not say how long that lasts.
    RunsWithPriorAttempt,
    /// The handler does not run, because its process died alone too often.
    Crashed,
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
    pub(crate) fn by(stored: &StoredRecord, now: Timestamp) -> Self {
        match &stored.record {
            _ if stored.locked_by.is_some() => Self::WaitsForTransaction,
            Ok(record) => Self::of(record, now),
            Err(_) => Self::Unknown,
        }
    }

    fn of(record: &Record, now: Timestamp) -> Self {
        let claim = Claim::new(Owner::fresh(), "", now, now, record.expires_at);
        match decide(Some(record), &claim) {
            Decision::First | Decision::Mine => Self::Runs,
            Decision::Over => match standing(Some(record), &CrashWaits::default()) {
                Standing::Crashed { .. } => Self::Crashed,
                _ if record.first_claimed_at.is_some() => Self::RunsWithPriorAttempt,
                _ => Self::Runs,
            },
            Decision::Rejected(rejection) => match rejection {
                Rejection::Duplicate { .. } | Rejection::KeyReused => Self::Duplicate,
                Rejection::FailedBefore(_) => Self::StoredFailure,
                Rejection::Conflict { .. } | Rejection::PayloadConflict { .. } => Self::Waits,
            },
        }
    }

    /// Returns one word, for JSON and tables.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Runs => "runs",
            Self::RunsWithPriorAttempt => "runs_with_prior_attempt",
            Self::Crashed => "crashed",
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
                 (a lookup first waits for its quarantine)"
            }
            Self::Crashed => {
                "fails as `crashed`; the handler does not run, because its process died alone too often"
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
    use std::time::Duration;

    use sqs_once::protocol::{Effect, End, StoredResult};

    use super::*;

    const NOW: Timestamp = Timestamp::from_millis(1_800_000_000_000);
    const LATER: Timestamp = Timestamp::from_millis(1_800_000_001_001);

    fn of(record: &Record, now: Timestamp) -> NextDelivery {
        NextDelivery::of(record, now)
    }

    fn claimed() -> Record {
        let lease_until = NOW + Duration::from_secs(1);
        let claim = Claim::new(Owner::fresh(), "m-1", NOW, lease_until, 1_800_000_002);
        Record::claimed(&claim, 1, None, None)
    }

    #[test]
    fn verdict_follows_the_rules_of_claims() {
        let claimed = claimed();
        assert_eq!(of(&claimed, NOW), NextDelivery::Waits);
        assert_eq!(of(&claimed, LATER), NextDelivery::RunsWithPriorAttempt);
        let undone = claimed.ended(None, &End::Undone { began: true }, 2, NOW);
        assert_eq!(of(&undone, LATER), NextDelivery::Runs);
        let result = StoredResult::Json("1".into());
        let expires_at = 1_800_000_002;
        let completed = End::Completed { result, expires_at };
        let completed = claimed.ended(None, &completed, 2, NOW);
        assert_eq!(of(&completed, LATER), NextDelivery::Duplicate);
        let past_retention = Timestamp::from_millis(1_800_000_003_000);
        assert_eq!(of(&completed, past_retention), NextDelivery::Runs);
    }

    #[test]
    fn message_after_failure_runs() {
        let failed = |effect| {
            let end = End::Failed {
                error: "declined".into(),
                effect,
                sent_at: Some(NOW),
                expires_at: 1_800_000_002,
            };
            claimed().ended(None, &end, 2, NOW)
        };
        let charged = failed(Effect::Possible);
        assert_eq!(of(&charged, LATER), NextDelivery::RunsWithPriorAttempt);
        assert_eq!(of(&charged, NOW), NextDelivery::StoredFailure);
        let declined = failed(Effect::Declined);
        assert_eq!(of(&declined, LATER), NextDelivery::Runs);
    }

    #[test]
    fn message_whose_process_died_alone_too_often_is_crashed() {
        let mut died = claimed();
        died.exclusive_attempts = 3;
        assert_eq!(of(&died, LATER), NextDelivery::RunsWithPriorAttempt);
        died.exclusive_attempts = 4;
        assert_eq!(of(&died, LATER), NextDelivery::Crashed);
    }
}

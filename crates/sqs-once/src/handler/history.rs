//! [`History`]: the earlier attempts at an operation, from its record.

use crate::{
    flawed::flawed,
    protocol::{AttemptEnd, Record, Timestamp},
};

/// The earlier attempts in the record.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct History {
    /// Number of earlier claims since the record was created.
    pub attempts: u64,
    /// The open attempts, which may have had their effect without a record of it.
    pub prior: Option<PriorAttempt>,
    /// How many times the called system declined.
    pub generation: u64,
}

/// One or more prior attempts that may have had an effect that was never recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PriorAttempt {
    /// Claim time of the earliest open attempt; `None` if unknown.
    pub first_claimed_at: Option<Timestamp>,
    /// How the last handler that ran ended; `None` if unknown, as after a crash.
    pub last_end: Option<AttemptEnd>,
    /// True if one of the attempts may have had another payload. A lookup asks only about this message's payload.
    pub other_payload: bool,
}

impl History {
    /// Creates the history of a first attempt.
    #[must_use]
    pub fn fresh() -> Self {
        Self::default()
    }

    /// Creates a history with a prior attempt.
    #[must_use]
    pub fn with_prior(attempts: u64, prior: PriorAttempt) -> Self {
        Self {
            attempts,
            prior: Some(prior),
            ..Self::default()
        }
    }

    /// Returns whether an earlier attempt may have had its effect, so that the lookup must run first.
    pub fn may_have_effect(&self) -> bool {
        self.prior.is_some()
    }

    /// Returns whether an attempt is open and the last handler that ran crashed, panicked or was cut off at the deadline.
    pub fn is_takeover(&self) -> bool {
        let returned = [
            Some(AttemptEnd::Retryable),
            Some(AttemptEnd::Permanent),
            Some(AttemptEnd::NoEffect),
        ];
        self.prior
            .is_some_and(|prior| !returned.contains(&prior.last_end))
    }
}

impl History {
    /// Returns the history in the record that a claim replaced.
    #[must_use]
    pub fn of(replaced: Option<&Record>, claimed: &Record) -> Self {
        let Some(record) = replaced else {
            return Self::fresh();
        };
        let open_since = (record.first_claimed_at).filter(|_| !flawed("the handler is not told"));
        let prior = open_since.map(|since| PriorAttempt {
            first_claimed_at: Some(since),
            last_end: record.last_end,
            other_payload: claimed.open_other,
        });
        Self {
            attempts: record.attempts,
            prior,
            generation: record.generation,
        }
    }
}

//! [`History`]: the earlier attempts at an operation, from its record.

use crate::{
    flawed::flawed,
    protocol::{AttemptEnd, PriorState, Timestamp},
};

/// The earlier attempts in the record.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct History {
    /// Number of earlier claims since the record was created.
    pub attempts: u64,
    /// The open attempts: they may have had their effect without a record of it.
    pub prior: Option<PriorAttempt>,
}

/// A prior attempt, or several, that may have had an effect without a record of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PriorAttempt {
    /// Claim time of the earliest open attempt; `None` if unknown.
    pub first_claimed_at: Option<Timestamp>,
    /// End of the last attempt; `None` if unknown, as after a crash.
    pub last_end: Option<AttemptEnd>,
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
        }
    }

    /// Returns whether an earlier attempt may have had its effect, so that a look-up comes first. An abandoned claim
    /// leaves an open attempt in which no handler ran.
    pub fn may_have_effect(&self) -> bool {
        self.prior
            .is_some_and(|prior| prior.last_end != Some(AttemptEnd::NotStarted))
    }

    /// Returns whether the last open attempt ended by a crash, a panic or the deadline, and not by a failure
    /// that the handler returned.
    pub fn is_takeover(&self) -> bool {
        let returned = [
            Some(AttemptEnd::Retryable),
            Some(AttemptEnd::Permanent),
            // The handler was never started.
            Some(AttemptEnd::NotStarted),
        ];
        self.prior
            .is_some_and(|prior| !returned.contains(&prior.last_end))
    }
}

impl From<&PriorState> for History {
    fn from(claimed: &PriorState) -> Self {
        let open_since = (claimed.open_since).filter(|_| !flawed!("the handler is not told"));
        let prior = open_since.map(|since| PriorAttempt {
            first_claimed_at: Some(since).filter(|at| *at != Timestamp::default()),
            last_end: claimed.end(),
        });
        Self {
            attempts: claimed.attempts,
            prior,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn open_attempt_may_have_effect_unless_it_never_started() {
        let after = |last_end| {
            let first_claimed_at = Some(Timestamp::from_millis(7));
            let prior = PriorAttempt {
                first_claimed_at,
                last_end,
            };
            History::with_prior(1, prior).may_have_effect()
        };
        for end in [None, Some(AttemptEnd::Panic), Some(AttemptEnd::Deadline)] {
            assert!(after(end), "{end:?}");
        }
        assert!(!after(Some(AttemptEnd::NotStarted)));
        assert!(!History::fresh().may_have_effect());
    }
}

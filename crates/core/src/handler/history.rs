//! [`History`]: the earlier attempts at an operation, from its record.

use crate::protocol::{AttemptEnd, Claimed, Timestamp};

/// The earlier attempts in the record.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct History {
    /// Number of earlier claims since the record was created.
    pub attempts: u64,
    /// Open attempts, which may have had their effect without a record of it.
    pub open: Option<OpenAttempts>,
}

/// Attempts that may have had their effect without a record of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenAttempts {
    /// Claim time of the earliest open attempt; `None` if unknown.
    pub first_claimed_at: Option<Timestamp>,
    /// End of the last attempt; `None` if unknown, as after a crash.
    pub last_end: Option<AttemptEnd>,
}

impl History {
    /// The history of a first attempt.
    #[must_use]
    pub fn fresh() -> Self {
        Self::default()
    }

    /// A history with open attempts.
    #[must_use]
    pub fn with_open(attempts: u64, open: OpenAttempts) -> Self {
        Self {
            attempts,
            open: Some(open),
        }
    }

    /// Returns whether the last open attempt ended by a crash, a panic or the deadline, and not by
    /// a failure that the handler returned.
    pub fn is_takeover(&self) -> bool {
        let open = self.open.as_ref();
        let returned = [
            Some(AttemptEnd::Retryable),
            // The handler was never started.
            Some(AttemptEnd::NotStarted),
        ];
        open.is_some_and(|open| !returned.contains(&open.last_end))
    }
}

impl From<&Claimed> for History {
    fn from(claimed: &Claimed) -> Self {
        let open = claimed.open_since.map(|since| OpenAttempts {
            first_claimed_at: Some(since).filter(|at| *at != Timestamp::default()),
            last_end: claimed.last_end,
        });
        Self {
            attempts: claimed.attempts,
            open,
        }
    }
}

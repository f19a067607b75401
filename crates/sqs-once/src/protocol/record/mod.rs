//! [`Record`]: the table item for one key. [`Swap`]: the only write to it.

mod attributes;
mod failure;
mod result;
mod stamp;
mod timestamp;

use std::time::Duration;

pub(crate) use attributes::RecordValue;
pub use failure::{MAX_ERROR_BYTES, RecordedFailure};
pub use result::{MAX_ITEM_BYTES, MAX_RESULT_BYTES, ResultPointer, StoredResult};
pub use stamp::{Owner, Stamp};
pub use timestamp::{Pause, Timestamp};

use super::key::{Fingerprint, Key};

/// The status of an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// A worker holds a claim, or the last attempt didn't settle the operation.
    InProgress {
        /// Until then the claim is exclusive. Afterwards it can be taken over.
        lease_until: Timestamp,
    },
    /// The operation is completed. The handler never runs again while the record is kept.
    Completed {
        /// The output of the handler.
        result: StoredResult,
    },
    /// The last attempt failed permanently. The first of [`Record::failures`] has the text.
    Failed,
}

impl State {
    /// Returns the value of the record's `status` attribute.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::InProgress { .. } => "IN_PROGRESS",
            Self::Completed { .. } => "COMPLETED",
            Self::Failed => "FAILED",
        }
    }
}

/// How an attempt ended without settling the operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum AttemptEnd {
    /// The handler returned a retryable failure.
    Retryable,
    /// The handler panicked.
    Panic,
    /// The handler was cut off at the deadline.
    Deadline,
    /// The handler returned a permanent failure.
    Permanent,
    /// The handler had no effect, or the claim was undone before any handler began.
    NoEffect,
}

impl AttemptEnd {
    /// Returns the value of the attribute `last_end`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Retryable => "retryable",
            Self::Panic => "panic",
            Self::Deadline => "deadline",
            Self::Permanent => "permanent",
            Self::NoEffect => "no_effect",
        }
    }

    /// Parses a value of the attribute `last_end`.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        let all = [
            Self::Retryable,
            Self::Panic,
            Self::Deadline,
            Self::Permanent,
            Self::NoEffect,
        ];
        all.into_iter().find(|end| end.name() == name)
    }
}

/// The table item for one key. `docs/protocol.md` describes its attributes.
///
/// An attempt is *open* if it may have had its effect, and the record does not say whether it did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Owner and version.
    pub stamp: Stamp,
    /// Status of the operation.
    pub state: State,
    /// End of the retention, in seconds since the epoch. After that, claims treat the record as absent, and only its
    /// stamp matters.
    pub expires_at: u64,
    /// Fingerprint that later payloads must have. `None` matches every fingerprint.
    pub fingerprint: Option<Fingerprint>,
    /// Id of the current or last claim's message.
    pub message_id: String,
    /// Name of the queue of the current or last claim.
    pub source: Option<String>,
    /// Number of claims since the record was created.
    pub attempts: u64,
    /// Claim time of the earliest open attempt. `None` if no attempt is open.
    pub first_claimed_at: Option<Timestamp>,
    /// How the last handler that ran ended. `None` if nobody knows, for example after a crash.
    pub last_end: Option<AttemptEnd>,
    /// Number of attempts in a row that ran alone and have no recorded end.
    pub exclusive_attempts: u64,
    /// The permanent failures, the latest first. Each is for one payload, but the fourth may stand for all older ones. A
    /// record in progress keeps them.
    pub failures: Vec<RecordedFailure>,
    /// How many times the called system declined. The call key is made from the key and this number.
    pub generation: u64,
    /// True if an open attempt may have had a different payload than the record's.
    pub open_other: bool,
    /// Time of the record's last change.
    pub updated_at: Timestamp,
}

impl Record {
    /// Returns whether the record is past `expires_at`, so that claims treat it as absent.
    #[must_use]
    pub const fn is_expired(&self, now: Timestamp) -> bool {
        self.expires_at < now.as_secs()
    }

    /// Returns the time of the latest permanent failure.
    #[must_use]
    pub fn last_failure(&self) -> Option<Timestamp> {
        self.failures.iter().map(|failure| failure.at).max()
    }

    /// Returns the text of the permanent failure that was recorded last.
    #[must_use]
    pub fn last_error(&self) -> Option<&str> {
        self.failures.first().map(|failure| failure.error.as_str())
    }

    /// Returns whether a claim wrote this content. No other write sets a lease that ends later than the write.
    #[must_use]
    pub fn is_claim(&self) -> bool {
        self.lease_until()
            .is_some_and(|until| until > self.updated_at)
    }

    /// Returns the verb that names the write of this record in logs and errors.
    #[doc(hidden)]
    #[must_use]
    pub fn action(&self) -> &'static str {
        match self.state {
            State::Completed { .. } => "complete",
            State::Failed => "fail",
            State::InProgress { .. } if self.is_claim() => "claim",
            State::InProgress { .. } => "release",
        }
    }

    /// Returns the record after an operator has ended the lease. The stamp stays, so that a worker that is still running
    /// isn't fenced off.
    #[must_use]
    pub fn released(&self, now: Timestamp) -> Self {
        let mut record = self.clone();
        if let State::InProgress { lease_until } = &mut record.state {
            *lease_until = now;
        }
        record
    }

    /// Returns the record after an operator has looked for the effects of the open attempts by hand and found none. Returns
    /// `None` if the operation is completed, or its lease has not ended.
    ///
    /// The record has a new owner, and the next attempt gets a call key that the called system has never seen. No attempt
    /// is open, so the next one may have any payload.
    #[must_use]
    pub fn declined(&self, now: Timestamp) -> Option<Self> {
        let is_open = match self.state {
            State::Failed => true,
            State::InProgress { lease_until } => lease_until < now,
            State::Completed { .. } => false,
        };
        is_open.then(|| Self {
            stamp: Stamp {
                owner: Owner::fresh(),
                version: self.stamp.version + 1,
            },
            fingerprint: None,
            first_claimed_at: None,
            open_other: false,
            last_end: Some(AttemptEnd::NoEffect),
            exclusive_attempts: 0,
            generation: self.generation + 1,
            updated_at: now,
            ..self.clone()
        })
    }

    /// Returns the end of the lease, if the record is in progress.
    #[must_use]
    pub const fn lease_until(&self) -> Option<Timestamp> {
        match self.state {
            State::InProgress { lease_until } => Some(lease_until),
            State::Completed { .. } | State::Failed => None,
        }
    }
}

/// The state of the record that a swap expects.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(
    clippy::large_enum_variant,
    reason = "one swap lives at a time, and most are over a record"
)]
pub enum Expect {
    /// There is no record.
    Absent,
    /// The record has this one's stamp. Then its other attributes are also the same, except `lease_until`, which an
    /// operator may have changed.
    Unchanged(Record),
}

/// The only write to a record. A swap writes `to` if the record is as expected. Otherwise it changes nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Swap {
    /// Key of the operation.
    pub key: Key,
    /// The condition.
    pub expect: Expect,
    /// The content to write.
    pub to: Record,
}

impl Swap {
    /// Returns whether `record` is what the swap expects.
    #[must_use]
    pub fn admits(&self, record: Option<&Record>) -> bool {
        match (&self.expect, record) {
            (Expect::Absent, None) => true,
            (Expect::Unchanged(expected), Some(record)) => expected.stamp == record.stamp,
            _ => false,
        }
    }
}

/// Returns when a record written now expires, in seconds since the epoch. That is the end of its retention, but not before
/// `kept_until`.
#[doc(hidden)]
#[must_use]
pub fn expires_at(now: Timestamp, retention: Duration, kept_until: Timestamp) -> u64 {
    (now + retention).max(kept_until).as_secs_ceil()
}

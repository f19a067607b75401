//! [`Outcome`]: how an attempt at an operation ended.

use std::{fmt, sync::Arc};

use crate::{
    handler::Failure,
    protocol::{Owner, Refusal, StoredResult, Timestamp, record::MAX_FAILED_MESSAGES},
    store::StoreError,
};

/// How an attempt at an operation ended.
///
/// ```
/// use sqs_once::{Outcome, protocol::StoredResult};
///
/// let done = Outcome::Done(StoredResult::Json("42".into()));
/// assert!(done.is_success());
/// assert_eq!(done.name(), "done");
/// assert!(!Outcome::KeyReused.is_success());
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Outcome {
    /// The handler ran, and its result is recorded.
    Done(StoredResult),
    /// It was done before; this is the recorded result. Nothing ran.
    Duplicate(StoredResult),
    /// Another worker holds the claim. Nothing ran.
    Conflict {
        /// Its token, if the record has one.
        owner: Option<Owner>,
        /// The end of its lease.
        lease_until: Timestamp,
    },
    /// An attempt with the same key and another payload is open, and its lease has ended. Nothing
    /// ran, and nothing will under this key until an attempt with that payload is recorded, the
    /// record expires or it is deleted.
    PayloadConflict {
        /// When the earliest open attempt was claimed, if the record tells.
        open_since: Option<Timestamp>,
    },
    /// The handler failed, a later attempt may succeed, and this one may have had its effect.
    RetryableFailure(String),
    /// The handler failed without an effect, and a later attempt may succeed.
    NoEffect(String),
    /// The handler said: it will fail again.
    PermanentFailure(String),
    /// The message failed permanently before; this is the stored error. Nothing ran.
    FailedBefore(String),
    /// So many messages failed permanently under this key that no other runs; this is the last
    /// error. Nothing ran.
    TooManyFailures(String),
    /// The key was used before for another payload. Nothing ran, and the record is as it was.
    KeyReused,
    /// There was not enough time left. Nothing ran.
    NotStarted,
    /// The handler panicked. After a claim, the next attempt is informed.
    Panicked,
    /// The handler was cut off at the deadline. After a claim, the next attempt is informed.
    OutOfTime,
    /// The handler ran, but meanwhile its lease was over and somebody else went on. Their
    /// record is as they left it, and settles the message.
    LeaseLost,
    /// The handler ran and succeeded, but that could not be recorded. The claim is kept; when
    /// its lease has ended, the next attempt is informed.
    CompletionUnrecorded(Arc<StoreError>),
    /// The handler failed permanently, but that could not be recorded, so the message runs again.
    FailureUnrecorded {
        /// The text of the failure.
        error: String,
        /// The reason why it is not recorded.
        cause: Arc<StoreError>,
    },
    /// The handler's writes were sent, and no answer came: they may have been made, all of them,
    /// or none. The next attempt finds out, and makes them only if they were not.
    CommitUnknown(Arc<StoreError>),
    /// The claim could not be made, or in an inbox the commit. Nothing was done.
    StoreUnavailable(Arc<StoreError>),
}

impl Outcome {
    /// Returns whether the operation is recorded as done. Only then may a message be acknowledged.
    #[must_use]
    pub const fn is_success(&self) -> bool {
        matches!(self, Self::Done(_) | Self::Duplicate(_))
    }

    /// The word for it in logs: stable, lower case, made for filters.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Done(_) => "done",
            Self::Duplicate(_) => "duplicate",
            Self::Conflict { .. } | Self::PayloadConflict { .. } => "conflict",
            Self::RetryableFailure(_) => "retryable_failure",
            Self::NoEffect(_) => "no_effect",
            Self::PermanentFailure(_) => "permanent_failure",
            Self::FailedBefore(_) | Self::TooManyFailures(_) => "failed_before",
            Self::KeyReused => "key_reused",
            Self::NotStarted => "not_started",
            Self::Panicked => "panicked",
            Self::OutOfTime => "out_of_time",
            Self::LeaseLost => "lease_lost",
            Self::CompletionUnrecorded(_) => "completion_unrecorded",
            Self::FailureUnrecorded { .. } => "failure_unrecorded",
            Self::CommitUnknown(_) => "commit_unknown",
            Self::StoreUnavailable(_) => "store_unavailable",
        }
    }
}

/// The outcome of a failure that nothing had to record.
impl From<Failure> for Outcome {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Retryable(_) => Self::RetryableFailure(failure.to_string()),
            Failure::NoEffect(_) => Self::NoEffect(failure.to_string()),
            Failure::Permanent(_) => Self::PermanentFailure(failure.to_string()),
        }
    }
}

impl From<Refusal> for Outcome {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::KeyReused => Self::KeyReused,
            Refusal::Duplicate(result) => Self::Duplicate(result),
            Refusal::FailedBefore(error) => Self::FailedBefore(error),
            Refusal::TooManyFailures(error) => Self::TooManyFailures(error),
            Refusal::Conflict { owner, lease_until } => Self::Conflict { owner, lease_until },
            Refusal::PayloadConflict { open_since } => Self::PayloadConflict { open_since },
        }
    }
}

/// Describes the outcome and what follows, for people. It contains no payload and no result.
impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Done(_) => f.write_str("done"),
            Self::Duplicate(_) => f.write_str("done before; nothing ran"),
            Self::Conflict { owner, lease_until } => write!(
                f,
                "lease held by {} until {lease_until}",
                owner.as_ref().map_or("another program", Owner::as_str),
            ),
            Self::PayloadConflict { open_since } => {
                f.write_str("an attempt with another payload under this key is open")?;
                if let Some(since) = open_since {
                    write!(f, " since {since}")?;
                }
                f.write_str(
                    ": find out whether it had its effect, then delete the record of this key (`record forget KEY`)",
                )
            }
            Self::RetryableFailure(error) => write!(f, "failed, to be retried: {error}"),
            Self::NoEffect(error) => write!(f, "failed without effect, to be retried: {error}"),
            Self::PermanentFailure(error) => write!(f, "failed permanently: {error}"),
            Self::FailedBefore(error) => write!(f, "failed permanently before: {error}"),
            Self::TooManyFailures(error) => write!(
                f,
                "{MAX_FAILED_MESSAGES} messages failed permanently under this key, so no other runs until the \
                 record is deleted (`record forget KEY`); the last error: {error}"
            ),
            Self::KeyReused => f.write_str(
                "the idempotency key was used before for another payload: choose a key that \
                 differs where the operation does",
            ),
            Self::NotStarted => f.write_str("not enough time left in this invocation; nothing ran"),
            Self::Panicked => f.write_str("the handler panicked"),
            Self::OutOfTime => f.write_str("cut off at the deadline"),
            Self::LeaseLost => f.write_str(
                "the lease was over before the outcome was recorded, and another attempt went on",
            ),
            Self::CompletionUnrecorded(error) => {
                write!(
                    f,
                    "done, but that is not recorded, so it will run again: {error}"
                )
            }
            Self::FailureUnrecorded { error, cause } => write!(
                f,
                "failed permanently, and that is not recorded, so it will run again: {error}; {cause}"
            ),
            Self::CommitUnknown(error) => {
                write!(f, "written or not, the next attempt finds out: {error}")
            }
            Self::StoreUnavailable(error) => write!(f, "nothing was done: {error}"),
        }
    }
}

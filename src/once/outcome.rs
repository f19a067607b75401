//! [`Outcome`]: how an attempt at an operation ended.

use std::{fmt, sync::Arc};

use crate::{
    Failure,
    protocol::{Owner, Refusal, StoredResult, Timestamp},
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
    /// Somebody else is at it. Nothing ran.
    Conflict {
        /// Who, if the record says so.
        owner: Option<Owner>,
        /// Until when, at the latest, it is theirs alone.
        lease_until: Timestamp,
    },
    /// The handler failed, a later attempt may succeed, and this one may have had its effect.
    RetryableFailure(String),
    /// The handler failed without an effect, and a later attempt may succeed.
    NoEffect(String),
    /// The handler said: it will fail again.
    PermanentFailure(String),
    /// It failed for good before; this is the recorded error. Nothing ran.
    FailedBefore(String),
    /// The key was used before for another payload. Nothing ran, and the record is as it was.
    KeyReused,
    /// There was not enough time left. Nothing ran.
    NotStarted,
    /// The handler panicked. After a claim, the next attempt is told.
    Panicked,
    /// The handler was cut off at the deadline. After a claim, the next attempt is told.
    OutOfTime,
    /// The handler ran, but meanwhile its lease was over and somebody else went on. Their
    /// record is as they left it, and settles the message.
    LeaseLost,
    /// The handler ran and succeeded, but that could not be recorded. The claim is kept; when
    /// its lease is over, the next attempt is told.
    CompletionUnrecorded(Arc<StoreError>),
    /// The handler's writes were sent, and no answer came: they may have been made, all of them,
    /// or none. The next attempt finds out, and makes them only if they were not.
    CommitUnknown(Arc<StoreError>),
    /// The claim could not be made. Nothing ran.
    StoreUnavailable(Arc<StoreError>),
}

impl Outcome {
    /// Whether the operation is recorded as done: only then may a message be acknowledged.
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
            Self::Conflict { .. } => "conflict",
            Self::RetryableFailure(_) => "retryable_failure",
            Self::NoEffect(_) => "no_effect",
            Self::PermanentFailure(_) => "permanent_failure",
            Self::FailedBefore(_) => "failed_before",
            Self::KeyReused => "key_reused",
            Self::NotStarted => "not_started",
            Self::Panicked => "panicked",
            Self::OutOfTime => "out_of_time",
            Self::LeaseLost => "lease_lost",
            Self::CompletionUnrecorded(_) => "completion_unrecorded",
            Self::CommitUnknown(_) => "commit_unknown",
            Self::StoreUnavailable(_) => "store_unavailable",
        }
    }
}

/// What a handler says of itself.
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
            Refusal::Conflict { owner, lease_until } => Self::Conflict { owner, lease_until },
        }
    }
}

/// What happened and what follows, for people. Never payload, and never a result.
impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Done(_) => f.write_str("done"),
            Self::Duplicate(_) => f.write_str("done before; nothing ran"),
            Self::Conflict { owner, lease_until } => write!(
                f,
                "owner {} is at it until epoch millisecond {} at the latest",
                owner.as_ref().map_or("unknown", Owner::as_str),
                lease_until.as_millis()
            ),
            Self::RetryableFailure(error) => write!(f, "failed, to be retried: {error}"),
            Self::NoEffect(error) => write!(f, "failed without effect, to be retried: {error}"),
            Self::PermanentFailure(error) => write!(f, "will fail again: {error}"),
            Self::FailedBefore(error) => write!(f, "failed for good before: {error}"),
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
            Self::CommitUnknown(error) => {
                write!(f, "written or not, the next attempt finds out: {error}")
            }
            Self::StoreUnavailable(error) => write!(f, "nothing ran: {error}"),
        }
    }
}

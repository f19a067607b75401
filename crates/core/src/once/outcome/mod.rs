//! [`Outcome`]: the result of one attempt at an operation, with severity, retry and HTTP status.

mod display;
mod facts;

use std::sync::Arc;

use crate::{
    handler::Failure,
    protocol::{Owner, Refusal, StoredResult, Timestamp, record::MAX_ERROR_BYTES},
    store::StoreError,
};

/// The result of one attempt at an operation.
///
/// | use | derives from |
/// | --- | --- |
/// | name in logs | [`name`](Self::name) |
/// | counter in metrics | [`metric`](Self::metric) |
/// | log level | [`severity`](Self::severity) |
/// | visibility timeout | [`retry`](Self::retry) |
/// | HTTP status | [`http_status`](Self::http_status) |
///
/// ```
/// use sqs_once::{Outcome, Retry, Severity, protocol::StoredResult};
///
/// let completed = Outcome::Completed(StoredResult::Json("42".into()));
/// assert!(completed.is_success());
/// assert_eq!(completed.name(), "completed");
/// assert_eq!(Outcome::KeyReused.retry(), Retry::Never);
/// assert_eq!(Outcome::KeyReused.severity(), Severity::Error);
/// ```
#[derive(Clone, Debug)]
#[must_use]
#[non_exhaustive]
pub enum Outcome {
    /// The handler ran, and its result is recorded.
    Completed(StoredResult),
    /// An earlier attempt completed the operation. Holds the recorded result. The handler did not
    /// run.
    Duplicate(StoredResult),
    /// Another worker holds the claim. The handler did not run.
    Conflict {
        /// Owner token of the other worker's claim, if the record has one.
        owner: Option<Owner>,
        /// End of the other worker's lease.
        lease_until: Timestamp,
    },
    /// An attempt with the same key and another payload is open, and its lease expired. The handler
    /// did not run.
    ///
    /// This payload does not run under this key until one of these events:
    ///
    /// - an attempt with the other payload is recorded;
    /// - the record expires;
    /// - an operator deletes the record.
    PayloadConflict {
        /// Claim time of the earliest open attempt, if the record has it.
        open_since: Option<Timestamp>,
    },
    /// The handler returned a retryable failure. The attempt may have had its effect.
    RetryableFailure(String),
    /// The handler returned a retryable failure without an effect, or the message's body could not be
    /// read from S3.
    NoEffect(String),
    /// Another transaction was in the way: a serialization failure or a deadlock. Nothing was written.
    /// A consumer runs the handler again while there is time.
    Contended(String),
    /// The handler returned a permanent failure.
    PermanentFailure(String),
    /// The message failed permanently before. Holds the recorded error. The handler did not run.
    FailedBefore(String),
    /// Twenty messages failed permanently under this key, so no further message runs. Holds the
    /// last recorded error. The handler did not run.
    TooManyFailures(String),
    /// The process ended each time that the handler of this message ran alone, once more than
    /// [`CrashWaits`](crate::protocol::isolation::CrashWaits) allows. The handler did not run again, and
    /// the failure is recorded. An earlier attempt may have had its effect.
    Crashed(String),
    /// The key was used before for another payload. The handler did not run, and the record is
    /// unchanged.
    KeyReused,
    /// The message has no body, no key, or a body that is not of the handler's type, or its body is not
    /// in S3. The handler did not run.
    Invalid(String),
    /// S3 sent this message to test its notifications (`s3:TestEvent`). The handler did not run, and
    /// nothing is recorded.
    Ignored,
    /// Too little time was left before the deadline. The handler did not run.
    NotStarted,
    /// An earlier message of the same FIFO group failed. The handler did not run.
    BehindFailure,
    /// The circuit breaker is open: the last handlers of this process failed one after the other. The
    /// message was not claimed, and the handler did not run.
    CircuitOpen {
        /// Earliest time at which a message can show whether handlers succeed again.
        next_probe: Timestamp,
    },
    /// The handler panicked. After a claim, the next attempt is informed.
    Panicked,
    /// The handler was cut off at the deadline. After a claim, the next attempt is informed.
    OutOfTime,
    /// The lease expired before the worker recorded the attempt's result, and another attempt took
    /// over. The record of the other attempt decides.
    LeaseLost,
    /// The handler succeeded, but its result could not be recorded. The claim stays until its lease
    /// expires, and the next attempt is informed.
    CompletionUnrecorded(Arc<StoreError>),
    /// The handler failed permanently, but the failure could not be recorded. The message runs
    /// again.
    FailureUnrecorded {
        /// Text of the failure.
        error: String,
        /// Reason why the failure is not recorded.
        cause: Arc<StoreError>,
    },
    /// The database did not answer the commit of the handler's writes. Either all writes were applied
    /// or no write.
    ///
    /// The condition of the next attempt's commit prevents a second application.
    CommitUnknown(Arc<StoreError>),
    /// The claim could not be written, or in an inbox the commit. The handler did not run, or its writes
    /// were not applied. A claim without an answer may be in the table until its lease ends.
    StoreUnavailable(Arc<StoreError>),
}

/// Log level of an outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Normal operation, including duplicates and conflicts.
    Info,
    /// A retryable failure, or a state that an operator should know of.
    Warn,
    /// A failure that needs an operator, or that may cause a repeated effect.
    Error,
}

/// Time of the next attempt that can have another outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retry {
    /// No retry: the operation is completed, or every attempt fails.
    Never,
    /// Retry at once; from the second receive on, a consumer's messages wait for a back-off.
    Now,
    /// Retry after a back-off.
    Backoff,
    /// Retry after a back-off, and not before this time.
    BackoffUntil(Timestamp),
    /// Retry after this time, the end of another worker's lease.
    At(Timestamp),
}

impl Outcome {
    /// Returns the store's error that caused this outcome.
    #[must_use]
    pub fn store_error(&self) -> Option<&StoreError> {
        match self {
            Self::StoreUnavailable(error)
            | Self::CommitUnknown(error)
            | Self::CompletionUnrecorded(error)
            | Self::FailureUnrecorded { cause: error, .. } => Some(error),
            _ => None,
        }
    }

    /// The same without the output, and with the first 4 KB of an error's text.
    pub fn shortened(mut self) -> Self {
        match &mut self {
            Self::Completed(result) | Self::Duplicate(result) => drop(result.take()),
            Self::RetryableFailure(text)
            | Self::NoEffect(text)
            | Self::Contended(text)
            | Self::PermanentFailure(text)
            | Self::FailedBefore(text)
            | Self::TooManyFailures(text)
            | Self::Invalid(text)
            | Self::FailureUnrecorded { error: text, .. } => {
                text.truncate(text.floor_char_boundary(MAX_ERROR_BYTES));
                text.shrink_to_fit();
            }
            _ => {}
        }
        self
    }

    /// The claim was not written, or its answer is unknown.
    pub fn store_unavailable(error: StoreError) -> Self {
        Self::StoreUnavailable(Arc::new(error))
    }

    /// The commit got no answer.
    pub fn commit_unknown(error: StoreError) -> Self {
        Self::CommitUnknown(Arc::new(error))
    }

    /// The handler ran, and its completion was not recorded.
    pub fn completion_unrecorded(error: StoreError) -> Self {
        Self::CompletionUnrecorded(Arc::new(error))
    }
}

/// The outcome of a handler's failure, if no record is needed.
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

//! [`Outcome`]: the result of one attempt at an operation, with severity and retry.

mod display;
mod facts;

use std::{fmt, sync::Arc, time::Duration};

use crate::{
    handler::{Failure, FailureKind},
    protocol::{Owner, StoredResult, Timestamp, record::MAX_ERROR_BYTES},
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
    /// An earlier attempt completed the operation. Holds the recorded result. The handler did not run.
    Duplicate(StoredResult),
    /// The lookup found the effect of an earlier attempt, and its result is now recorded. The handler did
    /// not run ([`LookUp`](crate::LookUp)).
    Reconciled(StoredResult),
    /// Another worker holds the claim. The handler did not run.
    Conflict {
        /// Owner token of the other worker's claim, if the record has one.
        owner: Option<Owner>,
        /// End of the other worker's lease.
        lease_until: Timestamp,
    },
    /// An attempt with the same key and a different payload is open, and its lease expired. The handler did
    /// not run.
    ///
    /// This payload does not run under this key until one of these happens:
    ///
    /// - the end of an attempt with the other payload is recorded;
    /// - the record expires;
    /// - an operator declines or deletes the record.
    PayloadConflict {
        /// Claim time of the earliest open attempt, if the record has it.
        open_since: Option<Timestamp>,
    },
    /// The handler returned a retryable failure. The attempt may have had its effect.
    RetryableFailure(RetryableError),
    /// The handler returned a retryable failure without an effect, or the message's body could not be
    /// read from S3.
    NoEffect(RetryableError),
    /// The transaction collided with another one: a serialization failure or a deadlock. Nothing was
    /// written. A consumer runs the handler again while there is time.
    Contended(String),
    /// The handler returned a permanent failure.
    PermanentFailure(String),
    /// An earlier attempt with this payload failed permanently, after this message was sent. Holds the recorded error. The
    /// handler did not run.
    FailedBefore(String),
    /// The process died every time this message ran alone, one time more than
    /// [`CrashWaits`](crate::protocol::isolation::CrashWaits) allows. The handler did not run again, and the failure is
    /// recorded. An earlier attempt may have had its effect.
    Crashed(String),
    /// The key was used earlier for a different payload. The handler did not run, and the record is
    /// unchanged.
    KeyReused,
    /// The message is invalid: it has no body or no key, its body can't be read as the handler's type, or the
    /// body is missing in S3. The handler did not run.
    Invalid(String),
    /// S3 sent this message to test its notifications (`s3:TestEvent`). The handler did not run, and nothing
    /// is recorded.
    Ignored,
    /// Too little time was left before the deadline, a layer held the message until then, or [`Once::run`](super::Once::run) was
    /// called inside itself. The handler did not run.
    NotStarted,
    /// A message before this one failed, in the same message group or (on a standard queue) under the same key. The handler did
    /// not run.
    BehindFailure,
    /// The circuit breaker is open: the last handlers of this process failed one after the other, or the called system
    /// refuses all requests. The message was not claimed, and the handler did not run.
    CircuitOpen {
        /// Earliest time at which a message can show whether handlers succeed again.
        next_probe: Timestamp,
    },
    /// The handler panicked. After a claim, the next attempt sees the prior attempt.
    Panicked,
    /// The handler was cut off at the deadline. After a claim, the next attempt sees the prior attempt.
    OutOfTime,
    /// Before the worker recorded the attempt's result, another worker took over, or somebody deleted the record. The
    /// record of the other worker decides.
    LeaseLost,
    /// The handler succeeded, but its result could not be recorded. The claim stays until its lease expires,
    /// and the next attempt sees the prior attempt.
    CompletionUnrecorded(Arc<StoreError>),
    /// The handler failed permanently, but the failure could not be recorded. The message runs
    /// again.
    FailureUnrecorded {
        /// Text of the failure.
        error: String,
        /// Why the failure could not be recorded.
        cause: Arc<StoreError>,
    },
    /// The database did not respond to the commit of the handler's writes. The database applied either all of them or none.
    ///
    /// The condition on the next attempt's commit prevents a second application.
    CommitUnknown(Arc<StoreError>),
    /// The claim (in a transactional mode, the commit) could not be written, so nothing was changed. If a
    /// claim got no response, it may be in the table until its lease ends.
    StoreUnavailable(Arc<StoreError>),
}

/// Why an attempt failed, if a later one may succeed, and how long the called system wants us to wait.
///
/// ```
/// use sqs_once::{Outcome, Retry};
///
/// let busy = Outcome::NoEffect("the gateway answered 503".into());
/// assert_eq!(busy.retry(), Retry::Backoff);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RetryableError {
    /// The error and its causes on one line.
    pub text: String,
    /// The handler asked to wait this long before the next attempt.
    pub retry_after: Option<Duration>,
}

impl<T: Into<String>> From<T> for RetryableError {
    fn from(text: T) -> Self {
        Self {
            text: text.into(),
            retry_after: None,
        }
    }
}

/// Shows the text.
impl fmt::Display for RetryableError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Log level of an outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Severity {
    /// Normal operation, including duplicates and conflicts.
    Info,
    /// A retryable failure, or a state that an operator should know about.
    Warn,
    /// A failure that needs an operator, or that may cause a repeated effect.
    Error,
}

/// When a retry could succeed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Retry {
    /// Never: the operation is completed, or every attempt would fail.
    Never,
    /// At once. From the second receive on, a consumer makes the message wait for its backoff.
    Now,
    /// After a backoff.
    Backoff,
    /// After a backoff, but not before this much time has passed. A consumer never waits longer than its longest
    /// backoff.
    BackoffAtLeast(Duration),
    /// After a backoff, but not before this time.
    BackoffUntil(Timestamp),
    /// At this time, when another worker's lease ends. From the second receive on, the message waits for its
    /// backoff instead, if that is longer.
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

    /// Returns this outcome without the output, and with the first 4 KB of an error's text.
    pub fn shortened(mut self) -> Self {
        match &mut self {
            Self::Completed(result) | Self::Duplicate(result) | Self::Reconciled(result) => {
                drop(result.take());
            }
            Self::RetryableFailure(RetryableError { text, .. })
            | Self::NoEffect(RetryableError { text, .. })
            | Self::Contended(text)
            | Self::PermanentFailure(text)
            | Self::FailedBefore(text)
            | Self::Invalid(text)
            | Self::FailureUnrecorded { error: text, .. } => {
                text.truncate(text.floor_char_boundary(MAX_ERROR_BYTES));
                text.shrink_to_fit();
            }
            _ => {}
        }
        self
    }

    /// Creates the outcome for a claim that was not written, or got no response.
    pub fn store_unavailable(error: StoreError) -> Self {
        Self::StoreUnavailable(Arc::new(error))
    }

    /// Returns a completion as [`Reconciled`](Self::Reconciled), if a lookup found its output.
    pub(super) fn found(self, is_found: bool) -> Self {
        match self {
            Self::Completed(result) if is_found => Self::Reconciled(result),
            other => other,
        }
    }

    /// Creates the outcome for a commit that got no response.
    pub fn commit_unknown(error: StoreError) -> Self {
        Self::CommitUnknown(Arc::new(error))
    }

    /// Creates the outcome for a handler that succeeded, but whose completion was not recorded.
    pub fn completion_unrecorded(error: StoreError) -> Self {
        Self::CompletionUnrecorded(Arc::new(error))
    }
}

/// Converts a handler's failure to the outcome, when no record is needed.
impl From<Failure> for Outcome {
    fn from(failure: Failure) -> Self {
        let text = failure.to_string();
        let retry_after = failure.requested_wait();
        let retryable = |text| RetryableError { text, retry_after };
        match failure.kind() {
            FailureKind::Retryable => Self::RetryableFailure(retryable(text)),
            FailureKind::NoEffect => Self::NoEffect(retryable(text)),
            FailureKind::Permanent | FailureKind::PermanentNoEffect | FailureKind::Declined => {
                Self::PermanentFailure(text)
            }
        }
    }
}

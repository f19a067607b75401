//! [`Outcome`]: the result of one attempt at an operation, with severity, retry and HTTP status.

use std::{fmt, sync::Arc};

use crate::{
    handler::Failure,
    protocol::{
        Owner, Refusal, StoredResult, Timestamp,
        record::{MAX_ERROR_BYTES, MAX_FAILED_MESSAGES},
    },
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

/// Properties of one kind of outcome.
struct Facts {
    name: &'static str,
    metric: &'static str,
    severity: Severity,
    retry: Retry,
    http_status: u16,
}

impl Outcome {
    /// Table of all outcomes. A new outcome needs a row here and a text in `Display`.
    const fn facts(&self) -> Facts {
        use {Retry::*, Severity::*};
        #[rustfmt::skip]
        let (name, metric, severity, retry, http_status) = match self {
            Self::Completed(_) => ("completed", "Completed", Info, Never, 200),
            Self::Duplicate(_) => ("duplicate", "Duplicates", Info, Never, 200),
            Self::Conflict { lease_until, .. } => ("conflict", "Conflicts", Info, At(*lease_until), 409),
            Self::PayloadConflict { .. } => ("conflict", "Conflicts", Warn, Backoff, 409),
            Self::RetryableFailure(_) => ("retryable_failure", "RetryableFailures", Warn, Backoff, 503),
            Self::NoEffect(_) => ("no_effect", "RetryableFailures", Warn, Backoff, 503),
            Self::Contended(_) => ("retryable_failure", "RetryableFailures", Warn, Backoff, 503),
            Self::PermanentFailure(_) => ("permanent_failure", "PermanentFailures", Error, Never, 422),
            Self::FailedBefore(_) => ("failed_before", "PermanentFailures", Info, Never, 422),
            Self::TooManyFailures(_) => ("failed_before", "PermanentFailures", Warn, Never, 422),
            Self::Crashed(_) => ("crashed", "Crashed", Error, Never, 422),
            Self::KeyReused => ("key_reused", "KeysReused", Error, Never, 422),
            Self::Invalid(_) => ("invalid", "Invalid", Error, Never, 400),
            Self::Ignored => ("ignored", "Ignored", Info, Never, 200),
            Self::NotStarted => ("not_started", "NotStarted", Info, Now, 503),
            Self::BehindFailure => ("not_started", "NotStarted", Info, Now, 503),
            Self::CircuitOpen { next_probe } => ("circuit_open", "CircuitOpen", Info, BackoffUntil(*next_probe), 503),
            Self::Panicked => ("panicked", "RetryableFailures", Error, Backoff, 503),
            Self::OutOfTime => ("out_of_time", "RetryableFailures", Error, Backoff, 503),
            Self::LeaseLost => ("lease_lost", "LeasesLost", Error, Backoff, 503),
            Self::CompletionUnrecorded(_) => ("completion_unrecorded", "CompletionsUnrecorded", Error, Backoff, 503),
            Self::FailureUnrecorded { .. } => ("failure_unrecorded", "StoreUnavailable", Error, Backoff, 503),
            Self::CommitUnknown(_) => ("commit_unknown", "StoreUnavailable", Error, Backoff, 503),
            Self::StoreUnavailable(_) => ("store_unavailable", "StoreUnavailable", Error, Backoff, 503),
        };
        Facts {
            name,
            metric,
            severity,
            retry,
            http_status,
        }
    }

    /// Returns the name of this outcome in logs: stable and in lower case.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        self.facts().name
    }

    /// Returns the metric that counts messages with this outcome. Several outcomes share a metric.
    ///
    /// ```
    /// # use sqs_once::Outcome;
    /// assert_eq!(Outcome::Panicked.metric(), "RetryableFailures");
    /// ```
    #[must_use]
    pub const fn metric(&self) -> &'static str {
        self.facts().metric
    }

    /// Returns the log level of this outcome.
    #[must_use]
    pub const fn severity(&self) -> Severity {
        self.facts().severity
    }

    /// Returns the time of the next attempt that can have another outcome.
    #[must_use]
    pub const fn retry(&self) -> Retry {
        self.facts().retry
    }

    /// Returns the HTTP status for this outcome (RFC 9110). After a 409 or a 503, the client should
    /// send the request again with the same key.
    ///
    /// ```
    /// # use sqs_once::Outcome;
    /// assert_eq!(Outcome::KeyReused.http_status(), 422);
    /// ```
    #[must_use]
    pub const fn http_status(&self) -> u16 {
        self.facts().http_status
    }

    /// Returns whether the operation is recorded as completed, or the message carries none. Delete a
    /// message from the queue only if this method returns true.
    #[must_use]
    pub const fn is_success(&self) -> bool {
        matches!(
            self,
            Self::Completed(_) | Self::Duplicate(_) | Self::Ignored
        )
    }

    /// Returns whether every further attempt with this message fails.
    #[must_use]
    pub const fn is_permanent(&self) -> bool {
        matches!(self.retry(), Retry::Never) && !self.is_success()
    }

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

/// Describes the outcome and its consequence for operators. The text contains no payload and no
/// result.
impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Completed(_) => f.write_str("completed"),
            Self::Duplicate(_) => f.write_str("completed before; the handler did not run"),
            Self::Conflict { owner, lease_until } => write!(
                f,
                "lease held by {} until {lease_until}",
                owner
                    .as_ref()
                    .map_or("another program or transaction", Owner::as_str),
            ),
            Self::PayloadConflict { open_since } => {
                f.write_str("an attempt with another payload under this key is open")?;
                if let Some(since) = open_since {
                    write!(f, " since {since}")?;
                }
                f.write_str(
                    ": check whether that attempt had its effect, then delete the record of this key (`sqs-once record forget KEY`)",
                )
            }
            Self::RetryableFailure(error) => write!(f, "retryable failure: {error}"),
            Self::NoEffect(error) => write!(f, "retryable failure without an effect: {error}"),
            Self::Contended(error) => write!(
                f,
                "another transaction was in the way, and nothing was written: {error}"
            ),
            Self::PermanentFailure(error) => write!(f, "permanent failure: {error}"),
            Self::Crashed(error) => f.write_str(error),
            Self::FailedBefore(error) => write!(
                f,
                "this message failed permanently before; the handler did not run: {error}"
            ),
            Self::TooManyFailures(error) => write!(
                f,
                "{MAX_FAILED_MESSAGES} messages failed permanently under this key; no further message \
                 runs until the record is deleted (`sqs-once record forget KEY`); last error: {error}"
            ),
            Self::KeyReused => f.write_str(
                "the idempotency key was used before for another payload: choose a key that is \
                 unique to each operation",
            ),
            Self::Invalid(why) => f.write_str(why),
            Self::Ignored => f.write_str("a test event of S3; the handler did not run"),
            Self::NotStarted => {
                f.write_str("too little time left in this invocation; the handler did not run")
            }
            Self::BehindFailure => f.write_str(
                "a message before this one in its FIFO group failed; the handler did not run",
            ),
            Self::CircuitOpen { next_probe } => write!(
                f,
                "the last handlers of this process failed one after the other, so this message waits; \
                 next try after {next_probe}"
            ),
            Self::Panicked => f.write_str("the handler panicked"),
            Self::OutOfTime => f.write_str("the handler was cut off at the deadline"),
            Self::LeaseLost => f.write_str(
                "the lease expired before the result was recorded, and another attempt took over",
            ),
            Self::CompletionUnrecorded(error) => write!(
                f,
                "the handler succeeded, but its result is not recorded; the message may run again: {error}"
            ),
            Self::FailureUnrecorded { error, cause } => write!(
                f,
                "permanent failure that is not recorded; the message will run again: {error}; {cause}"
            ),
            Self::CommitUnknown(error) => write!(
                f,
                "the database did not answer the commit; the next attempt will show whether the writes were applied: {error}"
            ),
            Self::StoreUnavailable(error) => write!(
                f,
                "the handler did not run, or its writes were not applied: {error}"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn every() -> Vec<Outcome> {
        let result = || StoredResult::Json("1".into());
        let text = || "text".to_owned();
        let error = || {
            Arc::new(StoreError::OutOfTime {
                action: "claim",
                key: "k".into(),
            })
        };
        vec![
            Outcome::Completed(result()),
            Outcome::Duplicate(result()),
            Outcome::Conflict {
                owner: None,
                lease_until: Timestamp::from_millis(7),
            },
            Outcome::PayloadConflict { open_since: None },
            Outcome::RetryableFailure(text()),
            Outcome::NoEffect(text()),
            Outcome::Contended(text()),
            Outcome::PermanentFailure(text()),
            Outcome::FailedBefore(text()),
            Outcome::TooManyFailures(text()),
            Outcome::Crashed(text()),
            Outcome::KeyReused,
            Outcome::Invalid(text()),
            Outcome::Ignored,
            Outcome::NotStarted,
            Outcome::BehindFailure,
            Outcome::CircuitOpen {
                next_probe: Timestamp::from_millis(7),
            },
            Outcome::Panicked,
            Outcome::OutOfTime,
            Outcome::LeaseLost,
            Outcome::CompletionUnrecorded(error()),
            Outcome::FailureUnrecorded {
                error: text(),
                cause: error(),
            },
            Outcome::CommitUnknown(error()),
            Outcome::StoreUnavailable(error()),
        ]
    }

    #[test]
    fn success_is_never_retried_and_logged_as_info() {
        for outcome in every().iter().filter(|outcome| outcome.is_success()) {
            assert_eq!(outcome.retry(), Retry::Never, "{outcome:?}");
            assert_eq!(outcome.severity(), Severity::Info, "{outcome:?}");
            assert_eq!(outcome.http_status(), 200, "{outcome:?}");
            assert!(!outcome.is_permanent(), "{outcome:?}");
        }
    }

    #[test]
    fn http_status_agrees_with_retry() {
        for outcome in every().iter().filter(|outcome| !outcome.is_success()) {
            let statuses: &[u16] = match outcome.retry() {
                Retry::Never => &[400, 422],
                Retry::Now | Retry::Backoff | Retry::BackoffUntil(_) | Retry::At(_) => &[409, 503],
            };
            assert!(statuses.contains(&outcome.http_status()), "{outcome:?}");
            assert_eq!(outcome.is_permanent(), outcome.retry() == Retry::Never);
        }
    }

    #[test]
    fn conflict_is_retried_at_the_end_of_its_lease() {
        let at: Vec<_> = every()
            .iter()
            .filter_map(|outcome| match outcome.retry() {
                Retry::At(end) => Some((outcome.name(), end.as_millis())),
                _ => None,
            })
            .collect();
        assert_eq!(at, [("conflict", 7)]);
    }

    #[test]
    fn outcomes_page_has_the_facts_of_every_outcome() {
        let page = include_str!("../../../../docs/outcomes.md");
        let rows: Vec<_> = (page.lines())
            .filter(|line| line.starts_with("| ["))
            .map(|line| line.trim_matches('|').split(" | ").map(str::trim))
            .map(Iterator::collect::<Vec<_>>)
            .collect();
        let row = |name: &str| {
            let cell = format!("[`{name}`](runbook.md#{name})");
            let mut of_name = rows.iter().filter(move |row| row[0] == cell);
            let row = of_name
                .next()
                .unwrap_or_else(|| panic!("no row for {name}"));
            assert!(of_name.next().is_none(), "two rows for {name}");
            row
        };
        let names: std::collections::BTreeSet<_> = every().iter().map(Outcome::name).collect();
        assert_eq!(rows.len(), names.len());
        for outcome in every() {
            let [_, level, _, _, message, metric, status] = row(outcome.name())[..] else {
                panic!("{outcome:?}");
            };
            let returns = match outcome.retry() {
                Retry::Never if outcome.is_success() => "acknowledged",
                Retry::Never => "to the dead-letter queue",
                Retry::Now => "returns at once",
                Retry::Backoff | Retry::BackoffUntil(_) => "back-off",
                Retry::At(_) => "at the end of the lease",
            };
            let severity = format!("{:?}", outcome.severity()).to_uppercase();
            assert!(level.contains(&severity), "{outcome:?}");
            assert!(message.contains(returns), "{outcome:?}");
            assert_eq!(metric, format!("`{}`", outcome.metric()), "{outcome:?}");
            assert_eq!(status, outcome.http_status().to_string(), "{outcome:?}");
        }
    }

    #[test]
    fn metrics_page_lists_every_outcome_once() {
        let page = include_str!("../../../../docs/metrics.md");
        let rows: Vec<_> = page
            .lines()
            .filter(|line| line.starts_with("| `"))
            .collect();
        for outcome in every() {
            let name = format!("`{}`", outcome.name());
            let counter = |row: &str| row.split('`').nth(1).map(str::to_owned);
            let counters: Vec<_> = (rows.iter().filter(|row| row.contains(&name)))
                .filter_map(|row| counter(row))
                .collect();
            assert_eq!(counters, [outcome.metric()], "{outcome:?}");
        }
    }
}

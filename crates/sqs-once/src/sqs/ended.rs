//! [`Ended`]: the result of one message of a batch, and its log line.

use std::time::Duration;

use super::message::Message;
use crate::{
    flawed::flawed,
    handler::History,
    meter::{Meter, Readings},
    modes::{Outcome, Severity},
    protocol::Key,
    store::StoreError,
    system::Instant,
    telemetry::millis,
};

/// The result of one message of a batch. `Ended` keeps no output and only part of an error's text, because those of a whole
/// batch may be larger than the function's memory.
#[derive(Clone, Debug)]
pub(super) struct Ended {
    pub(super) outcome: Outcome,
    /// True if the operation was already completed. The outcome is then that of `on_duplicate`.
    pub(super) of_duplicate: bool,
    /// The whole text of a failure, until it is logged.
    pub(super) detail: Option<String>,
    pub(super) key: Option<Key>,
    /// How long the consumer worked on the message, up to its outcome.
    pub(super) duration: Duration,
    /// The handler's run, or its last run if another transaction got in the way of the earlier ones.
    pub(super) handler: Option<HandlerRun>,
    pub(super) requests: Readings,
}

/// The last run of a message's handler.
#[derive(Clone, Debug)]
pub(super) struct HandlerRun {
    pub(super) history: History,
    pub(super) duration: Duration,
}

/// Says that this message's handler began. We may never learn how it ended, if it blocks its thread beyond the deadline.
#[derive(Debug)]
pub(super) struct Began {
    pub(super) index: usize,
    pub(super) key: Key,
    pub(super) meter: Meter,
    pub(super) history: History,
    pub(super) at: Instant,
}

impl From<Outcome> for Ended {
    fn from(outcome: Outcome) -> Self {
        let detail = (!outcome.is_success()).then(|| outcome.to_string());
        Self {
            outcome: outcome.shortened(),
            of_duplicate: false,
            detail,
            key: None,
            duration: Duration::ZERO,
            handler: None,
            requests: Readings::default(),
        }
    }
}

impl Ended {
    /// Creates the result of a message that did not run.
    pub(super) fn without_run(outcome: Outcome, message: &Message) -> Self {
        Self {
            key: message.key().cloned(),
            ..outcome.into()
        }
    }

    /// Returns the outcome of the operation, or `None` if only its `on_duplicate` failed.
    fn of_operation(&self) -> Option<&Outcome> {
        (!self.of_duplicate).then_some(&self.outcome)
    }

    pub(super) fn is_success(&self) -> bool {
        self.of_operation().is_some_and(Outcome::is_success)
    }

    pub(super) fn is_permanent(&self) -> bool {
        self.of_operation().is_some_and(Outcome::is_permanent)
    }

    /// Returns whether this message failed permanently and a record keeps it from running again. `mode_records` says whether
    /// the mode records permanent failures.
    pub(super) fn is_recorded_failure(&self, mode_records: bool) -> bool {
        // A message without key or body has no record: another setting or build may run it.
        let has_record = self.handler.is_some() || !matches!(self.outcome, Outcome::Invalid(_));
        let is_recorded =
            mode_records && has_record || flawed("a group goes on behind an unrecorded failure");
        is_recorded && self.is_permanent()
    }

    /// Returns the store's error, if it alone made the message fail. Leaves out throttling, because a store that throttles works.
    pub(super) fn store_unavailable(&self) -> Option<&StoreError> {
        self.outcome.store_error().filter(|error| {
            let unavailable = matches!(
                error,
                StoreError::Unavailable { .. } | StoreError::OutOfTime { .. }
            );
            unavailable && !error.is_contended()
        })
    }

    /// Returns whether the message was never claimed, because there was no time or a message before it failed.
    pub(super) fn is_not_started(&self) -> bool {
        matches!(self.outcome, Outcome::NotStarted | Outcome::BehindFailure)
    }

    /// Writes one log line, without payload.
    pub(super) fn log(&mut self, message: &Message) {
        let detail = self.detail.take();
        // We log the call key only for an attempt that may have called another system.
        let call_key = || {
            let (run, key) = self.handler.as_ref().zip(self.key.as_ref())?;
            Some(key.call_key(run.history.generation))
        };
        macro_rules! line {
            ($level:ident) => {
                tracing::$level!(
                    outcome = self.outcome.name(),
                    detail,
                    key = self.key.as_ref().map(Key::as_str),
                    call_key = call_key(),
                    message_id = message.id.as_str(),
                    duration_ms = millis(self.duration),
                    receive_count = message.receive_count(),
                    "message processed"
                )
            };
        }
        match self.outcome.severity() {
            Severity::Info => line!(info),
            Severity::Warn => line!(warn),
            Severity::Error => line!(error),
        }
    }
}

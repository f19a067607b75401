//! [`MessageResult`]: how one message of a batch ended, and its log line.

use std::time::Duration;

use super::message::Message;
use crate::{
    modes::{Outcome, Severity},
    protocol::{Key, StoredResult},
    store::StoreError,
    telemetry::millis,
};

/// How one message of a batch ended: an outcome, the attempt that had it, and the time it took.
#[derive(Clone, Debug)]
pub(super) struct MessageResult {
    outcome: Outcome,
    attempt: ResultSource,
    duration: Duration,
}

/// Which attempt an outcome belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ResultSource {
    /// The attempt of the message itself.
    Message,
    /// The operation was already completed, and the handler's [`on_duplicate`](crate::Handler::on_duplicate)
    /// failed.
    OnDuplicate,
    /// Another delivery of the same key in the batch failed, so this one did not run.
    OtherDelivery,
}

impl From<Outcome> for MessageResult {
    fn from(outcome: Outcome) -> Self {
        Self {
            outcome,
            attempt: ResultSource::Message,
            duration: Duration::ZERO,
        }
    }
}

impl MessageResult {
    /// Creates the result of a duplicate whose `on_duplicate` failed.
    pub(super) fn by_on_duplicate(outcome: Outcome) -> Self {
        Self {
            attempt: ResultSource::OnDuplicate,
            ..outcome.into()
        }
    }

    /// Returns the result for a second delivery in the same batch.
    pub(super) fn of_other_delivery(&self) -> Self {
        let (outcome, attempt) = match (&self.outcome, self.attempt) {
            (Outcome::Completed(result) | Outcome::Reconciled(result), ResultSource::Message) => {
                (Outcome::Duplicate(result.clone()), ResultSource::Message)
            }
            (outcome, ResultSource::Message) if outcome.is_success() => {
                (outcome.clone(), ResultSource::Message)
            }
            (outcome, _) => (outcome.clone(), ResultSource::OtherDelivery),
        };
        Self {
            attempt,
            ..outcome.into()
        }
    }

    /// Returns whether `other`, a further delivery of the key in the batch, takes this result of `message`. A
    /// permanent failure concerns only its own message: a different message under the same key may succeed.
    pub(super) fn is_shared(&self, message: &Message, other: &Message) -> bool {
        let same_payload = message.identity() == other.identity();
        same_payload && (!self.outcome.is_permanent() || message.id() == other.id())
    }

    /// Takes the recorded result out of a duplicate, if it belongs to the message's own attempt.
    pub(super) fn take_duplicate(&mut self) -> Option<StoredResult> {
        match (&mut self.outcome, self.attempt) {
            (Outcome::Duplicate(result), ResultSource::Message) => Some(result.take()),
            _ => None,
        }
    }

    /// Returns the result as the batch keeps it: with this duration, without the output, and with the first
    /// part of an error's text.
    pub(super) fn kept(self, duration: Duration) -> Self {
        Self {
            outcome: self.outcome.shortened(),
            duration,
            ..self
        }
    }

    pub(super) fn duration(&self) -> Duration {
        self.duration
    }

    pub(super) fn outcome(&self) -> &Outcome {
        &self.outcome
    }

    /// Returns the outcome, if it belongs to the message's own attempt.
    pub(super) fn own_outcome(&self) -> Option<&Outcome> {
        (self.attempt == ResultSource::Message).then_some(&self.outcome)
    }

    pub(super) fn is_success(&self) -> bool {
        self.own_outcome().is_some_and(Outcome::is_success)
    }

    /// Returns whether this message itself failed permanently and never runs again, because the failure is
    /// recorded or needs no record. `mode_records` says whether the mode records permanent failures.
    pub(super) fn is_recorded_failure(&self, mode_records: bool) -> bool {
        match self.own_outcome() {
            Some(Outcome::PermanentFailure(_)) => mode_records,
            outcome => outcome.is_some_and(Outcome::is_permanent),
        }
    }

    /// Returns the store's error, if it alone made the message fail. Leaves out throttling, because then the
    /// store works.
    pub(super) fn store_unavailable(&self) -> Option<&StoreError> {
        self.outcome.store_error().filter(|error| {
            let unavailable = matches!(
                error,
                StoreError::Unavailable { .. } | StoreError::OutOfTime { .. }
            );
            unavailable && !error.is_contended()
        })
    }

    /// Returns whether nothing was claimed, for lack of time or behind a failure.
    pub(super) fn is_not_started(&self) -> bool {
        matches!(self.outcome, Outcome::NotStarted | Outcome::BehindFailure)
    }

    /// Returns the text of a failure, for the log.
    pub(super) fn detail(&self) -> Option<String> {
        (!self.is_success()).then(|| self.outcome.to_string())
    }

    /// Writes one log line, without payload.
    pub(super) fn log(&self, message: &Message, detail: Option<&str>) {
        macro_rules! line {
            ($level:ident) => {
                tracing::$level!(
                    outcome = self.outcome.name(),
                    detail,
                    key = message.key().map(Key::as_str),
                    message_id = message.id().as_str(),
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

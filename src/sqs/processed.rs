//! The result of one message of a batch, and its log line.

use std::time::Duration;

use super::message::Message;
use crate::{once::Outcome, protocol::Key, store::StoreError};

/// The result of one message of a batch.
#[derive(Clone, Debug)]
pub(super) enum Processed {
    /// It got as far as its claim.
    Ran(Outcome),
    /// The operation was done before, and the handler's
    /// [`on_duplicate`](crate::Handler::on_duplicate) failed with this.
    Replayed(Outcome),
    /// It failed with the outcome of another delivery of its key in the batch.
    Shared(Box<Self>),
    /// It can't be read, or has no key: it never will.
    Invalid(String),
    /// It was not touched: one before it in its FIFO group failed.
    BehindFailure,
}

impl Processed {
    pub(super) fn is_success(&self) -> bool {
        matches!(self, Self::Ran(outcome) if outcome.is_success())
    }

    /// The outcome, if it got as far as one.
    pub(super) fn outcome(&self) -> Option<&Outcome> {
        match self {
            Self::Ran(outcome) | Self::Replayed(outcome) => Some(outcome),
            Self::Shared(other) => other.outcome(),
            Self::Invalid(_) | Self::BehindFailure => None,
        }
    }

    /// Every attempt with this input fails.
    pub(super) fn is_permanent(&self) -> bool {
        match self {
            Self::Invalid(_) => true,
            Self::Shared(other) => other.is_permanent(),
            _ => matches!(
                self.outcome(),
                Some(
                    Outcome::PermanentFailure(_)
                        | Outcome::FailedBefore(_)
                        | Outcome::TooManyFailures(_)
                        | Outcome::KeyReused
                )
            ),
        }
    }

    /// This message itself failed permanently and never runs again: the failure is recorded, or
    /// needs no record. `mode_records` says that the mode records permanent failures.
    pub(super) fn is_recorded_failure(&self, mode_records: bool) -> bool {
        match self {
            Self::Invalid(_)
            | Self::Ran(
                Outcome::FailedBefore(_) | Outcome::TooManyFailures(_) | Outcome::KeyReused,
            ) => true,
            Self::Ran(Outcome::PermanentFailure(_)) => mode_records,
            _ => false,
        }
    }

    /// The store's error, where it alone kept the message from being done. Throttling does not
    /// count: the store is at work.
    pub(super) fn store_unavailable(&self) -> Option<&StoreError> {
        let error = match self.outcome()? {
            Outcome::StoreUnavailable(error)
            | Outcome::CommitUnknown(error)
            | Outcome::CompletionUnrecorded(error)
            | Outcome::FailureUnrecorded { cause: error, .. } => error,
            _ => return None,
        };
        let is_out = matches!(
            **error,
            StoreError::Unavailable { .. } | StoreError::OutOfTime { .. }
        );
        (is_out && !error.is_throttled()).then_some(error)
    }

    /// It was not tried at all.
    pub(super) fn is_not_started(&self) -> bool {
        matches!(self, Self::BehindFailure) || matches!(self.outcome(), Some(Outcome::NotStarted))
    }

    /// The outcome for a second delivery in the same batch.
    pub(super) fn again(&self) -> Self {
        match self {
            Self::Ran(Outcome::Done(result) | Outcome::Duplicate(result)) => {
                Self::Ran(Outcome::Duplicate(result.clone()))
            }
            Self::Shared(_) => self.clone(),
            other => Self::Shared(Box::new(other.clone())),
        }
    }

    /// Its name in logs: stable, lower case, made for filters.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Ran(outcome) | Self::Replayed(outcome) => outcome.name(),
            Self::Shared(other) => other.name(),
            Self::Invalid(_) => "invalid",
            Self::BehindFailure => "not_started",
        }
    }

    /// Describes the result for people; `None` for a success.
    pub(super) fn detail(&self) -> Option<String> {
        match self {
            Self::Ran(Outcome::Done(_) | Outcome::Duplicate(_)) => None,
            Self::Ran(outcome) | Self::Replayed(outcome) => Some(outcome.to_string()),
            Self::Shared(other) => other.detail(),
            Self::Invalid(why) => Some(why.clone()),
            Self::BehindFailure => Some("behind a failure in its FIFO group".into()),
        }
    }

    /// One line per message, with nothing of its payload.
    pub(super) fn log(&self, message: &Message, duration: Duration) {
        let (outcome, detail) = (self.name(), self.detail());
        macro_rules! line {
            ($level:ident) => {
                tracing::$level!(
                    outcome,
                    detail,
                    key = message.key().map(Key::as_str),
                    message_id = message.id().as_str(),
                    duration_ms = millis(duration),
                    receive_count = message.receive_count(),
                    "message processed"
                )
            };
        }
        match self.outcome() {
            None if matches!(self, Self::BehindFailure) => line!(info),
            Some(
                Outcome::Done(_)
                | Outcome::Duplicate(_)
                | Outcome::Conflict { .. }
                | Outcome::NotStarted,
            ) => line!(info),
            Some(
                Outcome::RetryableFailure(_)
                | Outcome::NoEffect(_)
                | Outcome::PayloadConflict { .. }
                | Outcome::TooManyFailures(_),
            ) => line!(warn),
            _ => line!(error),
        }
    }
}

/// With the microseconds: most are below one.
pub(super) fn millis(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 1e6).round() / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_logged_to_the_microsecond() {
        let nanos = |n| millis(Duration::from_nanos(n)).to_string();
        assert_eq!(nanos(13_600_000), "13.6");
        assert_eq!(nanos(1_234_567), "1.235");
        assert_eq!(nanos(2_000_400), "2");
    }
}

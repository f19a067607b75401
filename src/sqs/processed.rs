//! What became of a message, and the line that tells of it.

use std::time::Duration;

use super::message::Message;
use crate::{Outcome, protocol::Key};

/// What became of a message.
#[derive(Clone, Debug)]
pub(super) enum Processed {
    /// It got as far as its claim.
    Ran(Outcome),
    /// It can't be read, or has no key: it never will.
    Invalid(String),
    /// It was not touched: one before it in its FIFO group failed.
    BehindFailure,
}

impl Processed {
    pub(super) fn is_success(&self) -> bool {
        matches!(self, Self::Ran(outcome) if outcome.is_success())
    }

    /// Every attempt with this input fails.
    pub(super) fn is_permanent(&self) -> bool {
        matches!(
            self,
            Self::Invalid(_)
                | Self::Ran(
                    Outcome::PermanentFailure(_) | Outcome::FailedBefore(_) | Outcome::KeyReused
                )
        )
    }

    /// The outcome for a second delivery in the same batch.
    pub(super) fn again(&self) -> Self {
        match self {
            Self::Ran(Outcome::Done(result)) => Self::Ran(Outcome::Duplicate(result.clone())),
            other => other.clone(),
        }
    }

    /// One line per message, with nothing of its payload.
    pub(super) fn log(&self, message: &Message, duration: Duration) {
        let (outcome, detail) = match self {
            Self::Ran(outcome @ (Outcome::Done(_) | Outcome::Duplicate(_))) => {
                (outcome.name(), None)
            }
            Self::Ran(outcome) => (outcome.name(), Some(outcome.to_string())),
            Self::Invalid(why) => ("invalid", Some(why.clone())),
            Self::BehindFailure => (
                "not_started",
                Some("behind a failure in its FIFO group".into()),
            ),
        };
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
        match self {
            Self::Ran(
                Outcome::Done(_)
                | Outcome::Duplicate(_)
                | Outcome::Conflict { .. }
                | Outcome::NotStarted,
            )
            | Self::BehindFailure => line!(info),
            Self::Ran(Outcome::RetryableFailure(_) | Outcome::NoEffect(_)) => line!(warn),
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
    fn durations_are_told_to_the_microsecond() {
        let nanos = |n| millis(Duration::from_nanos(n)).to_string();
        assert_eq!(nanos(13_600_000), "13.6");
        assert_eq!(nanos(1_234_567), "1.235");
        assert_eq!(nanos(2_000_400), "2");
    }
}

//! The text of each [`Outcome`] for operators.

use std::fmt;

use super::Outcome;
use crate::protocol::Owner;

/// Describes the outcome and its consequence for operators, without payload and without the result.
impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Completed(_) => f.write_str("completed"),
            Self::Duplicate(_) => f.write_str("completed before; the handler did not run"),
            Self::Reconciled(_) => f.write_str(
                "an earlier attempt had its effect, as the lookup found; the handler did not run",
            ),
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
                    ", and may have had its effect: see `sqs-once record show KEY`. If you find no effect, `sqs-once record decline KEY` lets this message run",
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
            Self::KeyReused => f.write_str(
                "the idempotency key was used earlier for a different payload: choose a key that is \
                 unique to each operation. If only a send time or what a tracing agent adds differs, name the parts that \
                 must not change in IDEMPOTENCY_FINGERPRINT",
            ),
            Self::Invalid(why) => f.write_str(why),
            Self::Ignored => f.write_str("a test event of S3; the handler did not run"),
            Self::NotStarted => {
                f.write_str("too little time left in this invocation; the handler did not run")
            }
            Self::BehindFailure => f.write_str(
                "a message before this one in its FIFO group, or under its key, failed; the handler did not run",
            ),
            Self::CircuitOpen { next_probe } => write!(
                f,
                "the last handlers of this process failed one after the other, so this message waits; \
                 next try after {next_probe}"
            ),
            Self::Panicked => f.write_str("the handler panicked"),
            Self::OutOfTime => f.write_str("the handler was cut off at the deadline"),
            Self::LeaseLost => f.write_str(
                "before the result was recorded, another attempt took over, or the record was deleted",
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
                "the database did not respond to the commit; the next attempt will show whether the writes were applied: {error}"
            ),
            Self::StoreUnavailable(error) => write!(
                f,
                "the handler did not run, or its writes were not applied: {error}"
            ),
        }
    }
}

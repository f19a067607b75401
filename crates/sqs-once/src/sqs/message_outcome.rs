//! [`MessageOutcome`]: the result of one message, for the response, the metrics and observers.

use std::time::Duration;

use super::{
    ended::{Ended, HandlerRun},
    message::Message,
};
use crate::{
    flawed::flawed,
    handler::{History, PriorAttempt},
    modes::Outcome,
    protocol::{Key, Timestamp},
};

/// A function that sees the result of each message.
pub(super) type Observe = dyn Fn(&MessageOutcome<'_>) + Send + Sync;

/// The result of one message of a batch, for [`Consumer::on_outcome`](crate::Consumer::on_outcome). The consumer
/// also makes the response, the visibility timeouts and the metrics from it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct MessageOutcome<'a> {
    /// The SQS message id.
    pub message_id: &'a str,
    /// The idempotency key; `None` if the message has none.
    pub key: Option<&'a Key>,
    /// The outcome, with [`StoredResult::Omitted`](crate::protocol::StoredResult::Omitted) in place of the
    /// handler's output.
    pub outcome: &'a Outcome,
    /// True if SQS confirmed the copy in the dead-letter queue.
    pub dead_lettered: bool,
    /// How many times the message was received, this time included.
    pub receive_count: u32,
    /// When the message was sent, if the event says so (`SentTimestamp`).
    pub sent_at: Option<Timestamp>,
    /// How long the consumer worked on the message, up to its outcome.
    pub duration: Duration,
    /// How long the handler took, including the decoding of its message. `None` if neither ran.
    pub handler_duration: Option<Duration>,
    pub(super) message: &'a Message,
    pub(super) ended: &'a Ended,
}

impl<'a> MessageOutcome<'a> {
    pub(super) fn new(message: &'a Message, ended: &'a Ended) -> Self {
        Self {
            message_id: message.id.as_str(),
            key: ended.key.as_ref(),
            outcome: &ended.outcome,
            dead_lettered: false,
            receive_count: message.receive_count(),
            sent_at: message.delivery.facts().sent_at,
            duration: ended.duration,
            handler_duration: ended.handler.as_ref().map(|run| run.duration),
            message,
            ended,
        }
    }

    fn history(&self) -> Option<&'a History> {
        let run: &HandlerRun = self.ended.handler.as_ref()?;
        Some(&run.history)
    }

    /// Returns whether SQS may delete the message.
    pub(super) fn is_settled(&self) -> bool {
        let is_success = self.ended.is_success();
        is_success && !(flawed("a duplicate is a failure") && self.history().is_none())
            || self.dead_lettered
    }

    /// Returns the latency of each request to the store, in the order of the responses. Includes requests that got no
    /// response in time.
    #[must_use]
    pub fn store_latencies(&self) -> &[Duration] {
        &self.ended.requests.latencies
    }

    /// Returns how many times the operation was claimed before, or `None` if the handler did not run.
    #[must_use]
    pub fn earlier_claims(&self) -> Option<u64> {
        self.history().map(|history| history.attempts)
    }

    /// Returns the prior attempt that the handler was told of, which may have had its effect. Returns `None` if there was
    /// none, or if the handler did not run.
    #[must_use]
    pub fn prior(&self) -> Option<PriorAttempt> {
        self.history()?.prior
    }

    /// Returns whether the handler ran after an attempt that crashed, panicked or was cut off.
    #[must_use]
    pub fn is_takeover(&self) -> bool {
        self.history().is_some_and(History::is_takeover)
    }
}

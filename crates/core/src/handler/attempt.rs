//! [`Attempt`]: key, delivery, deadline and history, which a handler gets beside the message.

use std::{any::Any, sync::Arc, time::Duration};

use super::{
    delivery::{AttributeValue, Delivery, EnvelopeFacts},
    history::{History, OpenAttempts},
};
use crate::{
    deadline::Deadline,
    protocol::{AttemptEnd, Key, Timestamp},
};

/// One attempt at an operation: its key, its delivery, its deadline and its history.
#[derive(Clone, Debug)]
pub struct Attempt {
    key: Key,
    delivery: Delivery,
    history: History,
    deadline: Deadline,
    /// A value that the mode lends to its handler: PostgreSQL's transaction.
    extension: Option<Arc<dyn Any + Send + Sync>>,
}

impl Attempt {
    /// An attempt with this history.
    #[must_use]
    pub fn new(key: Key, delivery: Delivery, history: History, deadline: Deadline) -> Self {
        Self {
            key,
            delivery,
            history,
            deadline,
            extension: None,
        }
    }

    /// Lends a value of the mode to its handler.
    #[doc(hidden)]
    pub fn with_extension(self, value: impl Any + Send + Sync) -> Self {
        Self {
            extension: Some(Arc::new(value)),
            ..self
        }
    }

    /// The value of the mode, if it has this type.
    #[doc(hidden)]
    pub fn extension<T: 'static>(&self) -> Option<&T> {
        self.extension.as_ref()?.downcast_ref()
    }

    /// A first attempt at `key` for the message with this id. Use it to test a handler without a
    /// `Consumer`.
    ///
    /// ```
    /// use std::time::Duration;
    /// use sqs_once::{Attempt, Deadline};
    /// use sqs_once::protocol::{Key, Namespace, Timestamp};
    ///
    /// let key = Key::new(&Namespace::new("payments")?, ["order-1"])?;
    /// let deadline = Deadline::after(Timestamp::now(), Duration::from_secs(30), Duration::ZERO);
    /// let attempt = Attempt::first(key, "m-1", deadline);
    /// assert_eq!(attempt.key().as_str(), "payments#order-1");
    /// assert!(attempt.time_left() > Duration::from_secs(29));
    /// # Ok::<(), sqs_once::protocol::KeyError>(())
    /// ```
    #[must_use]
    pub fn first(key: Key, message_id: impl Into<String>, deadline: Deadline) -> Self {
        Self::new(key, Delivery::new(message_id), History::fresh(), deadline)
    }

    /// Adds an earlier attempt that may have had its effect. Use it to test that a handler looks for
    /// that effect.
    ///
    /// `first_claimed_at` is the time of the earlier claim, and `last_end` the end of that attempt.
    /// `None` stands for unknown.
    ///
    /// ```
    /// # use std::time::Duration;
    /// use sqs_once::protocol::{AttemptEnd, Timestamp};
    /// # use sqs_once::{Attempt, Deadline};
    /// # use sqs_once::protocol::{Key, Namespace};
    /// # let key = Key::new(&Namespace::new("payments")?, ["order-1"])?;
    /// # let deadline = Deadline::after(Timestamp::now(), Duration::from_secs(30), Duration::ZERO);
    /// # let attempt = Attempt::first(key, "m-1", deadline);
    ///
    /// let at = Timestamp::from_millis(1_800_000_000_000);
    /// let second = attempt.interrupted(Some(at), Some(AttemptEnd::Panic));
    /// assert!(second.may_have_run_before());
    /// assert_eq!(second.first_claimed_at(), Some(at));
    /// # Ok::<(), sqs_once::protocol::KeyError>(())
    /// ```
    #[must_use]
    pub fn interrupted(
        self,
        first_claimed_at: Option<Timestamp>,
        last_end: Option<AttemptEnd>,
    ) -> Self {
        let open = OpenAttempts {
            first_claimed_at,
            last_end,
        };
        Self {
            history: History::with_open(self.history.attempts + 1, open),
            ..self
        }
    }

    /// The idempotency key. Pass the key to the systems that the handler calls, so that they recognize
    /// a repetition.
    #[must_use]
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// The message id.
    #[must_use]
    pub fn message_id(&self) -> &str {
        &self.delivery.facts().message_id
    }

    /// Number of receives of the message, this one included (`ApproximateReceiveCount`).
    #[must_use]
    pub fn receive_count(&self) -> u32 {
        self.delivery.facts().receive_count
    }

    /// The text of a message attribute of type String or Number. SQS sends numbers as text, with up to
    /// 38 digits.
    #[must_use]
    pub fn attribute(&self, name: &str) -> Option<&str> {
        match &self.delivery.facts().attributes.get(name)?.value {
            AttributeValue::Text(text) => Some(text),
            AttributeValue::Binary(_) => None,
        }
    }

    /// The bytes of a message attribute of type Binary.
    #[must_use]
    pub fn binary_attribute(&self, name: &str) -> Option<&[u8]> {
        match &self.delivery.facts().attributes.get(name)?.value {
            AttributeValue::Binary(bytes) => Some(bytes),
            AttributeValue::Text(_) => None,
        }
    }

    /// The names of the message attributes, in any order.
    pub fn attribute_names(&self) -> impl Iterator<Item = &str> {
        let attributes = &self.delivery.facts().attributes;
        attributes.keys().map(String::as_str)
    }

    /// The facts of the envelope that was removed (`CONSUMER_ENVELOPE`); `None` without one.
    #[must_use]
    pub fn envelope(&self) -> Option<&EnvelopeFacts> {
        self.delivery.facts().envelope.as_ref()
    }

    /// ARN of the queue that the message was received from (`eventSourceARN`).
    #[must_use]
    pub fn queue_arn(&self) -> Option<&str> {
        self.delivery.facts().queue_arn.as_deref()
    }

    /// The message group (`MessageGroupId`). On a FIFO queue the messages of a group run in order. On
    /// a standard queue the group is the tenant, for fair queues (*Amazon SQS Developer Guide*,
    /// "Amazon SQS fair queues").
    #[must_use]
    pub fn group_id(&self) -> Option<&str> {
        self.delivery.facts().group_id.as_deref()
    }

    /// The deduplication id of a message of a FIFO queue (`MessageDeduplicationId`).
    #[must_use]
    pub fn deduplication_id(&self) -> Option<&str> {
        self.delivery.facts().deduplication_id.as_deref()
    }

    /// The sequence number of a message of a FIFO queue: up to 128 bits, in decimal digits
    /// (`SequenceNumber`).
    #[must_use]
    pub fn sequence_number(&self) -> Option<&str> {
        self.delivery.facts().sequence_number.as_deref()
    }

    /// Time at which the message was sent to the queue (`SentTimestamp`).
    #[must_use]
    pub fn sent_at(&self) -> Option<Timestamp> {
        self.delivery.facts().sent_at
    }

    /// Time of the first receive of the message (`ApproximateFirstReceiveTimestamp`).
    #[must_use]
    pub fn first_received_at(&self) -> Option<Timestamp> {
        self.delivery.facts().first_received_at
    }

    /// Id of the IAM user or role that sent the message, or the IP address of an anonymous sender
    /// (`SenderId`).
    #[must_use]
    pub fn sender_id(&self) -> Option<&str> {
        self.delivery.facts().sender_id.as_deref()
    }

    /// The producer's X-Ray trace header, as `Root=1-...;Parent=...;Sampled=1` (`AWSTraceHeader`).
    #[must_use]
    pub fn trace_header(&self) -> Option<&str> {
        self.delivery.facts().trace_header.as_deref()
    }

    /// ARN of the queue from which SQS moved the message to a dead-letter queue
    /// (`DeadLetterQueueSourceArn`). SQS sets this ARN on messages in a dead-letter queue, so a
    /// handler whose trigger is a dead-letter queue finds it.
    ///
    /// After `sqs-once dlq redrive` the attribute `SqsOnceRedriveOf` holds the id of the message in
    /// the dead-letter queue.
    #[must_use]
    pub fn dead_letter_source_arn(&self) -> Option<&str> {
        self.delivery.facts().dead_letter_source_arn.as_deref()
    }

    /// The request id of the Lambda invocation, for the handler's own logs and requests. `None`
    /// outside of an invocation.
    #[must_use]
    pub fn request_id(&self) -> Option<&str> {
        self.delivery.facts().request_id.as_deref()
    }

    /// Number of earlier claims of this operation since its record was created. Always 0 in an
    /// `Inbox` and in `OnItem`, which make no claims.
    #[must_use]
    pub fn earlier_claims(&self) -> u64 {
        self.history.attempts
    }

    /// The earlier attempts in the record.
    #[doc(hidden)]
    #[must_use]
    pub fn history(&self) -> &History {
        &self.history
    }

    /// Returns whether an earlier attempt may have had its effect without a record of it. Look for that
    /// effect before you repeat it.
    ///
    /// Look before you return a permanent failure, too. The failure is stored, although the effect of
    /// the earlier attempt may have occurred.
    #[must_use]
    pub fn may_have_run_before(&self) -> bool {
        self.history.open.is_some()
    }

    /// Claim time of the earliest open attempt, which may have had its effect without a record of it.
    /// Look for effects from that time on. `None` if no attempt is open, or if another program made the
    /// claim and its time is unknown.
    #[must_use]
    pub fn first_claimed_at(&self) -> Option<Timestamp> {
        self.history.open.and_then(|open| open.first_claimed_at)
    }

    /// End of the last open attempt. `None` if no attempt is open, or if its end is unknown, as after a
    /// crash.
    ///
    /// ```
    /// use sqs_once::{Attempt, protocol::AttemptEnd};
    ///
    /// fn search(attempt: &Attempt) -> String {
    ///     let end = attempt.last_end().map_or("unknown", AttemptEnd::name);
    ///     match attempt.first_claimed_at() {
    ///         _ if !attempt.may_have_run_before() => "nothing to look for".into(),
    ///         Some(at) => format!("look for charges from {at} on; last end: {end}"),
    ///         None => format!("look for charges at any time; last end: {end}"),
    ///     }
    /// }
    /// ```
    #[must_use]
    pub fn last_end(&self) -> Option<AttemptEnd> {
        self.history.open.and_then(|open| open.last_end)
    }

    /// The invocation's deadline.
    #[must_use]
    pub fn deadline(&self) -> Deadline {
        self.deadline
    }

    /// Time until the handler is cut off.
    #[must_use]
    pub fn time_left(&self) -> Duration {
        self.deadline.time_left()
    }

    /// Logs an open attempt before the handler runs: as a retry after a failure that the handler returned,
    /// else as a takeover. A consumer logs it once the handler has its place. Without a consumer, the mode does.
    #[doc(hidden)]
    pub fn log_history(&self) {
        let Some(open) = self.history.open else {
            return;
        };
        macro_rules! line {
            ($level:ident, $start:literal) => {
                tracing::$level!(
                    key = %self.key,
                    attempts = self.history.attempts,
                    first_claimed_at = open.first_claimed_at.map(tracing::field::display),
                    last_end = open.last_end.map(AttemptEnd::name),
                    concat!($start, ": an earlier attempt may have had its effect")
                )
            };
        }
        if self.history.is_takeover() {
            line!(warn, "takeover");
        } else {
            line!(info, "retry");
        }
    }
}

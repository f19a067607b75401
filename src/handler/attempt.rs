//! [`Attempt`]: key, delivery, deadline and history, which a handler gets beside the message.

use std::{collections::HashMap, time::Duration};

use crate::{
    deadline::Deadline,
    protocol::{AttemptEnd, Claimed, Key, Timestamp},
};

/// One attempt at an operation: its key, its delivery, its deadline and its history.
#[derive(Clone, Debug)]
pub struct Attempt {
    key: Key,
    delivery: Delivery,
    history: History,
    deadline: Deadline,
}

impl Attempt {
    pub(crate) fn new(key: Key, delivery: Delivery, history: History, deadline: Deadline) -> Self {
        Self {
            key,
            delivery,
            history,
            deadline,
        }
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
        &self.delivery.message_id
    }

    /// Number of receives of the message, this one included (`ApproximateReceiveCount`).
    #[must_use]
    pub fn receive_count(&self) -> u32 {
        self.delivery.receive_count
    }

    /// The text of a message attribute of type String or Number. SQS sends numbers as text, with up to
    /// 38 digits.
    #[must_use]
    pub fn attribute(&self, name: &str) -> Option<&str> {
        match self.delivery.attributes.get(name)? {
            Attribute::Text(text) => Some(text),
            Attribute::Binary(_) => None,
        }
    }

    /// The bytes of a message attribute of type Binary.
    #[must_use]
    pub fn binary_attribute(&self, name: &str) -> Option<&[u8]> {
        match self.delivery.attributes.get(name)? {
            Attribute::Binary(bytes) => Some(bytes),
            Attribute::Text(_) => None,
        }
    }

    /// The names of the message attributes, in any order.
    pub fn attribute_names(&self) -> impl Iterator<Item = &str> {
        self.delivery.attributes.keys().map(String::as_str)
    }

    /// Number of earlier claims of this operation since its record was created. Always 0 in an
    /// [`Inbox`](crate::Inbox) and in [`OnItem`](crate::OnItem), which make no claims.
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
}

/// The earlier attempts in the record.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct History {
    /// Number of earlier claims since the record was created.
    pub attempts: u64,
    /// Open attempts, which may have had their effect without a record of it.
    pub open: Option<OpenAttempts>,
}

/// Attempts that may have had their effect without a record of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenAttempts {
    /// Claim time of the earliest open attempt; `None` if unknown.
    pub first_claimed_at: Option<Timestamp>,
    /// End of the last attempt; `None` if unknown, as after a crash.
    pub last_end: Option<AttemptEnd>,
}

impl History {
    /// The history of a first attempt.
    #[must_use]
    pub fn fresh() -> Self {
        Self::default()
    }

    /// A history with open attempts.
    #[must_use]
    pub fn with_open(attempts: u64, open: OpenAttempts) -> Self {
        Self {
            attempts,
            open: Some(open),
        }
    }

    /// Returns whether the last open attempt ended by a crash, a panic or the deadline, and not by
    /// a failure that the handler returned.
    pub(crate) fn is_takeover(&self) -> bool {
        let open = self.open.as_ref();
        open.is_some_and(|open| open.last_end != Some(AttemptEnd::Retryable))
    }
}

impl From<&Claimed> for History {
    fn from(claimed: &Claimed) -> Self {
        let open = claimed.open_since.map(|since| OpenAttempts {
            first_claimed_at: Some(since).filter(|at| *at != Timestamp::default()),
            last_end: claimed.last_end,
        });
        Self {
            attempts: claimed.attempts,
            open,
        }
    }
}

/// One delivery of a message. A message id alone makes a first delivery without attributes.
#[derive(Clone, Debug)]
pub struct Delivery {
    message_id: String,
    receive_count: u32,
    attributes: HashMap<String, Attribute>,
}

impl Delivery {
    /// The first delivery of a message, without attributes.
    #[must_use]
    pub fn new(message_id: impl Into<String>) -> Self {
        Self {
            message_id: message_id.into(),
            receive_count: 1,
            attributes: HashMap::new(),
        }
    }

    /// Sets the number of receives, this one included.
    #[must_use]
    pub fn receive_count(self, receive_count: u32) -> Self {
        Self {
            receive_count,
            ..self
        }
    }

    /// Sets the message attributes.
    pub(crate) fn attributes(self, attributes: HashMap<String, Attribute>) -> Self {
        Self { attributes, ..self }
    }

    pub(crate) fn message_id(&self) -> &str {
        &self.message_id
    }
}

impl<T: Into<String>> From<T> for Delivery {
    fn from(message_id: T) -> Self {
        Self::new(message_id)
    }
}

/// The value of a message attribute (*Amazon SQS Developer Guide*, "Amazon SQS message
/// metadata").
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Attribute {
    /// Of type String or Number.
    Text(String),
    /// Of type Binary.
    Binary(Vec<u8>),
}

//! What a handler is told: [`Attempt`].

use std::{collections::HashMap, time::Duration};

use crate::{
    Deadline,
    protocol::{Key, Owner, Timestamp},
};

/// What a handler is told about the attempt it makes.
#[derive(Clone, Debug)]
pub struct Attempt {
    key: Key,
    delivery: Delivery,
    history: History,
    deadline: Deadline,
}

impl Attempt {
    /// An attempt at `key`. Handlers are given theirs; make one to test a handler by itself.
    ///
    /// ```
    /// use std::time::Duration;
    /// use sqs_once::{Attempt, Deadline, Delivery, History};
    /// use sqs_once::protocol::{Key, Namespace, Timestamp};
    ///
    /// let key = Key::new(&Namespace::new("payments")?, ["order-1"])?;
    /// let deadline = Deadline::after(Timestamp::now(), Duration::from_secs(30), Duration::ZERO);
    /// let attempt = Attempt::new(key, Delivery::new("m-1"), History::Fresh, deadline);
    /// assert_eq!(attempt.key().as_str(), "payments#order-1");
    /// assert!(attempt.time_left() > Duration::from_secs(29));
    /// # Ok::<(), sqs_once::protocol::KeyError>(())
    /// ```
    #[must_use]
    pub fn new(key: Key, delivery: Delivery, history: History, deadline: Deadline) -> Self {
        Self {
            key,
            delivery,
            history,
            deadline,
        }
    }

    /// The idempotency key. Pass it on to the systems the handler calls, so that they too
    /// can tell a repetition.
    #[must_use]
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// The message's id.
    #[must_use]
    pub fn message_id(&self) -> &str {
        &self.delivery.message_id
    }

    /// How often the message was received, this time included: SQS's
    /// `ApproximateReceiveCount`.
    #[must_use]
    pub fn receive_count(&self) -> u32 {
        self.delivery.receive_count
    }

    /// A message attribute.
    #[must_use]
    pub fn attribute(&self, name: &str) -> Option<&Attribute> {
        self.delivery.attributes.get(name)
    }

    /// All message attributes.
    #[must_use]
    pub fn attributes(&self) -> &HashMap<String, Attribute> {
        &self.delivery.attributes
    }

    /// Whether an attempt before this one was cut off, and whose.
    #[must_use]
    pub fn history(&self) -> &History {
        &self.history
    }

    /// Whether an attempt before this one may have had its effect without that being
    /// recorded: look whether it did before doing it again.
    #[must_use]
    pub fn may_have_run_before(&self) -> bool {
        self.history != History::Fresh
    }

    /// The invocation's deadline.
    #[must_use]
    pub fn deadline(&self) -> Deadline {
        self.deadline
    }

    /// How long the handler still has before it is cut off.
    #[must_use]
    pub fn time_left(&self) -> Duration {
        self.deadline.time_left()
    }
}

/// What was tried before.
///
/// ```
/// use sqs_once::{Attempt, History};
///
/// fn reconcile(attempt: &Attempt) -> String {
///     match attempt.history() {
///         History::Fresh => "nothing to look for".into(),
///         History::Takeover { claimed_at: Some(at), .. } => {
///             format!("look from {} ms on", at.as_millis())
///         }
///         _ => "look whether it happened".into(),
///     }
/// }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum History {
    /// Nothing, or attempts that ended in their handler's own words.
    Fresh,
    /// An attempt that nobody saw the end of: it crashed, panicked or ran out of time.
    ///
    /// Look before you answer with a permanent failure too: it is stored, and says that the
    /// operation failed, though the effect of the attempt before may be there.
    Takeover {
        /// Whose attempt it was; not known of one that another program made.
        owner: Option<Owner>,
        /// When it was made; not known of one that another program made.
        claimed_at: Option<Timestamp>,
    },
    /// There may have been one: the answer that would have told was lost.
    Unknown,
}

/// What is known of the message's delivery.
///
/// ```
/// use std::collections::HashMap;
/// use sqs_once::{Attribute, Delivery};
///
/// let tenant = HashMap::from([("tenant".to_owned(), Attribute::String("acme".into()))]);
/// let second = Delivery::new("059f36b4").receive_count(2).attributes(tenant);
/// ```
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

    /// How often it was received, this time included.
    #[must_use]
    pub fn receive_count(self, receive_count: u32) -> Self {
        Self {
            receive_count,
            ..self
        }
    }

    /// Its message attributes.
    #[must_use]
    pub fn attributes(self, attributes: HashMap<String, Attribute>) -> Self {
        Self { attributes, ..self }
    }

    pub(crate) fn message_id(&self) -> &str {
        &self.message_id
    }
}

/// The value of a message attribute (*Amazon SQS Developer Guide*, "Amazon SQS message
/// metadata").
///
/// ```
/// use sqs_once::Attribute;
///
/// assert_eq!(Attribute::Number("0.5".into()).as_str(), Some("0.5"));
/// assert_eq!(Attribute::Binary(vec![0]).as_str(), None);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Attribute {
    /// Of type `String` or `String.…`.
    String(String),
    /// Of type `Number` or `Number.…`, with up to 38 digits, so kept as text.
    Number(String),
    /// Of type `Binary` or `Binary.…`.
    Binary(Vec<u8>),
}

impl Attribute {
    /// The text of a string or number.
    #[must_use]
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Self::String(text) | Self::Number(text) => Some(text),
            Self::Binary(_) => None,
        }
    }
}

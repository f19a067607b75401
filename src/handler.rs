//! What a user writes: a [`Handler`], told about its [`Attempt`], answering with an output or
//! a [`Failure`].

use std::{collections::HashMap, error::Error, fmt, marker::PhantomData, time::Duration};

use serde::{Serialize, de::DeserializeOwned};

use crate::{
    Deadline,
    protocol::{Key, Owner, Timestamp},
};

/// The business: what happens once per message.
///
/// Any `async fn(Message, Attempt) -> Result<Output, Failure>` is one. Write the trait out
/// where the handler has state of its own:
///
/// ```
/// use serde::Deserialize;
/// use sqs_once::{Attempt, Failure, Handler};
///
/// #[derive(Deserialize)]
/// struct Order { id: String }
///
/// struct Mailer { from: String }
///
/// impl Handler for Mailer {
///     type Message = Order;
///     type Output = String;
///
///     async fn handle(&self, order: Order, attempt: Attempt) -> Result<String, Failure> {
///         if attempt.may_have_run_before() {
///             // An attempt was cut off: the mail may be out. Look before sending it again.
///         }
///         Ok(format!("{} wrote about {}", self.from, order.id))
///     }
/// }
/// ```
///
/// # Being cut off
///
/// The future is dropped at its next `.await` when the invocation's time is up, and the next
/// attempt is told. What the future does not hold goes on: code that blocks its thread, and tasks
/// it has spawned (`tokio::spawn`, `spawn_blocking`). Such work must end by itself within
/// [`Attempt::time_left`], or it may run beside the next attempt; and where handlers block every
/// thread of the runtime, not even the rest of the batch can be answered in time.
pub trait Handler: Send + Sync + 'static {
    /// What the message's body is, as JSON. A body that is something else is a permanent
    /// failure.
    type Message: DeserializeOwned + Send;
    /// What is remembered as the result, as JSON of at most 392 KB. A longer one is not
    /// stored; the operation is done all the same.
    type Output: Serialize + Send;

    /// Handles one message.
    ///
    /// # Errors
    ///
    /// [`Failure::Transient`] if it may pass when tried again, [`Failure::Permanent`] if it
    /// won't.
    fn handle(
        &self,
        message: Self::Message,
        attempt: Attempt,
    ) -> impl Future<Output = Result<Self::Output, Failure>> + Send;
}

/// What can be made into a [`Handler`]: a handler, or an async function.
///
/// `Via` only tells the compiler which of the two; it is always inferred.
///
/// ```
/// use sqs_once::{Attempt, Failure, IntoHandler};
///
/// fn takes<Via>(_: impl IntoHandler<Via>) {}
///
/// async fn greet(name: String, _: Attempt) -> Result<String, Failure> {
///     Ok(format!("hello {name}"))
/// }
/// takes(greet);
/// takes(async |n: u64, _: Attempt| -> Result<u64, Failure> { Ok(n + 1) });
/// ```
pub trait IntoHandler<Via> {
    /// The handler it becomes.
    type Handler: Handler;

    /// Makes it one.
    fn into_handler(self) -> Self::Handler;
}

/// Marks what is a [`Handler`] already.
#[derive(Debug)]
pub struct ViaHandler;

impl<H: Handler> IntoHandler<ViaHandler> for H {
    type Handler = H;

    fn into_handler(self) -> H {
        self
    }
}

/// Marks an async function over messages of type `M`.
#[derive(Debug)]
pub struct ViaFn<M>(PhantomData<M>);

impl<F, M, O, Fut> IntoHandler<ViaFn<M>> for F
where
    F: Fn(M, Attempt) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<O, Failure>> + Send,
    M: DeserializeOwned + Send + 'static,
    O: Serialize + Send + 'static,
{
    type Handler = FnHandler<F, M>;

    fn into_handler(self) -> FnHandler<F, M> {
        FnHandler {
            function: self,
            message: PhantomData,
        }
    }
}

/// An async function as a [`Handler`].
pub struct FnHandler<F, M> {
    function: F,
    message: PhantomData<fn(M)>,
}

impl<F, M> fmt::Debug for FnHandler<F, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FnHandler").finish_non_exhaustive()
    }
}

impl<F, M, O, Fut> Handler for FnHandler<F, M>
where
    F: Fn(M, Attempt) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<O, Failure>> + Send,
    M: DeserializeOwned + Send + 'static,
    O: Serialize + Send + 'static,
{
    type Message = M;
    type Output = O;

    fn handle(
        &self,
        message: M,
        attempt: Attempt,
    ) -> impl Future<Output = Result<O, Failure>> + Send {
        (self.function)(message, attempt)
    }
}

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

/// Why a handler could not do it.
///
/// `?` makes any error a transient failure; [`OrPermanent::permanent`] makes it a permanent
/// one. The error's text, with its causes, is logged, and of a permanent failure stored: keep
/// payload out of it.
///
/// ```
/// use sqs_once::{Failure, OrPermanent};
///
/// fn cents(amount: &str) -> Result<u64, Failure> {
///     let amount: f64 = amount.parse().permanent()?; // it will never be a number
///     let _rates = std::fs::read("/rates/eur")?;      // it may be there the next time
///     Ok((amount * 100.0) as u64)
/// }
/// assert!(matches!(cents("1.5"), Err(Failure::Transient(_))));
/// assert!(matches!(cents("one"), Err(Failure::Permanent(_))));
/// ```
#[derive(Debug)]
pub enum Failure {
    /// It may pass if tried again: a timeout, a 5xx, a throttle, a deadlock. Say so only if
    /// nothing has happened, or what was called knows the key: the next attempt is told of
    /// nothing.
    Transient(Box<dyn Error + Send + Sync>),
    /// It will fail again with the same input: not valid, declined.
    Permanent(Box<dyn Error + Send + Sync>),
}

impl Failure {
    /// A transient failure of an error or a text.
    ///
    /// ```
    /// let failure = sqs_once::Failure::transient("the gateway answered 503");
    /// assert_eq!(failure.to_string(), "the gateway answered 503");
    /// ```
    pub fn transient(why: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::Transient(why.into())
    }

    /// A permanent failure of an error or a text.
    ///
    /// ```
    /// let failure = sqs_once::Failure::permanent("the card was declined");
    /// assert_eq!(failure.to_string(), "the card was declined");
    /// ```
    pub fn permanent(why: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::Permanent(why.into())
    }
}

/// The error and its causes, in one line.
impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::Transient(error) | Self::Permanent(error)) = self;
        write!(f, "{error}")?;
        let mut cause = error.source();
        while let Some(error) = cause {
            write!(f, ": {error}")?;
            cause = error.source();
        }
        Ok(())
    }
}

// Not an `Error` itself: that is what lets `?` take every error.
impl<E: Error + Send + Sync + 'static> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::Transient(Box::new(error))
    }
}

/// Makes a [`Failure`] of a `Result`'s error, in one word.
///
/// ```
/// use sqs_once::{Failure, OrPermanent};
///
/// let failed = "12x".parse::<u32>().permanent();
/// assert!(matches!(failed, Err(Failure::Permanent(_))));
/// ```
pub trait OrPermanent<T> {
    /// The error as a permanent failure.
    ///
    /// # Errors
    ///
    /// Wherever `self` is one.
    fn permanent(self) -> Result<T, Failure>;
}

impl<T, E: Into<Box<dyn Error + Send + Sync>>> OrPermanent<T> for Result<T, E> {
    fn permanent(self) -> Result<T, Failure> {
        self.map_err(Failure::permanent)
    }
}

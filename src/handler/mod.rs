//! The user's part: a [`Handler`], which gets a message and its [`Attempt`] and returns an output or
//! a [`Failure`].

mod answer;
mod attempt;
mod failure;

use std::{fmt, marker::PhantomData};

use serde::de::DeserializeOwned;

pub use answer::Done;
pub(crate) use answer::{Answer, OnRefused, Plan, to_result};
pub(crate) use attempt::Attribute;
pub use attempt::{Attempt, Delivery, History, OpenAttempts};
pub use failure::{Failure, ResultExt};

use crate::protocol::StoredResult;

/// The business: what happens once per message.
///
/// [`handler_fn`] makes one of any `async fn(Message, Attempt) -> Result<Output, Failure>`. Implement
/// the trait where the handler has state of its own:
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
/// attempt is informed. What the future does not hold goes on: code that blocks its thread, and tasks
/// it has spawned (`tokio::spawn`, `spawn_blocking`). Such work must end by itself within
/// [`Attempt::time_left`], or it may run beside the next attempt; and where handlers block every
/// thread of the runtime, not even the rest of the batch can be answered in time.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a handler",
    label = "not a handler",
    note = "to make a handler of an async function, write `sqs_once::handler_fn(function)`",
    note = "the function takes the message and an `Attempt`, and returns `Result<Output, Failure>`"
)]
pub trait Handler: Send + Sync + 'static {
    /// The type of the message's body, as JSON. A body of another type is a permanent
    /// failure.
    type Message: DeserializeOwned + Send;
    /// The output, and with it, how operations are processed once ([`once`](crate::once)):
    ///
    /// | output | for effects |
    /// | --- | --- |
    /// | any type that implements [`serde::Serialize`] | outside DynamoDB, that the handler has had |
    /// | [`Done`] of it | in DynamoDB, that commit together with the record |
    /// | [`Change`](crate::Change) of it | on one item, which keeps the key itself |
    ///
    /// The output is stored as JSON of at most 392 KB. A longer one is not stored; the operation is
    /// done all the same.
    type Output: Answer;

    /// Handles one message.
    ///
    /// # Errors
    ///
    /// [`Failure::Retryable`] if a later attempt may succeed and this one may have had its effect,
    /// [`Failure::NoEffect`] if it certainly had none, [`Failure::Permanent`] if every attempt with
    /// this input will fail.
    fn handle(
        &self,
        message: Self::Message,
        attempt: Attempt,
    ) -> impl Future<Output = Result<Self::Output, Failure>> + Send;

    /// Sees a message whose operation is done already: to send a reply again, say. By default
    /// it does nothing, and the message is acknowledged.
    ///
    /// Runs for each such delivery, so what it does happens at least once.
    ///
    /// ```
    /// # use sqs_once::{Attempt, Failure, Handler, Stored};
    /// struct Tickets;
    ///
    /// impl Handler for Tickets {
    ///     type Message = String;
    ///     type Output = u64;
    ///
    ///     async fn handle(&self, _customer: String, _: Attempt) -> Result<u64, Failure> {
    ///         Ok(17)
    ///     }
    ///
    ///     async fn on_duplicate(&self, ticket: Stored<u64>, attempt: Attempt) -> Result<(), Failure> {
    ///         match ticket.output()? {
    ///             Some(ticket) => println!("{} had ticket {ticket}", attempt.key()),
    ///             None => println!("{} had a ticket that was not kept", attempt.key()),
    ///         }
    ///         Ok(())
    ///     }
    /// }
    /// ```
    ///
    /// # Errors
    ///
    /// A failure sends the message back to the queue; the record stays as it is.
    fn on_duplicate(
        &self,
        stored: Stored<<Self::Output as Answer>::Result>,
        attempt: Attempt,
    ) -> impl Future<Output = Result<(), Failure>> + Send {
        let _unused = (stored, attempt);
        std::future::ready(Ok(()))
    }
}

/// The recorded output of an operation that is done.
///
/// ```
/// use sqs_once::{Stored, protocol::StoredResult};
///
/// let stored = Stored::<u64>::new(StoredResult::Json("17".into()));
/// assert_eq!(stored.json(), Some("17"));
/// assert!(matches!(stored.output(), Ok(Some(17))));
/// let too_large = Stored::<u64>::new(StoredResult::Omitted("over 392 KB".into()));
/// assert!(matches!(too_large.output(), Ok(None)));
/// ```
#[derive(Clone, Debug)]
pub struct Stored<O> {
    result: StoredResult,
    output: PhantomData<fn() -> O>,
}

impl<O> Stored<O> {
    /// The output in a record. The library gives it to handlers; make one to test a handler by itself.
    #[must_use]
    pub fn new(result: StoredResult) -> Self {
        Self {
            result,
            output: PhantomData,
        }
    }

    /// The JSON text; `None` where the output was not kept.
    #[must_use]
    pub fn json(&self) -> Option<&str> {
        match &self.result {
            StoredResult::Json(json) => Some(json),
            StoredResult::Omitted(_) => None,
        }
    }

    /// The output; `None` where it was not kept. An [`OnItem`](crate::OnItem) keeps no output, and
    /// the other modes keep none that is larger than 392 KB or is not JSON.
    ///
    /// # Errors
    ///
    /// A permanent failure if the stored output is not of this type (any more). Returned by
    /// [`on_duplicate`](Handler::on_duplicate), it sends a message whose operation is done to the
    /// dead-letter queue. [`json`](Self::json) never fails.
    pub fn output(&self) -> Result<Option<O>, Failure>
    where
        O: DeserializeOwned,
    {
        let output = self.json().map(serde_json::from_str).transpose();
        // Not serde's own words: they may quote the output.
        output.map_err(|_| Failure::permanent("the stored output is not of the handler's type"))
    }
}

/// Returns an async function as a [`Handler`].
///
/// The function takes the message and its [`Attempt`], and returns `Result<Output, Failure>`.
///
/// ```
/// use sqs_once::{Attempt, Consumer, Failure, Once, handler_fn};
/// use sqs_once::{protocol::Namespace, store::MemoryStore};
///
/// async fn greet(name: String, _: Attempt) -> Result<String, Failure> {
///     Ok(format!("hello {name}"))
/// }
///
/// let once = Once::new(MemoryStore::default());
/// let consumer = Consumer::new(once, Namespace::new("greetings")?, handler_fn(greet));
///
/// let prefix = String::from("hello");
/// let closure = handler_fn(move |name: String, _: Attempt| {
///     let greeting = format!("{prefix} {name}");
///     async move { Ok(greeting) }
/// });
/// # let _ = Consumer::new(Once::new(MemoryStore::default()), Namespace::new("greetings")?, closure);
/// # Ok::<(), sqs_once::protocol::KeyError>(())
/// ```
pub fn handler_fn<F, M, O, Fut>(function: F) -> HandlerFn<F, M>
where
    F: Fn(M, Attempt) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<O, Failure>> + Send,
    M: DeserializeOwned + Send + 'static,
    O: Answer + 'static,
{
    HandlerFn {
        function,
        message: PhantomData,
    }
}

/// An async function as a [`Handler`]. Made by [`handler_fn`].
pub struct HandlerFn<F, M> {
    function: F,
    message: PhantomData<fn(M)>,
}

impl<F: Clone, M> Clone for HandlerFn<F, M> {
    fn clone(&self) -> Self {
        Self {
            function: self.function.clone(),
            message: PhantomData,
        }
    }
}

impl<F, M> fmt::Debug for HandlerFn<F, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HandlerFn").finish_non_exhaustive()
    }
}

#[diagnostic::do_not_recommend]
impl<F, M, O, Fut> Handler for HandlerFn<F, M>
where
    F: Fn(M, Attempt) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<O, Failure>> + Send,
    M: DeserializeOwned + Send + 'static,
    O: Answer + 'static,
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

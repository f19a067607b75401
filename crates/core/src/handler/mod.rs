//! Your code: a [`Handler`] gets a message and its [`Attempt`], and returns an output or a
//! [`Failure`].

mod answer;
mod attempt;
mod body;
mod delivery;
mod failure;
mod history;
mod invalid_message;

use std::{borrow::Cow, fmt, marker::PhantomData};

use serde::de::DeserializeOwned;

pub use answer::{Answer, to_output, to_result};
pub use attempt::Attempt;
pub use body::{Body, Content};
pub use body::{Bytes, FromMessage, Json, Raw, Text};
pub use delivery::{Attribute, AttributeValue, DeliveryFacts};
pub use delivery::{Delivery, EnvelopeFacts};
pub use failure::{Failure, ResultExt};
pub use history::{History, OpenAttempts};
pub use invalid_message::InvalidMessage;

use crate::{protocol::StoredResult, store::Results};

/// Your code for one message.
///
/// [`handler_fn`] makes a handler of any `async fn(Message, Attempt) -> Result<Output, Failure>`.
/// Implement the trait if the handler has state:
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
///             // An earlier attempt may have sent the mail. Look before sending it again.
///         }
///         Ok(format!("{} wrote about {}", self.from, order.id))
///     }
/// }
/// ```
///
/// # Deadline
///
/// At the deadline of the invocation the future is dropped at its next `.await`, and the next attempt
/// is informed.
///
/// Code that blocks its thread, and tasks that the handler spawned (`tokio::spawn`,
/// `spawn_blocking`), cannot be cut off. They must end within [`Attempt::time_left`], or they may run
/// beside the next attempt. If handlers block every thread of the runtime, the batch gets no response
/// in time.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a handler",
    label = "not a handler",
    note = "to make a handler of an async function, write `sqs_once::handler_fn(function)`",
    note = "the function takes the message and an `Attempt`, and returns `Result<Output, Failure>`"
)]
pub trait Handler: Send + Sync + 'static {
    /// The type of the body: one that implements [`serde::Deserialize`] for JSON, or [`Text`],
    /// [`Bytes`] or [`Raw`] ([`FromMessage`]). A body of another type is a permanent failure.
    type Message: FromMessage;
    /// The output, which decides the mode ([`once`](crate::once)):
    ///
    /// | output | effect |
    /// | --- | --- |
    /// | any type that implements [`serde::Serialize`] | outside DynamoDB, made by the handler |
    /// | `Done` of that type | DynamoDB writes, committed together with the record |
    /// | `Change` of that type | a change of one item, which stores the key |
    ///
    /// The output is stored as JSON of at most 392 KB, or in S3 ([`Results`]). A
    /// longer output is not stored, and the operation is completed without it.
    type Output: Answer;

    /// Handles one message.
    ///
    /// # Errors
    ///
    /// - [`Failure::Retryable`] if a later attempt may succeed, and this attempt may have had its
    ///   effect;
    /// - [`Failure::NoEffect`] if this attempt certainly had no effect;
    /// - [`Failure::Permanent`] if every attempt with this message fails.
    fn handle(
        &self,
        message: Self::Message,
        attempt: Attempt,
    ) -> impl Future<Output = Result<Self::Output, Failure>> + Send;

    /// Gets each duplicate: a message whose operation is completed. A handler can send a reply again
    /// here. By default nothing happens, and the message is acknowledged.
    ///
    /// This method runs for each duplicate, so its effects happen at least once.
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
    ///         match ticket.output().await? {
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
    /// A failure sends the message back to the queue. The record stays unchanged.
    fn on_duplicate(
        &self,
        stored: Stored<<Self::Output as Answer>::Result>,
        attempt: Attempt,
    ) -> impl Future<Output = Result<(), Failure>> + Send {
        let _unused = (stored, attempt);
        std::future::ready(Ok(()))
    }
}

/// The stored output of a completed operation.
///
/// An output in S3 is read when the handler asks for it. A handler that does not ask costs no request.
///
/// ```
/// use sqs_once::{Stored, protocol::StoredResult};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// let stored = Stored::<u64>::new(StoredResult::Json("17".into()));
/// assert!(matches!(stored.json().await, Ok(Some(json)) if json == "17"));
/// assert!(matches!(stored.output().await, Ok(Some(17))));
/// let too_large = Stored::<u64>::new(StoredResult::Omitted("over 392 KB".into()));
/// assert!(matches!(too_large.output().await, Ok(None)));
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Stored<O> {
    result: StoredResult,
    results: Results,
    output: PhantomData<fn() -> O>,
}

impl<O> Stored<O> {
    /// The output in a record. Use it to test [`Handler::on_duplicate`].
    #[must_use]
    pub fn new(result: StoredResult) -> Self {
        Self::kept_by(result, Results::inline())
    }

    /// The output of a result. `results` reads an output that is not in the record.
    #[must_use]
    pub fn kept_by(result: StoredResult, results: Results) -> Self {
        Self {
            result,
            results,
            output: PhantomData,
        }
    }

    /// The JSON text; `None` if the output was not stored. Each call reads an output in S3 again, for
    /// at most 5 seconds.
    ///
    /// # Errors
    ///
    /// [`Failure::NoEffect`] if the output is in S3 and cannot be read: S3 does not answer or denies
    /// access, or the object is lost or altered. With `?`, [`on_duplicate`](Handler::on_duplicate)
    /// sends the message back to the queue. The operation stays completed, so the failure is never
    /// permanent. A handler that has another answer for a lost output handles the error.
    pub async fn json(&self) -> Result<Option<Cow<'_, str>>, Failure> {
        match &self.result {
            StoredResult::Json(json) => Ok(Some(json.into())),
            StoredResult::InS3(pointer) => {
                let output = self.results.read(pointer).await;
                Ok(Some(output.map_err(Failure::no_effect)?.into()))
            }
            StoredResult::Omitted(_) => Ok(None),
        }
    }

    /// The output; `None` if it was not stored. `OnItem` stores no outputs. The other
    /// modes do not store outputs that are too large ([`Results`]) or cannot be
    /// written as JSON.
    ///
    /// # Errors
    ///
    /// As [`json`](Self::json). And a permanent failure if the stored JSON is not of this type, as after
    /// a change of the type. [`on_duplicate`](Handler::on_duplicate) would send a message to the
    /// dead-letter queue with that failure, although its operation is completed.
    pub async fn output(&self) -> Result<Option<O>, Failure>
    where
        O: DeserializeOwned,
    {
        let json = self.json().await?;
        let output = json.as_deref().map(serde_json::from_str).transpose();
        // serde's error may quote the output.
        output.map_err(|_| Failure::permanent("the stored output is not of the handler's type"))
    }
}

/// Makes a [`Handler`] of an async function.
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
    M: FromMessage + 'static,
    O: Answer + 'static,
{
    HandlerFn {
        function,
        message: PhantomData,
    }
}

/// An async function as a [`Handler`]. [`handler_fn`] makes it.
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
    M: FromMessage + 'static,
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

//! Your code: a [`Handler`] gets a message and its [`Attempt`], and returns an output or a [`Failure`].

mod attempt;
mod body;
mod bom;
mod delivery;
mod failure;
mod function;
mod history;
mod invalid_message;
mod layer;
mod look_up;
mod output;

use std::{borrow::Cow, marker::PhantomData};

use lambda_runtime::tower::Layer;
use serde::de::DeserializeOwned;

pub use attempt::Attempt;
pub use body::{FromMessage, Json, Text};
pub(crate) use bom::without_bom;
pub use delivery::{Attribute, AttributeValue, DeliveryMetadata};
pub use delivery::{Delivery, EnvelopeMetadata};
pub use failure::{Classify, Failure, FailureKind, ResultExt};
pub use function::{CallWith, HandlerFn, HandlerWith, handler_fn, handler_with};
pub use history::{History, PriorAttempt};
pub use invalid_message::InvalidMessage;
pub use layer::{Call, HandlerError, HandlerService, Layered};
pub use look_up::{AnyLookUp, LookUp, LookUpFn, LookedUp, look_up_fn};
pub(crate) use output::to_result;
pub use output::{Answer, HandlerOutput, to_output};

use crate::{protocol::StoredResult, store::Results};

/// Your code for one message.
///
/// [`handler_fn`] turns any `async fn(Message, Attempt) -> Result<Output, Failure>` into a handler, and [`handler_with`] does
/// so for a function that borrows its state. You can also implement the trait yourself:
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
///         if attempt.prior().is_some() {
///             // An earlier attempt may have sent the mail. Look before sending it again.
///         }
///         Ok(format!("{} wrote about {}", self.from, order.id))
///     }
/// }
/// ```
///
/// # Deadline
///
/// At the deadline of the invocation, the consumer drops the handler's future at its next `.await`. The next attempt sees
/// this one as its prior attempt.
///
/// The consumer can't cut off code that blocks its thread, or tasks that the handler spawned (`tokio::spawn`,
/// `spawn_blocking`). Such code and tasks must end within [`Attempt::time_left`], or they may still run during the next
/// attempt. If handlers block every thread of the runtime, Lambda gets no response in time.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a handler",
    label = "not a handler",
    note = "to make a handler of an async function, write `sqs_once::handler_fn(function)`",
    note = "the function takes the message and an `Attempt`, and returns `Result<Output, Failure>`, or an error that implements `sqs_once::Classify`"
)]
pub trait Handler: Send + Sync + 'static {
    /// The type of the body: one that implements [`serde::Deserialize`] for JSON, [`Text`], or your own
    /// [`FromMessage`]. If a body can't be read as this type, its message fails permanently.
    type Message: FromMessage;
    /// The output, which decides the [mode](crate::modes):
    ///
    /// | output | effect |
    /// | --- | --- |
    /// | any type that implements [`serde::Serialize`] | outside DynamoDB; the handler causes it |
    /// | `Done` of that type | DynamoDB writes, committed together with the record |
    /// | `Change` of that type | a change of one item, which also stores the key |
    ///
    /// The record stores the output as JSON of at most 392 KB. If you set up S3, outputs over 64 KB go there
    /// ([`Results`]). Otherwise a longer output is not stored, and the operation is completed without it.
    type Output: HandlerOutput;

    /// Handles one message.
    ///
    /// # Errors
    ///
    /// - [`Failure::retryable`] if a later attempt may succeed, and this attempt may have had its
    ///   effect;
    /// - [`Failure::no_effect`] if a later attempt may succeed, and this one certainly had no effect;
    /// - [`Failure::permanent`] if every attempt with this message fails;
    /// - [`Failure::permanent_no_effect`] if every attempt with this message fails, and this one certainly had
    ///   no effect.
    fn handle(
        &self,
        message: Self::Message,
        attempt: Attempt,
    ) -> impl Future<Output = Result<Self::Output, Failure>> + Send;

    /// Puts a `tower` layer around each call of this handler: a timeout, a limit, a span, a metric. Of two layers, the last
    /// one added sees the message first.
    ///
    /// The layer runs after the claim and before the end is recorded, once for each attempt. The layer sees the message and
    /// the attempt as a [`Call`]. A [`Failure`] passes through it as a [`HandlerError`]. Any other error becomes a
    /// retryable failure, because the handler may have had its effect. If the layer never called the handler, the error
    /// becomes a failure without an effect. If the layer still holds the message at the deadline, the outcome is
    /// [`NotStarted`](crate::Outcome::NotStarted). Lookup and `on_duplicate` belong to the [`Consumer`](crate::Consumer),
    /// so a layer doesn't remove them.
    ///
    /// ```
    /// use lambda_runtime::tower::{ServiceExt as _, layer::layer_fn, service_fn};
    /// use sqs_once::{Attempt, Call, Failure, Handler, handler_fn};
    ///
    /// async fn charge(order: String, _: Attempt) -> Result<String, Failure> {
    ///     Ok(format!("charged {order}"))
    /// }
    ///
    /// let noted = layer_fn(|inner: sqs_once::HandlerService<_>| {
    ///     service_fn(move |call: Call<String>| {
    ///         tracing::info!(message_id = call.attempt.message_id(), "charging");
    ///         inner.clone().oneshot(call)
    ///     })
    /// });
    /// let handler = handler_fn(charge).layer(noted);
    /// # fn is_handler(_: impl Handler<Message = String, Output = String>) {}
    /// # is_handler(handler);
    /// ```
    fn layer<L>(self, layer: L) -> Layered<L::Service, Self>
    where
        Self: Sized,
        L: Layer<HandlerService<Self>>,
    {
        Layered::new(layer.layer(HandlerService::new(self)))
    }
}

/// The stored output of a completed operation.
///
/// If the output is in S3, it is read only when you ask for it.
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
    /// Creates a stored output from the result in a record. Use it to test [`Consumer::on_duplicate`](crate::Consumer::on_duplicate).
    #[must_use]
    pub fn new(result: StoredResult) -> Self {
        Self::from_store(result, Results::inline())
    }

    /// Creates a stored output from a result. `results` reads an output that is not in the record.
    #[must_use]
    pub fn from_store(result: StoredResult, results: Results) -> Self {
        Self {
            result,
            results,
            output: PhantomData,
        }
    }

    /// Returns the JSON text, or `None` if the output was not stored. If the output is in S3, each call reads
    /// it again, and waits at most 5 seconds.
    ///
    /// # Errors
    ///
    /// Returns a [`Failure::no_effect`] if the output is in S3 and cannot be read: S3 does not respond or denies access, or
    /// the object is lost or altered. With `?`, [`on_duplicate`](crate::Consumer::on_duplicate) sends the message back to
    /// the queue. The operation stays completed, so the failure is never permanent. Handle the error if you can do without
    /// the output.
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

    /// Returns the output, or `None` if it was not stored. `ItemMode` stores no outputs. The other modes do
    /// not store outputs that are too large ([`Results`]) or cannot be written as JSON.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`json`](Self::json), or a permanent failure if the stored JSON does not have this type, for
    /// example because you changed the type. If [`on_duplicate`](crate::Consumer::on_duplicate) returns that failure, the
    /// message goes to the dead-letter queue although its operation is completed.
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

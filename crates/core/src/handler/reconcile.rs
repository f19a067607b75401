//! [`Reconcile`]: looks up what an earlier attempt did, for called systems without idempotency keys.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use serde::Serialize;

use super::{Attempt, Failure, FromMessage, Handler, HandlerFn, HandlerOutput, Stored};
use crate::protocol::StoredResult;

/// How long after its lease an attempt may still have its effect, if the handler does not say otherwise.
const QUARANTINE: Duration = Duration::from_secs(30);

/// A handler whose effect can be looked up, because the called system has no idempotency keys: a legacy
/// gateway, SMTP, a bank's file.
///
/// If an attempt may have had its effect without a record of it, the next attempt looks up that effect before
/// it calls [`handle`](Handler::handle):
///
/// | look-up | consumer |
/// | --- | --- |
/// | `Ok(`[`LookUp::Found`]`)` | records the operation as completed with that output; the handler does not run. The outcome is [`Reconciled`](crate::Outcome::Reconciled) |
/// | `Ok(`[`LookUp::NotFound`]`)` | calls the handler |
/// | an error (`?`), a panic, or no answer before the deadline | does not call the handler; the message returns to the queue, and the next attempt looks up again |
///
/// Without an earlier attempt of that kind, the consumer never looks up, so a healthy message costs nothing.
/// A message that may have ended its process is looked up while it runs alone.
///
/// [`Reconciling`] makes the handler that a consumer runs. [`HandlerFn::reconcile`] does the same for an
/// async function.
///
/// # Quarantine
///
/// A request that an attempt sent just before it died may arrive later. So nobody takes over, and nobody
/// looks up, until the lease of that attempt, the lease margin and the
/// [quarantine](Reconciling::reconcile_after) have passed. The effect happens once if:
///
/// - an attempt sends nothing after its lease: no task or thread outlives the handler;
/// - what it sent is visible to the look-up before the quarantine ends, or never takes effect. So the
///   quarantine must be longer than the time limit of the call;
/// - the look-up finds the effect *of this operation*. So the key must name the operation, and not the
///   message: `message-id` and `deduplication-id` change when a message is redriven, and a function with such
///   a key does not start;
/// - the handler has one effect. If the look-up finds it, nothing else of the handler runs.
///
/// # Example
///
/// ```
/// use serde::{Deserialize, Serialize};
/// use sqs_once::{Attempt, Failure, Handler, LookUp, Reconcile, Reconciling};
///
/// #[derive(Deserialize)]
/// struct Order { id: String }
///
/// #[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
/// struct Receipt { order: String }
///
/// struct Legacy;
///
/// impl Legacy {
///     async fn charge(&self, order: &Order) -> Result<Receipt, std::io::Error> {
/// #       Ok(Receipt { order: order.id.clone() })
/// #   }
/// #   /*
///         ...
///     }
/// #   */
///     async fn charge_of(&self, order: &Order) -> Result<Option<Receipt>, std::io::Error> {
/// #       Ok(Some(Receipt { order: order.id.clone() }))
/// #   }
/// #   /*
///         ...
///     }
/// #   */
/// }
///
/// impl Handler for Legacy {
///     type Message = Order;
///     type Output = Receipt;
///
///     async fn handle(&self, order: Order, _: Attempt) -> Result<Receipt, Failure> {
///         Ok(self.charge(&order).await?)
///     }
/// }
///
/// impl Reconcile for Legacy {
///     async fn look_up(&self, order: &Order, _: &Attempt) -> Result<LookUp<Receipt>, Failure> {
///         Ok(match self.charge_of(order).await? {
///             Some(receipt) => LookUp::Found(receipt),
///             None => LookUp::NotFound,
///         })
///     }
/// }
///
/// let handler = Reconciling::new(Legacy);
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` has no look-up",
    label = "does not implement `Reconcile`",
    note = "implement `sqs_once::Reconcile`, or write `handler_fn(function).reconcile(look_up)`"
)]
pub trait Reconcile: Handler {
    /// Looks up whether an earlier attempt had its effect. [`Attempt::prior`] says since when an attempt is
    /// open.
    ///
    /// # Errors
    ///
    /// Any failure means that the effect is unknown. The handler does not run, and the message returns to the
    /// queue after a back-off. Return an error unless the called system clearly said yes or no: after a 404,
    /// for example, nobody knows whether the effect or the path is missing.
    fn look_up(
        &self,
        message: &Self::Message,
        attempt: &Attempt,
    ) -> impl Future<Output = Result<LookUp<Self::Output>, Failure>> + Send;
}

/// What [`Reconcile::look_up`] found. If it cannot tell, it returns an error.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub enum LookUp<O> {
    /// An earlier attempt had its effect. Holds the output that the handler would have returned.
    Found(O),
    /// No earlier attempt had its effect, and none can have it later.
    NotFound,
}

/// A handler that looks up the effect of an earlier attempt before it runs: see [`Reconcile`].
///
/// Only the claim mode, [`Once`](crate::Once), runs it, and the output must implement
/// [`serde::Serialize`]. The other modes need no look-up, because their effects commit together with the
/// record.
///
/// ```compile_fail
/// # use sqs_once::{Attempt, Done, Failure, LookUp, handler_fn};
/// # async fn plan(_: u64, _: Attempt) -> Result<Done<u64>, Failure> { Ok(Done::new(1)) }
/// # async fn find(_: &u64, _: &Attempt) -> Result<LookUp<Done<u64>>, Failure> { Ok(LookUp::NotFound) }
/// handler_fn(plan).reconcile(find); // `plan` returns a `Done`
/// ```
#[derive(Clone, Debug)]
pub struct Reconciling<H> {
    handler: H,
    /// `None` if the look-up is switched off.
    quarantine: Option<Duration>,
}

impl<H: Reconcile> Reconciling<H> {
    /// Creates a handler that looks up with a quarantine of 30 seconds.
    #[must_use]
    pub fn new(handler: H) -> Self {
        Self {
            handler,
            quarantine: Some(QUARANTINE),
        }
    }

    /// Sets the quarantine: how long after the end of its lease a request of an earlier attempt may still
    /// take effect. Choose more than the time limit of the call.
    ///
    /// With `None`, nothing is looked up, and the handler runs as it would without a look-up. Use that for a
    /// called system that turns out to have idempotency keys.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use sqs_once::{Attempt, Failure, LookUp, handler_fn};
    /// # async fn send(_: String, _: Attempt) -> Result<(), Failure> { Ok(()) }
    /// # async fn find(_: &String, _: &Attempt) -> Result<LookUp<()>, Failure> { Ok(LookUp::NotFound) }
    /// let handler = handler_fn(send).reconcile(find).reconcile_after(Duration::from_secs(60));
    /// ```
    #[must_use]
    pub fn reconcile_after(mut self, quarantine: impl Into<Option<Duration>>) -> Self {
        self.quarantine = quarantine.into();
        self
    }
}

impl<H: Reconcile<Output: PlainOutput>> Handler for Reconciling<H> {
    type Message = H::Message;
    type Output = Reconciled<H::Output>;

    async fn handle(
        &self,
        message: H::Message,
        attempt: Attempt,
    ) -> Result<Reconciled<H::Output>, Failure> {
        if self.quarantine.is_some() && attempt.prior().is_some() {
            let stage = attempt.extension::<Arc<LookUpStage>>();
            // If the look-up does not return, the mode sees that it was still running.
            stage.inspect(|stage| stage.is_running.store(true, Relaxed));
            let found = self.handler.look_up(&message, &attempt).await;
            let (found, text) = match found {
                Ok(LookUp::Found(output)) => (Some(output), "found"),
                Ok(LookUp::NotFound) => (None, "not found"),
                // Even a permanent failure says nothing about the message: only the effect is unknown.
                Err(unknown) => return Err(Failure::no_effect(unknown.to_string())),
            };
            tracing::info!(key = %attempt.key(), effect = text, "looked up the earlier attempt");
            stage.inspect(|stage| stage.is_running.store(false, Relaxed));
            if let Some(output) = found {
                return Ok(Reconciled::Found(output));
            }
            if stage.is_some_and(|stage| stage.is_last) {
                return Ok(Reconciled::NotFound);
            }
        }
        let output = self.handler.handle(message, attempt).await?;
        Ok(Reconciled::Ran(output))
    }

    fn on_duplicate(
        &self,
        stored: Stored<<H::Output as HandlerOutput>::Result>,
        attempt: Attempt,
    ) -> impl Future<Output = Result<(), Failure>> + Send {
        self.handler.on_duplicate(stored, attempt)
    }

    fn quarantine(&self) -> Option<Duration> {
        self.quarantine
    }
}

/// The output of a [`Reconciling`] handler: what the handler returned, or what the look-up found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reconciled<O> {
    /// The handler ran.
    Ran(O),
    /// The look-up found the effect of an earlier attempt, and the handler did not run.
    Found(O),
    /// The look-up found nothing, and the handler must not run, because it ended its process too often.
    NotFound,
}

impl<O: PlainOutput> HandlerOutput for Reconciled<O> {
    type Result = O;
}

/// An output that the record stores as JSON, and that a look-up can find.
#[diagnostic::on_unimplemented(
    message = "a handler that returns `{Self}` cannot have a look-up",
    label = "only the claim mode looks up, for outputs that implement `serde::Serialize`",
    note = "`Done`, `Change` and `InTransaction` need no look-up: their writes commit together with the record"
)]
pub trait PlainOutput: Serialize + HandlerOutput<Result = Self> + Sized {}

#[diagnostic::do_not_recommend]
impl<O: Serialize + Send> PlainOutput for O {}

/// How far the look-up of an attempt has come. The mode lends it to the handler.
#[derive(Debug, Default)]
pub(crate) struct LookUpStage {
    /// True from the start of the look-up until it says that the effect was found or not.
    pub(crate) is_running: AtomicBool,
    /// True if the handler must not run after the look-up.
    pub(crate) is_last: bool,
}

/// The outputs that the claim mode runs on every store.
#[doc(hidden)]
pub trait ClaimModeOutput: HandlerOutput {
    /// Returns the output as JSON of any length.
    fn recorded(self) -> Reconciled<StoredResult>;
}

#[diagnostic::do_not_recommend]
impl<O: Serialize + Send> ClaimModeOutput for O {
    fn recorded(self) -> Reconciled<StoredResult> {
        Reconciled::Ran(super::to_output(&self))
    }
}

#[diagnostic::do_not_recommend]
impl<O: PlainOutput> ClaimModeOutput for Reconciled<O> {
    fn recorded(self) -> Reconciled<StoredResult> {
        match self {
            Self::Ran(output) => Reconciled::Ran(super::to_output(&output)),
            Self::Found(output) => Reconciled::Found(super::to_output(&output)),
            Self::NotFound => Reconciled::NotFound,
        }
    }
}

impl<F, M> HandlerFn<F, M> {
    /// Adds a look-up to the function: see [`Reconcile`].
    ///
    /// `look_up` takes the message and the [`Attempt`] by reference, and returns
    /// `Result<LookUp<Output>, Failure>`.
    ///
    /// ```
    /// use sqs_once::{Attempt, Failure, LookUp, handler_fn};
    ///
    /// async fn send(mail: String, _: Attempt) -> Result<u64, Failure> {
    ///     Ok(mail.len() as u64)
    /// }
    ///
    /// async fn sent(mail: &String, attempt: &Attempt) -> Result<LookUp<u64>, Failure> {
    ///     let _since = attempt.prior().and_then(|prior| prior.first_claimed_at);
    ///     Ok(LookUp::Found(mail.len() as u64))
    /// }
    ///
    /// let handler = handler_fn(send).reconcile(sent);
    /// ```
    pub fn reconcile<L, O>(self, look_up: L) -> Reconciling<WithLookUp<F, M, L>>
    where
        Self: Handler<Message = M, Output = O>,
        M: FromMessage + Sync + 'static,
        O: PlainOutput,
        L: for<'a> LookUpFn<'a, M, O> + 'static,
    {
        Reconciling::new(WithLookUp {
            handler: self,
            look_up,
        })
    }
}

/// An async function with a look-up. [`HandlerFn::reconcile`] creates it.
pub struct WithLookUp<F, M, L> {
    handler: HandlerFn<F, M>,
    look_up: L,
}

impl<F: Clone, M, L: Clone> Clone for WithLookUp<F, M, L> {
    fn clone(&self) -> Self {
        Self {
            handler: self.handler.clone(),
            look_up: self.look_up.clone(),
        }
    }
}

impl<F, M, L> fmt::Debug for WithLookUp<F, M, L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WithLookUp").finish_non_exhaustive()
    }
}

impl<F, M, L> Handler for WithLookUp<F, M, L>
where
    HandlerFn<F, M>: Handler<Message = M>,
    M: FromMessage + 'static,
    F: 'static,
    L: Send + Sync + 'static,
{
    type Message = M;
    type Output = <HandlerFn<F, M> as Handler>::Output;

    fn handle(
        &self,
        message: M,
        attempt: Attempt,
    ) -> impl Future<Output = Result<Self::Output, Failure>> + Send {
        self.handler.handle(message, attempt)
    }
}

impl<F, M, L> Reconcile for WithLookUp<F, M, L>
where
    Self: Handler<Message = M>,
    L: for<'a> LookUpFn<'a, M, <Self as Handler>::Output>,
    M: FromMessage + Sync + 'static,
{
    async fn look_up(
        &self,
        message: &M,
        attempt: &Attempt,
    ) -> Result<LookUp<Self::Output>, Failure> {
        self.look_up.call(message, attempt).await
    }
}

/// An async function that looks up. It takes the message and the attempt by reference.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a look-up for messages of type `{M}`",
    label = "not a look-up",
    note = "write `async fn look_up(message: &{M}, attempt: &Attempt) -> Result<LookUp<{O}>, Failure>`"
)]
pub trait LookUpFn<'a, M: 'a, O>: Send + Sync {
    /// Calls the function.
    fn call(
        &self,
        message: &'a M,
        attempt: &'a Attempt,
    ) -> impl Future<Output = Result<LookUp<O>, Failure>> + Send;
}

#[diagnostic::do_not_recommend]
impl<'a, M: 'a, O, L, Fut> LookUpFn<'a, M, O> for L
where
    L: Fn(&'a M, &'a Attempt) -> Fut + Send + Sync,
    Fut: Future<Output = Result<LookUp<O>, Failure>> + Send,
{
    fn call(
        &self,
        message: &'a M,
        attempt: &'a Attempt,
    ) -> impl Future<Output = Result<LookUp<O>, Failure>> + Send {
        self(message, attempt)
    }
}

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

/// Your code for one message, as a [`Handler`], with a look-up of its effect. Use it if the called system has no
/// idempotency keys: a legacy gateway, SMTP, a bank's file.
///
/// Implement this trait in place of [`Handler`]. [`Reconciling`] is the handler that a consumer runs. For an
/// async function, [`HandlerFn::reconcile`] does both.
///
/// If an attempt may have had its effect without a record of it, the next attempt calls
/// [`look_up`](Self::look_up) before [`handle`](Self::handle):
///
/// | look-up | consumer |
/// | --- | --- |
/// | `Ok(`[`LookUp::Found`]`)` | records the operation as completed with that output; the handler does not run. The outcome is [`Reconciled`](crate::Outcome::Reconciled) |
/// | `Ok(`[`LookUp::NotFound`]`)` | calls the handler |
/// | an error (`?`), a panic, or no answer before the deadline | does not call the handler; the message returns to the queue, and the next attempt looks up again |
///
/// Without an earlier attempt of that kind, the consumer never looks up. A message that may have ended its
/// process is looked up while it runs alone.
///
/// Only the claim mode, [`Once`](crate::Once), runs such a handler, and the output must implement
/// [`serde::Serialize`]. The other modes need no look-up, because their effects commit together with the
/// record.
///
/// # Quarantine
///
/// A request that an attempt sent just before it died may arrive later. So nobody takes over, and nobody
/// looks up, until the lease of that attempt, the lease margin and the
/// [quarantine](Self::reconcile_after) have passed. The effect happens once if:
///
/// - an attempt sends nothing after its lease: no task or thread outlives the handler;
/// - its request is visible to the look-up within the quarantine after the attempt has ended, or after its lease
///   has, whichever is first, or never takes effect. So the quarantine must be longer than the time limit of the
///   call;
/// - the look-up finds the effect *of this operation*. So the key must name the operation, and not the
///   message: `message-id` and `deduplication-id` change when a message is redriven, and a function with such
///   a key does not start;
/// - the handler has one effect. If the look-up finds it, nothing else of the handler runs;
/// - every consumer of the table has the look-up. While you deploy it, or roll it back, a build without it may
///   take over at the end of the lease.
///
/// # Example
///
/// ```
/// use serde::{Deserialize, Serialize};
/// use sqs_once::{Attempt, Failure, LookUp, Reconcile, Reconciling};
///
/// #[derive(Deserialize)]
/// struct Order { id: String }
///
/// #[derive(Serialize)]
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
/// impl Reconcile for Legacy {
///     type Message = Order;
///     type Output = Receipt;
///
///     async fn handle(&self, order: Order, _: Attempt) -> Result<Receipt, Failure> {
///         Ok(self.charge(&order).await?)
///     }
///
///     async fn look_up(&self, order: &Order, _: &Attempt) -> Result<LookUp<Receipt>, Failure> {
///         Ok(match self.charge_of(order).await? {
///             Some(receipt) => LookUp::Found(receipt),
///             None => LookUp::NotFound,
///         })
///     }
/// }
///
/// let handler = Reconciling(Legacy);
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` has no look-up",
    label = "does not implement `Reconcile`",
    note = "implement `sqs_once::Reconcile`, or write `handler_fn(function).reconcile(look_up)`"
)]
pub trait Reconcile: Send + Sync + 'static {
    /// The type of the body, as in [`Handler::Message`].
    type Message: FromMessage;
    /// The output, which the record stores as JSON.
    type Output: PlainOutput;

    /// Handles one message, as [`Handler::handle`] does.
    ///
    /// # Errors
    ///
    /// Those of [`Handler::handle`].
    fn handle(
        &self,
        message: Self::Message,
        attempt: Attempt,
    ) -> impl Future<Output = Result<Self::Output, Failure>> + Send;

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

    /// Returns the quarantine: how long after the end of its lease a request of an earlier attempt may still
    /// take effect. 30 seconds by default. Choose more than the time limit of the call.
    ///
    /// With `None`, nothing is looked up, and the handler runs as one without a look-up: for a called system
    /// that turns out to have idempotency keys.
    fn reconcile_after(&self) -> Option<Duration> {
        Some(QUARANTINE)
    }

    /// Handles a duplicate, as [`Handler::on_duplicate`] does.
    ///
    /// # Errors
    ///
    /// Those of [`Handler::on_duplicate`].
    fn on_duplicate(
        &self,
        stored: Stored<Self::Output>,
        attempt: Attempt,
    ) -> impl Future<Output = Result<(), Failure>> + Send {
        let _unused = (stored, attempt);
        std::future::ready(Ok(()))
    }
}

/// The answer of [`Reconcile::look_up`]. If it cannot tell, it returns an error.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub enum LookUp<O> {
    /// An earlier attempt had its effect. Holds the output that the handler would have returned.
    Found(O),
    /// No earlier attempt had its effect, and none can have it later.
    NotFound,
}

/// The [`Handler`] of code with a look-up: see [`Reconcile`].
#[derive(Clone, Copy, Debug)]
pub struct Reconciling<R>(pub R);

impl<R: Reconcile> Handler for Reconciling<R> {
    type Message = R::Message;
    type Output = Reconciled<R::Output>;

    async fn handle(
        &self,
        message: R::Message,
        attempt: Attempt,
    ) -> Result<Reconciled<R::Output>, Failure> {
        let Self(work) = self;
        if work.reconcile_after().is_some() && attempt.prior().is_some() {
            let Some(stage) = attempt.extension::<Arc<LookUpStage>>() else {
                // The claim did not wait for the quarantine.
                return Err(Failure::no_effect(
                    "the handler has a look-up, so it must be run by a Consumer or a DryRun, and a handler around it must pass on `quarantine`",
                ));
            };
            if stage.is_wanted {
                // If the look-up does not return, the mode sees that it was still running.
                stage.is_running.store(true, Relaxed);
                // Even a permanent failure says nothing about the message: only the effect is unknown.
                let found =
                    (work.look_up(&message, &attempt).await).map_err(Failure::without_effect)?;
                stage.is_running.store(false, Relaxed);
                let effect = match found {
                    LookUp::Found(_) => "found",
                    LookUp::NotFound => "not found",
                };
                tracing::info!(key = %attempt.key(), effect, "looked up the earlier attempt");
                match found {
                    LookUp::Found(output) => return Ok(Reconciled::Found(output)),
                    LookUp::NotFound if stage.is_last => return Ok(Reconciled::NotFound),
                    LookUp::NotFound => {}
                }
            }
        }
        work.handle(message, attempt).await.map(Reconciled::Ran)
    }

    fn on_duplicate(
        &self,
        stored: Stored<R::Output>,
        attempt: Attempt,
    ) -> impl Future<Output = Result<(), Failure>> + Send {
        self.0.on_duplicate(stored, attempt)
    }

    fn quarantine(&self) -> Option<Duration> {
        self.0.reconcile_after()
    }
}

/// The output of a handler with a look-up: what the handler returned, or what the look-up found.
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
#[derive(Debug)]
pub(crate) struct LookUpStage {
    /// True if an earlier attempt may have had its effect.
    pub(crate) is_wanted: bool,
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
        Reconciling(WithLookUp {
            handler: self,
            look_up,
            quarantine: QUARANTINE,
        })
    }
}

/// An async function with a look-up. [`HandlerFn::reconcile`] creates it.
pub struct WithLookUp<F, M, L> {
    handler: HandlerFn<F, M>,
    look_up: L,
    quarantine: Duration,
}

impl<F, M, L> Reconciling<WithLookUp<F, M, L>> {
    /// Sets the [quarantine](Reconcile::reconcile_after), which is 30 seconds by default.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use sqs_once::{Attempt, Failure, LookUp, handler_fn};
    /// # async fn send(_: String, _: Attempt) -> Result<(), Failure> { Ok(()) }
    /// # async fn sent(_: &String, _: &Attempt) -> Result<LookUp<()>, Failure> { Ok(LookUp::NotFound) }
    /// let handler = handler_fn(send).reconcile(sent).reconcile_after(Duration::from_secs(60));
    /// ```
    #[must_use]
    pub fn reconcile_after(mut self, quarantine: Duration) -> Self {
        self.0.quarantine = quarantine;
        self
    }
}

impl<F: Clone, M, L: Clone> Clone for WithLookUp<F, M, L> {
    fn clone(&self) -> Self {
        Self {
            handler: self.handler.clone(),
            look_up: self.look_up.clone(),
            quarantine: self.quarantine,
        }
    }
}

impl<F, M, L> fmt::Debug for WithLookUp<F, M, L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WithLookUp").finish_non_exhaustive()
    }
}

#[diagnostic::do_not_recommend]
impl<F, M, L, O> Reconcile for WithLookUp<F, M, L>
where
    HandlerFn<F, M>: Handler<Message = M, Output = O>,
    L: for<'a> LookUpFn<'a, M, O> + 'static,
    F: 'static,
    M: FromMessage + Sync + 'static,
    O: PlainOutput,
{
    type Message = M;
    type Output = O;

    fn handle(
        &self,
        message: M,
        attempt: Attempt,
    ) -> impl Future<Output = Result<O, Failure>> + Send {
        self.handler.handle(message, attempt)
    }

    async fn look_up(&self, message: &M, attempt: &Attempt) -> Result<LookUp<O>, Failure> {
        self.look_up.call(message, attempt).await
    }

    fn reconcile_after(&self) -> Option<Duration> {
        Some(self.quarantine)
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

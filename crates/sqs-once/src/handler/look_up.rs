//! [`LookUp`]: looks up what an earlier attempt did, for called systems without idempotency keys.

use std::fmt;

use futures_util::future::BoxFuture;

use super::{Attempt, Failure, Handler};

/// Looks up whether an earlier attempt had its effect. Use it if the called system has no idempotency keys: a
/// legacy gateway, SMTP, a bank's file. [`Consumer::look_up`](crate::Consumer::look_up) takes it, and
/// [`look_up_fn`] turns an async function into one.
///
/// If an attempt may have had its effect without a record of it, the next attempt calls the lookup before the
/// handler:
///
/// | lookup | consumer |
/// | --- | --- |
/// | `Ok(`[`LookedUp::Found`]`)` | records the operation as completed with that output; the handler does not run. The outcome is [`Reconciled`](crate::Outcome::Reconciled) |
/// | `Ok(`[`LookedUp::NotFound`]`)` | calls the handler |
/// | an error (`?`), a panic, or no answer before the deadline | does not call the handler; the message returns to the queue, and the next attempt calls the lookup again |
///
/// Without such an earlier attempt, the consumer never calls the lookup. If a message may have killed its process, its
/// lookup also runs alone.
///
/// Only the claim mode, [`Once`](crate::Once), has a lookup. The other modes need none, because their effects commit
/// together with the record.
///
/// # Quarantine
///
/// A request that an attempt sent just before it died may arrive later. So no worker takes over or calls the lookup until the lease
/// of that attempt, the lease margin and the quarantine have passed. The effect happens once if:
///
/// - an attempt sends nothing after its lease has ended: no task or thread outlives the handler;
/// - once the attempt or its lease has ended, whichever is first, the lookup sees its request within the quarantine, or the
///   request never takes effect. So the quarantine must be longer than the time limit of the call;
/// - the lookup finds the effect *of this operation*. So the key must name the operation, and not the
///   message: `message-id` and `deduplication-id` change when a message is redriven, and a function with such
///   a key does not start;
/// - the handler has only one effect. If the lookup finds it, the handler doesn't run at all;
/// - every consumer of the table has the lookup. While you deploy it, or roll it back, a build without it may
///   take over at the end of the lease.
///
/// # Example
///
/// ```
/// use std::time::Duration;
/// use serde::{Deserialize, Serialize};
/// use sqs_once::{Attempt, Consumer, Failure, Handler, LookUp, LookedUp, Once};
/// use sqs_once::{protocol::Namespace, store::MemoryStore};
///
/// #[derive(Deserialize)]
/// struct Order { id: String }
///
/// #[derive(Serialize)]
/// struct Receipt { order: String }
///
/// #[derive(Clone)]
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
/// impl LookUp<Order, Receipt> for Legacy {
///     async fn look_up(&self, order: &Order, _: &Attempt) -> Result<LookedUp<Receipt>, Failure> {
///         Ok(match self.charge_of(order).await? {
///             Some(receipt) => LookedUp::Found(receipt),
///             None => LookedUp::NotFound,
///         })
///     }
/// }
///
/// let consumer = Consumer::without_aws(Once::new(MemoryStore::default()), Namespace::new("orders")?, Legacy)
///     .key("body:/id".parse()?)
///     .look_up(Legacy, Duration::from_secs(30));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a lookup for messages of type `{M}` and outputs of type `{O}`",
    label = "not a lookup",
    note = "implement `sqs_once::LookUp<{M}, {O}>`",
    note = "or write `sqs_once::look_up_fn(function)` with `async fn function(message: &{M}, attempt: &Attempt) -> Result<LookedUp<{O}>, Failure>`"
)]
pub trait LookUp<M, O>: Send + Sync + 'static {
    /// Looks up whether an earlier attempt had its effect. [`Attempt::prior`] says when the first open attempt
    /// was claimed.
    ///
    /// # Errors
    ///
    /// Any failure means that the effect is unknown. The handler does not run, and the message returns to the queue after a
    /// backoff. Return an error unless the called system clearly said yes or no. A 404, for example, may mean that there was
    /// no effect, or that your path is wrong.
    fn look_up(
        &self,
        message: &M,
        attempt: &Attempt,
    ) -> impl Future<Output = Result<LookedUp<O>, Failure>> + Send;
}

/// The answer of a [`LookUp`]. A lookup that can't tell returns an error instead.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
#[non_exhaustive]
pub enum LookedUp<O> {
    /// An earlier attempt had its effect. Holds the output that the handler would have returned.
    Found(O),
    /// No earlier attempt had its effect, and none can have it later.
    NotFound,
}

impl<O> LookedUp<O> {
    /// Changes the output that was found.
    ///
    /// ```
    /// use sqs_once::LookedUp;
    ///
    /// assert_eq!(LookedUp::Found(3).map(|cents| cents * 2), LookedUp::Found(6));
    /// ```
    pub fn map<P>(self, change: impl FnOnce(O) -> P) -> LookedUp<P> {
        match self {
            Self::Found(output) => LookedUp::Found(change(output)),
            Self::NotFound => LookedUp::NotFound,
        }
    }
}

/// Turns an async function that takes the message and the [`Attempt`] by reference into a [`LookUp`].
///
/// ```
/// use sqs_once::{Attempt, Failure, LookedUp, look_up_fn};
///
/// async fn sent(mail: &String, attempt: &Attempt) -> Result<LookedUp<u64>, Failure> {
///     let _since = attempt.prior().and_then(|prior| prior.first_claimed_at);
///     Ok(LookedUp::Found(mail.len() as u64))
/// }
///
/// let look_up = look_up_fn(sent);
/// ```
pub fn look_up_fn<F>(function: F) -> LookUpFn<F> {
    LookUpFn(function)
}

/// An async function as a [`LookUp`]. [`look_up_fn`] creates it.
#[derive(Clone)]
pub struct LookUpFn<F>(F);

impl<F> fmt::Debug for LookUpFn<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LookUpFn").finish_non_exhaustive()
    }
}

#[diagnostic::do_not_recommend]
impl<F, M, O> LookUp<M, O> for LookUpFn<F>
where
    F: for<'a> Ask<'a, M, O> + 'static,
    M: Sync + 'static,
{
    async fn look_up(&self, message: &M, attempt: &Attempt) -> Result<LookedUp<O>, Failure> {
        self.0.ask(message, attempt).await
    }
}

/// An async function as a lookup. Its future may borrow from its arguments, which a bound on `Fn` can't express.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a lookup for messages of type `{M}`",
    label = "not a lookup",
    note = "write `async fn look_up(message: &{M}, attempt: &Attempt) -> Result<LookedUp<{O}>, Failure>`"
)]
pub trait Ask<'a, M: 'a, O>: Send + Sync {
    /// Calls the function.
    fn ask(
        &self,
        message: &'a M,
        attempt: &'a Attempt,
    ) -> impl Future<Output = Result<LookedUp<O>, Failure>> + Send;
}

#[diagnostic::do_not_recommend]
impl<'a, M: 'a, O, F, Fut> Ask<'a, M, O> for F
where
    F: Fn(&'a M, &'a Attempt) -> Fut + Send + Sync,
    Fut: Future<Output = Result<LookedUp<O>, Failure>> + Send,
{
    fn ask(
        &self,
        message: &'a M,
        attempt: &'a Attempt,
    ) -> impl Future<Output = Result<LookedUp<O>, Failure>> + Send {
        self(message, attempt)
    }
}

/// A consumer's lookup.
///
/// The parameter is the handler `H`, not the handler's two types. Otherwise the compiler would have to know what a closure
/// returns, to see that a consumer of the closure is `Send`.
pub trait AnyLookUp<H>: Send + Sync {
    /// Calls the lookup. None of the application's code runs before the first poll.
    fn ask<'a>(
        &'a self,
        message: &'a H::Message,
        attempt: &'a Attempt,
    ) -> BoxFuture<'a, Result<LookedUp<H::Output>, Failure>>
    where
        H: Handler;
}

impl<L, H> AnyLookUp<H> for L
where
    L: LookUp<H::Message, H::Output>,
    H: Handler<Message: Sync>,
{
    fn ask<'a>(
        &'a self,
        message: &'a H::Message,
        attempt: &'a Attempt,
    ) -> BoxFuture<'a, Result<LookedUp<H::Output>, Failure>> {
        Box::pin(async move { self.look_up(message, attempt).await })
    }
}

//! [`handler_fn`] and [`handler_with`]: async functions as handlers.

use std::{fmt, marker::PhantomData};

use super::{Attempt, Classify, Failure, FromMessage, Handler, HandlerOutput};

/// Turns an async function into a [`Handler`].
///
/// The function takes the message and its [`Attempt`], and returns `Result<Output, Failure>`, or an error of its own that
/// implements [`Classify`]. In a closure, name the error: `Ok::<_, Failure>(..)`.
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
/// let consumer = Consumer::without_aws(once, Namespace::new("greetings")?, handler_fn(greet));
///
/// let prefix = String::from("hello");
/// let closure = handler_fn(move |name: String, _: Attempt| {
///     let greeting = format!("{prefix} {name}");
///     async move { Ok::<_, Failure>(greeting) }
/// });
/// # let _ = Consumer::without_aws(Once::new(MemoryStore::default()), Namespace::new("greetings")?, closure);
/// # Ok::<(), sqs_once::protocol::KeyError>(())
/// ```
pub fn handler_fn<F, M, O, E, Fut>(function: F) -> HandlerFn<F, M>
where
    F: Fn(M, Attempt) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<O, E>> + Send,
    M: FromMessage + 'static,
    O: HandlerOutput + 'static,
    E: Classify,
{
    HandlerFn {
        function,
        message: PhantomData,
    }
}

/// Turns an async function that borrows its state (clients, a connection pool, settings) into a [`Handler`].
///
/// Works like [`handler_fn`], but the function's first argument is a reference to the state. All messages share the state.
///
/// ```
/// use sqs_once::{Attempt, Failure, handler_with};
///
/// struct Mailer { from: String }
///
/// async fn welcome(mailer: &Mailer, name: String, _: Attempt) -> Result<String, Failure> {
///     Ok(format!("{} wrote to {name}", mailer.from))
/// }
///
/// let mailer = || Mailer { from: "Ada".into() };
/// let handler = handler_with(mailer(), welcome);
///
/// let closure = handler_with(mailer(), async |mailer: &Mailer, name: String, _: Attempt| {
///     Ok::<_, Failure>(format!("{} wrote to {name}", mailer.from))
/// });
/// # fn is_handler(_: impl sqs_once::Handler<Message = String, Output = String>) {}
/// # is_handler(handler);
/// # is_handler(closure);
/// ```
pub fn handler_with<S, F, M>(state: S, function: F) -> HandlerWith<S, F, M>
where
    S: Send + Sync + 'static,
    F: for<'s> CallWith<'s, S, M> + 'static,
{
    HandlerWith {
        state,
        function,
        message: PhantomData,
    }
}

/// An async function as a [`Handler`]. [`handler_fn`] creates it.
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
impl<F, M, O, E, Fut> Handler for HandlerFn<F, M>
where
    F: Fn(M, Attempt) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<O, E>> + Send,
    M: FromMessage + 'static,
    O: HandlerOutput + 'static,
    E: Classify,
{
    type Message = M;
    type Output = O;

    async fn handle(&self, message: M, attempt: Attempt) -> Result<O, Failure> {
        (self.function)(message, attempt).await.map_err(E::classify)
    }
}

/// An async function that borrows its state, as a [`Handler`]. [`handler_with`] creates it.
pub struct HandlerWith<S, F, M> {
    state: S,
    function: F,
    message: PhantomData<fn(M)>,
}

impl<S, F, M> fmt::Debug for HandlerWith<S, F, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HandlerWith").finish_non_exhaustive()
    }
}

#[diagnostic::do_not_recommend]
impl<S, F, M, O> Handler for HandlerWith<S, F, M>
where
    S: Send + Sync + 'static,
    F: for<'s> CallWith<'s, S, M, Output = O> + 'static,
    M: FromMessage + 'static,
    O: HandlerOutput + 'static,
{
    type Message = M;
    type Output = O;

    async fn handle(&self, message: M, attempt: Attempt) -> Result<O, Failure> {
        self.function.call(&self.state, message, attempt).await
    }
}

/// An async function that borrows its state. Its future may borrow from its first argument, which a bound on `Fn` can't
/// express.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a handler with the state `{S}`",
    label = "not a handler with the state `{S}`",
    note = "write `async fn handle(state: &{S}, message: Message, attempt: Attempt) -> Result<Output, Failure>`",
    note = "in place of `Failure`, it may return an error that implements `sqs_once::Classify`"
)]
pub trait CallWith<'s, S: 's, M>: Send + Sync {
    /// The return value of the function.
    type Output;

    /// Calls the function.
    fn call(
        &self,
        state: &'s S,
        message: M,
        attempt: Attempt,
    ) -> impl Future<Output = Result<Self::Output, Failure>> + Send;
}

#[diagnostic::do_not_recommend]
impl<'s, S: 's, M, O, E, F, Fut> CallWith<'s, S, M> for F
where
    F: Fn(&'s S, M, Attempt) -> Fut + Send + Sync,
    Fut: Future<Output = Result<O, E>> + Send,
    S: Sync,
    M: Send,
    E: Classify,
{
    type Output = O;

    async fn call(&self, state: &'s S, message: M, attempt: Attempt) -> Result<O, Failure> {
        self(state, message, attempt).await.map_err(E::classify)
    }
}

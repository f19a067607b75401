//! [`Handler::layer`]: `tower` layers around one message.

use std::{
    fmt,
    marker::PhantomData,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll},
};

use futures_util::{FutureExt as _, future::BoxFuture};
use lambda_runtime::tower::{Service, ServiceExt as _};

use super::{Attempt, Failure, Handler, failure::BoxError};
use crate::meter::Meter;

/// A message and its attempt: the request that a layer around one message sees ([`Handler::layer`]). A layer can change it, but
/// can't create another one.
#[derive(Debug)]
#[non_exhaustive]
pub struct Call<M> {
    /// The message, as the handler takes it.
    pub message: M,
    /// The attempt.
    pub attempt: Attempt,
    /// Records when the handler is called. The attempt has the same meter, but a layer may replace the attempt.
    meter: Meter,
}

/// The handler's [`Failure`], as an error that keeps its kind when layers pass it on, box it or wrap it. A layer can create
/// one with `HandlerError::from(failure)`.
#[derive(Debug)]
pub struct HandlerError(Failure);

impl HandlerError {
    /// Returns the failure.
    #[must_use]
    pub const fn failure(&self) -> &Failure {
        &self.0
    }
}

impl From<Failure> for HandlerError {
    fn from(failure: Failure) -> Self {
        Self(failure)
    }
}

impl fmt::Display for HandlerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl std::error::Error for HandlerError {}

/// A handler as a `tower` service, which layers wrap.
#[derive(Debug)]
pub struct HandlerService<H>(Arc<H>);

impl<H> HandlerService<H> {
    pub(super) fn new(handler: H) -> Self {
        Self(Arc::new(handler))
    }
}

impl<H> Clone for HandlerService<H> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<H: Handler> Service<Call<H::Message>> for HandlerService<H> {
    type Response = H::Output;
    type Error = HandlerError;
    type Future = BoxFuture<'static, Result<H::Output, HandlerError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), HandlerError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, call: Call<H::Message>) -> Self::Future {
        let handler = Arc::clone(&self.0);
        async move {
            call.meter.set_in_layer(false);
            Ok(handler.handle(call.message, call.attempt).await?)
        }
        .boxed()
    }
}

/// A handler with layers around it. [`Handler::layer`] creates it.
pub struct Layered<S, H> {
    /// We clone this for each message. The service is in a mutex, because a service need not be `Sync`.
    service: Mutex<S>,
    handler: PhantomData<fn() -> H>,
}

impl<S, H> Layered<S, H> {
    pub(super) fn new(service: S) -> Self {
        Self {
            service: Mutex::new(service),
            handler: PhantomData,
        }
    }
}

impl<S, H> fmt::Debug for Layered<S, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Layered").finish_non_exhaustive()
    }
}

#[diagnostic::do_not_recommend]
impl<S, H> Handler for Layered<S, H>
where
    H: Handler,
    S: Service<Call<H::Message>, Response = H::Output> + Clone + Send + 'static,
    S::Error: Into<BoxError>,
    S::Future: Send,
{
    type Message = H::Message;
    type Output = H::Output;

    async fn handle(&self, message: H::Message, attempt: Attempt) -> Result<H::Output, Failure> {
        let service = self
            .service
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        let meter = attempt.meter().clone();
        meter.set_in_layer(true);
        let call = Call {
            message,
            attempt,
            meter: meter.clone(),
        };
        let ended = service.oneshot(call).await;
        ended.map_err(|error| failure(error.into(), !meter.is_in_layer()))
    }
}

/// Returns the failure that came through the layers: the handler's, or a layer's own. If a layer, such as a rate limit,
/// never called the handler, there was no effect. After a timeout there may have been one.
fn failure(error: BoxError, is_called: bool) -> Failure {
    let error = match error.downcast::<HandlerError>() {
        Ok(of_handler) => return of_handler.0,
        Err(error) => error,
    };
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    let wrapped = causes.filter_map(|cause| cause.downcast_ref()).next();
    if let Some(HandlerError(failure)) = wrapped {
        let wrap = failure.wrapper();
        return wrap(error);
    }
    if is_called {
        Failure::retryable(error)
    } else {
        Failure::no_effect(error)
    }
}

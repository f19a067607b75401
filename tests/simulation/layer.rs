//! [`Behind`]: a handler behind a layer that holds messages back, as people protect a system that takes few calls at a time.

use std::{
    sync::Arc,
    task::{Context, Poll},
};

use futures_util::{FutureExt as _, future::BoxFuture};
use lambda_runtime::tower::{Service, ServiceExt as _, layer::layer_fn};
use sqs_once::{Attempt, Call, Failure, Handler, HandlerService, Layered};
use tokio::sync::Semaphore;

/// A handler, with or without the layer.
pub enum Behind<H: Handler> {
    Nothing(H),
    Limit(Layered<Limit<HandlerService<H>>, H>),
}

impl<H: Handler> Behind<H> {
    /// Puts a handler behind a layer that lets `most` of them run at a time, in all invocations of the process.
    pub fn new(handler: H, most: Option<usize>) -> Self {
        let Some(most) = most else {
            return Self::Nothing(handler);
        };
        let places = Arc::new(Semaphore::new(most));
        let limit = layer_fn(|inner| Limit {
            inner,
            places: Arc::clone(&places),
        });
        Self::Limit(handler.layer(limit))
    }
}

impl<H: Handler> Handler for Behind<H> {
    type Message = H::Message;
    type Output = H::Output;

    async fn handle(&self, message: H::Message, attempt: Attempt) -> Result<H::Output, Failure> {
        match self {
            Self::Nothing(handler) => handler.handle(message, attempt).await,
            Self::Limit(layered) => layered.handle(message, attempt).await,
        }
    }
}

/// A service of which a few calls run at a time. The others wait.
#[derive(Clone, Debug)]
pub struct Limit<S> {
    inner: S,
    places: Arc<Semaphore>,
}

impl<S, M> Service<Call<M>> for Limit<S>
where
    S: Service<Call<M>> + Clone + Send + 'static,
    S::Future: Send,
    M: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<S::Response, S::Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, call: Call<M>) -> Self::Future {
        let (inner, places) = (self.inner.clone(), Arc::clone(&self.places));
        async move {
            let _place = places.acquire_owned().await;
            inner.oneshot(call).await
        }
        .boxed()
    }
}

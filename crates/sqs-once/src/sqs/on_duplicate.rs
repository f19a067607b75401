//! [`OnDuplicate`]: a function that is called for duplicates.

use std::{fmt, sync::Arc};

use futures_util::future::BoxFuture;

use crate::handler::{Attempt, Failure, Handler, HandlerOutput, Stored};

type StoredOf<H> = Stored<<<H as Handler>::Output as HandlerOutput>::Result>;

/// A function that is called for each duplicate of a handler's operations.
pub(super) struct OnDuplicate<H>(Arc<dyn DuplicateCall<H>>);

/// The function. The type parameter is the handler, as with [`AnyLookUp`](crate::handler::AnyLookUp).
trait DuplicateCall<H>: Send + Sync {
    fn call(
        &self,
        message: H::Message,
        stored: StoredOf<H>,
        attempt: Attempt,
    ) -> BoxFuture<'_, Result<(), Failure>>
    where
        H: Handler;
}

impl<F, Fut, H> DuplicateCall<H> for F
where
    F: Fn(H::Message, StoredOf<H>, Attempt) -> Fut + Send + Sync,
    Fut: Future<Output = Result<(), Failure>> + Send + 'static,
    H: Handler,
{
    fn call(
        &self,
        message: H::Message,
        stored: StoredOf<H>,
        attempt: Attempt,
    ) -> BoxFuture<'_, Result<(), Failure>> {
        Box::pin(self(message, stored, attempt))
    }
}

impl<H: Handler> OnDuplicate<H> {
    pub(super) fn new<F, Fut>(function: F) -> Self
    where
        F: Fn(H::Message, StoredOf<H>, Attempt) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<(), Failure>> + Send + 'static,
    {
        Self(Arc::new(function))
    }

    pub(super) async fn call(
        &self,
        message: H::Message,
        stored: StoredOf<H>,
        attempt: Attempt,
    ) -> Result<(), Failure> {
        self.0.call(message, stored, attempt).await
    }
}

impl<H> Clone for OnDuplicate<H> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<H> fmt::Debug for OnDuplicate<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OnDuplicate").finish_non_exhaustive()
    }
}

//! [`MakeSpan`]: a function that makes the span of a message.

use std::{
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use tracing::Span;

use crate::handler::DeliveryMetadata;

/// A function that makes the span of a message. Clones share it.
#[derive(Clone)]
pub(crate) struct MakeSpan(Arc<dyn Fn(&DeliveryMetadata) -> Span + Send + Sync>);

impl MakeSpan {
    pub(super) fn new(
        make_span: impl Fn(&DeliveryMetadata) -> Span + Send + Sync + 'static,
    ) -> Self {
        Self(Arc::new(make_span))
    }

    /// Calls the function. `None` if it panics, which the panic hook logs.
    pub(super) fn span(&self, delivery: &DeliveryMetadata) -> Option<Span> {
        catch_unwind(AssertUnwindSafe(|| (self.0)(delivery))).ok()
    }
}

impl fmt::Debug for MakeSpan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MakeSpan").finish_non_exhaustive()
    }
}

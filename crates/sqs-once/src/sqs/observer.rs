//! [`Observer`]: a function that sees the result of each message.

use std::{
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use super::message_outcome::MessageOutcome;

/// A function that sees the result of each message. Clones share it.
#[derive(Clone)]
pub(crate) struct Observer(Arc<dyn Fn(&MessageOutcome<'_>) + Send + Sync>);

impl Observer {
    pub(super) fn new(observe: impl Fn(&MessageOutcome<'_>) + Send + Sync + 'static) -> Self {
        Self(Arc::new(observe))
    }

    /// Calls the function. A panic of the function is logged by the panic hook, and changes nothing
    /// else.
    pub(super) fn observe(&self, message: &MessageOutcome<'_>) {
        let _panic = catch_unwind(AssertUnwindSafe(|| (self.0)(message)));
    }
}

impl fmt::Debug for Observer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Observer").finish_non_exhaustive()
    }
}

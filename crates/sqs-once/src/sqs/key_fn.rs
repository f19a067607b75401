//! [`KeyFn`]: a function that makes the key of a message.

use std::{
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use crate::{
    flawed::flawed,
    handler::{DeliveryMetadata, InvalidMessage},
    protocol::KeyPart,
};

/// Why a message has no key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NoIdentity {
    /// The message is invalid, so no attempt can find a key.
    Invalid(InvalidMessage),
    /// The key function panicked.
    KeyPanicked,
}

impl From<InvalidMessage> for NoIdentity {
    fn from(invalid: InvalidMessage) -> Self {
        Self::Invalid(invalid)
    }
}

type Parts = Vec<KeyPart<'static>>;
type Function = dyn Fn(&str, &DeliveryMetadata) -> Result<Parts, String> + Send + Sync;

/// A function that makes the parts of a key: see [`KeySource::from_fn`](super::KeySource::from_fn). Clones
/// share the function and compare as equal.
#[derive(Clone)]
pub struct KeyFn(Arc<Function>);

impl KeyFn {
    pub(super) fn new(
        function: impl Fn(&str, &DeliveryMetadata) -> Result<Parts, String> + Send + Sync + 'static,
    ) -> Self {
        Self(Arc::new(function))
    }

    /// Returns the parts of the key. Catches a panic of the function.
    pub(super) fn parts(
        &self,
        body: &str,
        delivery: &DeliveryMetadata,
    ) -> Result<Parts, NoIdentity> {
        let parts = AssertUnwindSafe(|| (self.0)(body, delivery));
        let parts = catch_unwind(parts).map_err(|_panic| NoIdentity::KeyPanicked)?;
        let mut parts = parts.map_err(|why| {
            InvalidMessage(format!("no idempotency key by the key function: {why}"))
        })?;
        if flawed("only the first part of a key function counts") {
            parts.truncate(1);
        }
        Ok(parts)
    }
}

impl fmt::Debug for KeyFn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyFn").finish_non_exhaustive()
    }
}

impl PartialEq for KeyFn {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for KeyFn {}

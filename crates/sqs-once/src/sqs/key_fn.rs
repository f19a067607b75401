//! [`KeyFn`]: a function that makes the key of a [`Received`] message.

use std::{
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use crate::handler::{Body, DeliveryMetadata, EnvelopeMetadata, InvalidMessage};

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

type Function = dyn Fn(&Received<'_>) -> Result<Vec<String>, String> + Send + Sync;

/// A function that makes the parts of a key: see [`KeySource::from_fn`](super::KeySource::from_fn). Clones
/// share the function and compare as equal.
#[derive(Clone)]
pub struct KeyFn(Arc<Function>);

impl KeyFn {
    pub(super) fn new(
        function: impl Fn(&Received<'_>) -> Result<Vec<String>, String> + Send + Sync + 'static,
    ) -> Self {
        Self(Arc::new(function))
    }

    /// Returns the parts of the key. Catches a panic of the function.
    pub(super) fn parts(&self, message: &Received<'_>) -> Result<Vec<String>, NoIdentity> {
        let parts = AssertUnwindSafe(|| (self.0)(message));
        let parts = catch_unwind(parts).map_err(|_panic| NoIdentity::KeyPanicked)?;
        Ok(parts.map_err(|why| {
            InvalidMessage(format!("no idempotency key by the key function: {why}"))
        })?)
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

/// A message as a [key function](super::KeySource::from_fn) sees it: decoded, but without a key.
///
/// ```
/// use sqs_once::sqs::Received;
///
/// /// The id by the service that put the message into an envelope, for messages without their own.
/// fn key(message: &Received<'_>) -> Result<[String; 1], &'static str> {
///     let id = message.envelope().and_then(|envelope| envelope.id.clone());
///     Ok([id.unwrap_or_else(|| message.message_id().to_owned())])
/// }
/// # let _ = sqs_once::sqs::KeySource::from_fn(key);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Received<'a> {
    pub(super) facts: &'a DeliveryMetadata,
    pub(super) body: &'a Body<'a>,
}

impl<'a> Received<'a> {
    /// Returns the decoded body.
    #[must_use]
    pub fn body(&self) -> &'a [u8] {
        self.body.as_bytes()
    }

    /// Returns the message id.
    #[must_use]
    pub fn message_id(&self) -> &'a str {
        &self.facts.message_id
    }

    /// Returns the message group (`MessageGroupId`).
    #[must_use]
    pub fn group_id(&self) -> Option<&'a str> {
        self.facts.group_id.as_deref()
    }

    /// Returns the text of a message attribute of type String or Number.
    #[must_use]
    pub fn attribute(&self, name: &str) -> Option<&'a str> {
        self.facts.attribute(name)
    }

    /// Returns the bytes of a message attribute of type Binary.
    #[must_use]
    pub fn binary_attribute(&self, name: &str) -> Option<&'a [u8]> {
        self.facts.binary_attribute(name)
    }

    /// Returns what the removed envelope said about the message. `None` if there was no envelope.
    #[must_use]
    pub fn envelope(&self) -> Option<&'a EnvelopeMetadata> {
        self.facts.envelope.as_ref()
    }
}

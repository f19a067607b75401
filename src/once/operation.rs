//! [`Operation`]: one thing to do once.

use crate::{
    deadline::Deadline,
    handler::Delivery,
    protocol::{Fingerprint, Key},
};

/// One thing to do once.
///
/// ```
/// use std::time::Duration;
/// use sqs_once::{Deadline, Operation};
/// use sqs_once::protocol::{Fingerprint, Key, Namespace, Timestamp};
///
/// let operation = Operation::new(
///     Key::new(&Namespace::new("payments")?, ["order-1"])?,
///     Some(Fingerprint::of(b"{\"amount\":1}")),
///     "059f36b4",
///     Deadline::after(Timestamp::now(), Duration::from_secs(30), Duration::ZERO),
/// );
/// # Ok::<(), sqs_once::protocol::KeyError>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Operation {
    /// The idempotency key: deliveries with the same key are the same operation.
    pub key: Key,
    /// The fingerprint of the payload, which must not change under the key; `None` is not compared.
    pub fingerprint: Option<Fingerprint>,
    /// The message that asks for it.
    #[doc(hidden)]
    pub delivery: Delivery,
    /// Until when it must have ended.
    pub deadline: Deadline,
}

impl Operation {
    /// An operation that the message, or request, with the id `delivery` asks for; see the fields.
    #[must_use]
    pub fn new(
        key: Key,
        fingerprint: Option<Fingerprint>,
        delivery: impl Into<Delivery>,
        deadline: Deadline,
    ) -> Self {
        Self {
            key,
            fingerprint,
            delivery: delivery.into(),
            deadline,
        }
    }
}

//! [`Operation`]: the unit of work that a mode runs once.

use std::time::Duration;

use crate::{
    deadline::Deadline,
    handler::Delivery,
    meter::Meter,
    protocol::{Fingerprint, Key},
};

/// One unit of work to run once, identified by its key.
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
    /// Idempotency key. Deliveries with the same key are the same operation.
    pub key: Key,
    /// Fingerprint of the payload, which must not change under one key. `None` matches every fingerprint.
    pub fingerprint: Option<Fingerprint>,
    /// Delivery of the message that carries the operation.
    #[doc(hidden)]
    pub delivery: Delivery,
    /// Time limit of the attempt.
    pub deadline: Deadline,
    /// The quarantine of the handler's lookup. `None` if it has no lookup.
    #[doc(hidden)]
    pub quarantine: Option<Duration>,
    /// Measures the requests to the store.
    #[doc(hidden)]
    pub meter: Meter,
}

impl Operation {
    /// Creates an operation for the message or request with the id `delivery`.
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
            quarantine: None,
            meter: Meter::default(),
        }
    }
}

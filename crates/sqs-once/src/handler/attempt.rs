//! [`Attempt`]: key, delivery, deadline and history, which a handler gets together with the message.

use std::{any::Any, sync::Arc, time::Duration};

use super::{
    delivery::{Delivery, DeliveryMetadata},
    history::{History, PriorAttempt},
};
use crate::{
    deadline::Deadline,
    meter::{Amount, Meter, Unit},
    protocol::{AttemptEnd, Key, Timestamp},
};

/// One attempt at an operation: its key, its delivery, its deadline and its history.
#[derive(Clone, Debug)]
pub struct Attempt {
    key: Key,
    delivery: Delivery,
    history: History,
    deadline: Deadline,
    /// A value that the mode lends to its handler, such as a PostgreSQL transaction.
    extension: Option<Arc<dyn Any + Send + Sync>>,
    meter: Meter,
}

impl Attempt {
    /// Creates an attempt with this history.
    #[must_use]
    pub fn new(key: Key, delivery: Delivery, history: History, deadline: Deadline) -> Self {
        Self {
            key,
            delivery,
            history,
            deadline,
            extension: None,
            meter: Meter::default(),
        }
    }

    /// Lends the handler a value of the mode.
    #[doc(hidden)]
    pub fn with_extension(self, value: impl Any + Send + Sync) -> Self {
        Self {
            extension: Some(Arc::new(value)),
            ..self
        }
    }

    pub(crate) fn meter(&self) -> &Meter {
        &self.meter
    }

    pub(crate) fn with_meter(self, meter: Meter) -> Self {
        Self { meter, ..self }
    }

    /// Adds a value to your own metric in the batch's log line, from which CloudWatch reads it like the consumer's metrics. By
    /// convention, a name is in PascalCase and always has the same unit. Values that aren't finite are left out. A batch has room
    /// for 40 names. The consumer leaves out any others, and names that it uses itself, and logs a warning. Has no effect outside a
    /// batch, or if the consumer writes no metrics.
    ///
    /// ```
    /// use sqs_once::{Attempt, telemetry::Unit};
    ///
    /// fn charged(attempt: &Attempt, cents: u64) {
    ///     attempt.metric("ChargedCents", Unit::Count, cents);
    /// }
    /// ```
    pub fn metric(&self, name: &'static str, unit: Unit, value: impl Into<Amount>) {
        self.meter.own(name, unit, value.into());
    }

    /// Returns the value that the mode lent, if it has this type.
    #[doc(hidden)]
    pub fn extension<T: 'static>(&self) -> Option<&T> {
        self.extension.as_ref()?.downcast_ref()
    }

    /// Creates the first attempt at `key`, for the message with this id. Use it to test a handler without a
    /// `Consumer`.
    ///
    /// ```
    /// use std::time::Duration;
    /// use sqs_once::{Attempt, Deadline};
    /// use sqs_once::protocol::{Key, Namespace, Timestamp};
    ///
    /// let key = Key::new(&Namespace::new("payments")?, ["order-1"])?;
    /// let deadline = Deadline::after(Timestamp::now(), Duration::from_secs(30), Duration::ZERO);
    /// let attempt = Attempt::first(key, "m-1", deadline);
    /// assert_eq!(attempt.key().as_str(), "payments#order-1");
    /// assert!(attempt.time_left() > Duration::from_secs(29));
    /// # Ok::<(), sqs_once::protocol::KeyError>(())
    /// ```
    #[must_use]
    pub fn first(key: Key, message_id: impl Into<String>, deadline: Deadline) -> Self {
        Self::new(key, Delivery::new(message_id), History::fresh(), deadline)
    }

    /// Adds a prior attempt that may have had its effect. Use it to test that a handler looks for that
    /// effect.
    ///
    /// `first_claimed_at` is the time of the earlier claim, and `last_end` says how that attempt ended.
    /// `None` means unknown.
    ///
    /// ```
    /// # use std::time::Duration;
    /// use sqs_once::protocol::{AttemptEnd, Timestamp};
    /// # use sqs_once::{Attempt, Deadline};
    /// # use sqs_once::protocol::{Key, Namespace};
    /// # let key = Key::new(&Namespace::new("payments")?, ["order-1"])?;
    /// # let deadline = Deadline::after(Timestamp::now(), Duration::from_secs(30), Duration::ZERO);
    /// # let attempt = Attempt::first(key, "m-1", deadline);
    ///
    /// let at = Timestamp::from_millis(1_800_000_000_000);
    /// let second = attempt.interrupted(Some(at), Some(AttemptEnd::Panic));
    /// let prior = second.prior().unwrap();
    /// assert_eq!((prior.first_claimed_at, prior.last_end), (Some(at), Some(AttemptEnd::Panic)));
    /// # Ok::<(), sqs_once::protocol::KeyError>(())
    /// ```
    #[must_use]
    pub fn interrupted(
        self,
        first_claimed_at: Option<Timestamp>,
        last_end: Option<AttemptEnd>,
    ) -> Self {
        let prior = PriorAttempt {
            first_claimed_at,
            last_end,
            other_payload: false,
        };
        Self {
            history: History {
                attempts: self.history.attempts + 1,
                prior: Some(prior),
                ..self.history
            },
            ..self
        }
    }

    /// Returns the idempotency key. To a called system, pass the [call key](Self::call_key) instead.
    #[must_use]
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// Returns the name under which a called system knows the operation: a UUID of 36 characters. Pass it on, for example as
    /// the `Idempotency-Key` of a payment gateway, so that the gateway recognizes a repeated request.
    ///
    /// All attempts have the same call key until the called system declines ([`Failure::declined`](crate::Failure::declined)).
    /// A gateway remembers a decline under its key and repeats it, so the next attempt needs another key.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use sqs_once::{Attempt, Deadline};
    /// # use sqs_once::protocol::{Key, Namespace, Timestamp};
    /// # let key = Key::new(&Namespace::new("payments")?, ["order-1"])?;
    /// # let deadline = Deadline::after(Timestamp::now(), Duration::from_secs(30), Duration::ZERO);
    /// # let attempt = Attempt::first(key, "m-1", deadline);
    /// let again = attempt.clone().interrupted(None, None);
    /// assert_eq!(again.call_key(), attempt.call_key());
    /// # Ok::<(), sqs_once::protocol::KeyError>(())
    /// ```
    #[must_use]
    pub fn call_key(&self) -> String {
        self.key.call_key(self.history.generation)
    }

    /// Returns the message id.
    #[must_use]
    pub fn message_id(&self) -> &str {
        &self.delivery.facts().message_id
    }

    /// Returns how many times the message was received, this time included (`ApproximateReceiveCount`).
    #[must_use]
    pub fn receive_count(&self) -> u32 {
        self.delivery.facts().receive_count
    }

    /// Returns the text of a message attribute of type String or Number: [`DeliveryMetadata::attribute`].
    #[must_use]
    pub fn attribute(&self, name: &str) -> Option<&str> {
        self.delivery.facts().attribute(name)
    }

    /// Returns what SQS says about this delivery of the message: its queue and message group, its times and attributes.
    ///
    /// ```
    /// # use sqs_once::Attempt;
    /// /// The tenant, on a queue with fair queues.
    /// fn tenant(attempt: &Attempt) -> Option<&str> {
    ///     attempt.delivery().group_id.as_deref()
    /// }
    /// ```
    #[must_use]
    pub fn delivery(&self) -> &DeliveryMetadata {
        self.delivery.facts()
    }

    /// Returns how many times this operation was claimed before, since its record was created. Always 0 in an `Inbox` and in
    /// `ItemMode`, which make no claims.
    #[must_use]
    pub fn earlier_claims(&self) -> u64 {
        self.history.attempts
    }

    /// Returns the earlier attempts in the record.
    #[doc(hidden)]
    #[must_use]
    pub fn history(&self) -> &History {
        &self.history
    }

    /// Returns the prior attempt that may have had its effect without a record of it, or `None` if there was
    /// none. Look for its effect before you repeat it.
    ///
    /// Also look for it before you return a permanent failure. Otherwise the record says that the operation failed,
    /// although the prior attempt may have had its effect.
    ///
    /// ```
    /// use sqs_once::{Attempt, protocol::AttemptEnd};
    ///
    /// fn search(attempt: &Attempt) -> String {
    ///     let Some(prior) = attempt.prior() else {
    ///         return "nothing to look for".into();
    ///     };
    ///     let end = prior.last_end.map_or("unknown", AttemptEnd::name);
    ///     match prior.first_claimed_at {
    ///         Some(at) => format!("look for charges from {at} on; last end: {end}"),
    ///         None => format!("look for charges at any time; last end: {end}"),
    ///     }
    /// }
    /// ```
    #[must_use]
    pub fn prior(&self) -> Option<PriorAttempt> {
        self.history.prior
    }

    /// Returns the invocation's deadline.
    #[must_use]
    pub fn deadline(&self) -> Deadline {
        self.deadline
    }

    /// Returns the time until the handler is cut off.
    #[must_use]
    pub fn time_left(&self) -> Duration {
        self.deadline.time_left()
    }

    /// Logs an open attempt before the handler runs: as a retry if that attempt's handler returned a failure,
    /// otherwise as a takeover.
    #[doc(hidden)]
    pub fn log_history(&self) {
        let Some(prior) = self.history.prior else {
            return;
        };
        macro_rules! line {
            ($level:ident, $start:literal) => {
                tracing::$level!(
                    key = %self.key,
                    attempts = self.history.attempts,
                    first_claimed_at = prior.first_claimed_at.map(tracing::field::display),
                    last_end = prior.last_end.map(AttemptEnd::name),
                    other_payload = prior.other_payload.then_some(true),
                    concat!($start, ": an earlier attempt may have had its effect")
                )
            };
        }
        if self.history.is_takeover() {
            line!(warn, "takeover");
        } else {
            line!(info, "retry");
        }
    }
}

//! [`Consumer`]: processes batches of SQS messages, each message once.

use std::{fmt, sync::Arc, time::Duration};

use super::{
    BatchError, identity::IdentitySources, on_duplicate::OnDuplicate, options::Options,
    process::Process,
};
use crate::{
    deadline::Deadline,
    flawed::flawed,
    handler::{AnyLookUp, Handler},
    modes::Mode,
    protocol::{Namespace, Timestamp},
    telemetry::millis,
};

/// How far a process may underestimate its function's timeout, because the first invocation can reach the process late.
const LATE: Duration = Duration::from_secs(10);

/// Processes batches of SQS messages, each message once.
///
/// ```
/// use serde::Deserialize;
/// use sqs_once::{Attempt, Consumer, Failure, Once, handler_fn, protocol::Namespace, store::MemoryStore};
///
/// #[derive(Deserialize)]
/// struct Order { id: String }
///
/// async fn ship(order: Order, attempt: Attempt) -> Result<String, Failure> {
///     Ok(format!("shipped {} under {}", order.id, attempt.key()))
/// }
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let consumer = Consumer::without_aws(Once::new(MemoryStore::default()), Namespace::new("orders")?, handler_fn(ship))
///     .concurrency(std::num::NonZeroUsize::MIN)
///     .key("body:/id".parse()?);
///
/// // In a Lambda, `sqs_once::run(consumer).await` does the rest.
/// let event = serde_json::from_value(serde_json::json!({"Records": [
///     {"messageId": "m-1", "body": "{\"id\": \"o-1\"}"},
///     {"messageId": "m-2", "body": "not an order"},
/// ]}))?;
/// let deadline = consumer.deadline(sqs_once::protocol::Timestamp::default());
/// let response = consumer.process(event, deadline).await?;
/// assert_eq!(response.batch_item_failures[0].item_identifier, "m-2");
/// # Ok(()) }
/// ```
pub struct Consumer<M, H> {
    pub(super) mode: Arc<M>,
    pub(super) handler: Arc<H>,
    pub(super) namespace: Namespace,
    /// The lookup and the quarantine before it.
    pub(super) asks: Option<(Arc<dyn AnyLookUp<H>>, Duration)>,
    pub(super) replay: Option<OnDuplicate<H>>,
    /// Clones share this, and so do the invocations of a process.
    pub(super) process: Arc<Process>,
    pub(super) options: Options,
}

/// Clones share mode and handler.
impl<M, H> Clone for Consumer<M, H> {
    fn clone(&self) -> Self {
        Self {
            mode: Arc::clone(&self.mode),
            handler: Arc::clone(&self.handler),
            namespace: self.namespace.clone(),
            asks: self.asks.clone(),
            replay: self.replay.clone(),
            process: Arc::clone(&self.process),
            options: self.options.clone(),
        }
    }
}

impl<M: fmt::Debug, H> fmt::Debug for Consumer<M, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Consumer")
            .field("mode", &self.mode)
            .field("namespace", &self.namespace)
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

impl<M, H> Consumer<M, H> {
    pub(super) fn identity_sources(&self) -> IdentitySources<'_> {
        IdentitySources {
            namespace: &self.namespace,
            key: &self.options.key,
            fingerprint: &self.options.fingerprint,
            warned: &self.process.has_named_pointers,
        }
    }

    pub(crate) fn called(&self) -> (&H, Option<&dyn AnyLookUp<H>>) {
        let look_up = self.asks.as_ref().map(|(look_up, _)| &**look_up);
        (&self.handler, look_up)
    }

    pub(crate) fn quarantine(&self) -> Option<Duration> {
        let quarantine = self.asks.as_ref().map(|(_, quarantine)| *quarantine);
        if flawed("nobody waits for a late request") {
            return quarantine.map(|_| Duration::ZERO);
        }
        quarantine
    }

    /// Creates a consumer for tests and for your own machine. The consumer runs `handler` for each message in this `mode`
    /// ([`Once`](crate::Once), [`Inbox`](crate::Inbox) or [`ItemMode`](crate::ItemMode)), with `namespace` as the first
    /// part of every key. [`handler_fn`](crate::handler_fn) turns an async function into a handler.
    ///
    /// The consumer calls neither SQS nor CloudWatch. Failed messages come back after the queue's visibility timeout,
    /// without a backoff. Permanent failures stay in the queue until its redrive policy moves them, and there are no
    /// metrics. On AWS, build the consumer from [`Settings`](crate::Settings), which adds all that.
    /// [`Settings::from_vars`](crate::Settings::from_vars) takes the values from code.
    pub fn without_aws(mode: M, namespace: Namespace, handler: H) -> Self
    where
        M: Mode<H::Output>,
        H: Handler,
    {
        Self::with_options(mode, namespace, handler, Options::default())
    }

    pub(crate) fn with_options(
        mode: M,
        namespace: Namespace,
        handler: H,
        options: Options,
    ) -> Self {
        Self {
            mode: Arc::new(mode),
            handler: Arc::new(handler),
            namespace,
            asks: None,
            replay: None,
            process: Arc::default(),
            options,
        }
    }

    /// Returns the deadline of an invocation that Lambda ends at `at`.
    #[must_use]
    pub fn deadline(&self, at: Timestamp) -> Deadline
    where
        M: Mode<H::Output>,
        H: Handler,
    {
        let deadline = Deadline::of_invocation(
            self.mode.now(),
            at,
            self.options.assumed_timeout,
            self.options.deadline_reserve,
        );
        let time_left = deadline.time_left();
        if time_left < self.options.min_time_to_start {
            tracing::warn!(
                time_left_ms = millis(time_left),
                min_time_to_start_ms = millis(self.options.min_time_to_start),
                "the function's timeout is shorter than its handler may take: raise it"
            );
        }
        deadline.min_time_to_start(self.options.min_time_to_start)
    }

    /// Checks that `CONSUMER_MIN_TIME_TO_START` leaves time to start a handler. The function's timeout is in whole seconds.
    /// We learn it only from the time that an invocation has, and the first invocation may reach the process late. If this
    /// invocation has less time than the setting, no message starts.
    ///
    /// # Errors
    ///
    /// Returns [`BatchError::MinTimeToStart`] if the setting exceeds the longest time that any invocation has had by more
    /// than a late start can explain.
    pub(super) fn check_min_time(&self, deadline: Deadline) -> Result<Deadline, BatchError>
    where
        M: Mode<H::Output>,
        H: Handler,
    {
        let Some(divisor) = self.options.min_time_divisor else {
            return Ok(deadline);
        };
        let left = self.mode.now().until(deadline.invocation_end());
        let left = (Timestamp::default() + left).as_secs_ceil();
        let timeout = self.process.longest(left);
        let (setting, longest) = (self.options.min_time_to_start, timeout / divisor);
        if setting <= longest && setting <= Duration::from_secs(left) {
            return Ok(deadline);
        }
        let error = BatchError::MinTimeToStart {
            setting,
            timeout,
            longest,
        };
        if setting > longest + LATE {
            return Err(error);
        }
        tracing::error!(
            %error,
            time_left_s = left,
            "this invocation has less time than a handler needs to start, so its messages go back to the queue: if every invocation says so, change the setting"
        );
        Ok(deadline.without_starts())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        handler::{Attempt, Failure, handler_fn},
        modes::Once,
        store::MemoryStore,
    };

    /// Returns whether a handler may start.
    fn checked<M: Mode<H::Output>, H: Handler>(
        consumer: &Consumer<M, H>,
        left: Duration,
    ) -> Result<bool, BatchError> {
        let deadline = consumer.deadline(Timestamp::now() + left);
        let checked = consumer.check_min_time(deadline)?;
        Ok(checked.may_start())
    }

    #[test]
    fn min_time_far_above_the_timeout_is_refused() {
        let second = Duration::from_secs(1);
        let consumer = |min_time: Duration, divisor| {
            let once = Once::new(MemoryStore::default());
            let handler = handler_fn(async |(): (), _: Attempt| Ok::<(), Failure>(()));
            let consumer = Consumer::without_aws(once, Namespace::new("test").unwrap(), handler);
            let mut consumer = consumer.min_time_to_start(min_time);
            consumer.options.min_time_divisor = divisor;
            consumer
        };
        // A little of the timeout has passed when the process sees the invocation.
        let left = Duration::from_millis(29_900);
        for (seconds, divisor, starts) in [
            (30, Some(1), Some(true)),
            (31, Some(1), Some(false)),
            (40, Some(1), Some(false)),
            (41, Some(1), None),
            (41, None, Some(true)),
            (15, Some(2), Some(true)),
            (16, Some(2), Some(false)),
            (26, Some(2), None),
        ] {
            let consumer = consumer(seconds * second, divisor);
            assert_eq!(
                checked(&consumer, left).ok(),
                starts,
                "{seconds} {divisor:?}"
            );
        }
        let error = checked(&consumer(26 * second, Some(2)), left).unwrap_err();
        let error = error.to_string();
        for text in ["CONSUMER_MIN_TIME_TO_START is 26s", "at most 15s"] {
            assert!(error.contains(text), "{error}");
        }

        // A process that starts late, then one invocation that comes late, and others that are in time.
        let at_most = consumer(30 * second, Some(1));
        for (left, starts) in [
            (28, false),
            (30, true),
            (22, false),
            (15, false),
            (30, true),
        ] {
            let left = left * second - second / 10;
            assert_eq!(checked(&at_most, left), Ok(starts), "{left:?}");
        }
    }
}

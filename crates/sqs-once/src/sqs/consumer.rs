//! [`Consumer`]: processes batches of SQS messages, each message once.

use std::{fmt, num::NonZeroUsize, sync::Arc, time::Duration};

use super::{
    BatchError, Envelope, fifo_after_permanent::FifoAfterPermanent,
    fingerprint_source::FingerprintSource, key_source::KeySource, make_span::MakeSpan,
    observer::Observer, on_duplicate::OnDuplicate, process::Process, s3_pointer::ReadBodies,
    visibility::Visibility,
};

use crate::{
    deadline::{Deadline, LEAST_MEMORY, reserve_per_message},
    handler::{AnyLookUp, Handler},
    modes::Mode,
    protocol::{Namespace, Timestamp},
    telemetry::{Metrics, millis},
};

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
/// let consumer = Consumer::new(Once::new(MemoryStore::default()), Namespace::new("orders")?, handler_fn(ship))
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
    /// The look-up and its quarantine.
    pub(super) asks: Option<(Arc<dyn AnyLookUp<H>>, Duration)>,
    pub(super) replay: Option<OnDuplicate<H>>,
    pub(super) namespace: Namespace,
    pub(super) key: KeySource,
    pub(super) envelope: Envelope,
    pub(super) s3_bodies: Option<Arc<dyn ReadBodies>>,
    pub(super) fingerprint: FingerprintSource,
    pub(super) concurrency: Concurrency,
    pub(super) deadline_reserve: Duration,
    pub(super) reserve_per_message: Duration,
    pub(super) assumed_timeout: Duration,
    pub(super) min_time_to_start: Duration,
    /// [`min_time_to_start`](Self::min_time_to_start) may be at most the function's timeout divided by this.
    /// `None`: it is a hint, and ignored where it is too long.
    pub(super) min_time_divisor: Option<u32>,
    pub(super) fifo_after_permanent: FifoAfterPermanent,
    pub(super) fail_when_store_unavailable: bool,
    /// Shared by clones, and so by the invocations of a process.
    pub(super) process: Arc<Process>,
    pub(super) visibility: Option<Visibility>,
    pub(super) metrics: Option<Metrics>,
    pub(super) observer: Option<Observer>,
    /// Makes the span of a message. `None`: the consumer makes it.
    pub(super) make_span: Option<MakeSpan>,
}

/// Clones share mode and handler.
impl<M, H> Clone for Consumer<M, H> {
    fn clone(&self) -> Self {
        Self {
            mode: Arc::clone(&self.mode),
            handler: Arc::clone(&self.handler),
            asks: self.asks.clone(),
            replay: self.replay.clone(),
            namespace: self.namespace.clone(),
            key: self.key.clone(),
            envelope: self.envelope,
            s3_bodies: self.s3_bodies.clone(),
            fingerprint: self.fingerprint.clone(),
            concurrency: self.concurrency,
            deadline_reserve: self.deadline_reserve,
            reserve_per_message: self.reserve_per_message,
            assumed_timeout: self.assumed_timeout,
            min_time_to_start: self.min_time_to_start,
            min_time_divisor: self.min_time_divisor,
            fifo_after_permanent: self.fifo_after_permanent,
            fail_when_store_unavailable: self.fail_when_store_unavailable,
            process: Arc::clone(&self.process),
            visibility: self.visibility.clone(),
            metrics: self.metrics.clone(),
            observer: self.observer.clone(),
            make_span: self.make_span.clone(),
        }
    }
}

impl<M: fmt::Debug, H> fmt::Debug for Consumer<M, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Consumer")
            .field("mode", &self.mode)
            .field("namespace", &self.namespace)
            .field("key", &self.key)
            .field("envelope", &self.envelope)
            .field("s3_bodies", &self.s3_bodies)
            .field("fingerprint", &self.fingerprint)
            .field("concurrency", &self.concurrency)
            .field("visibility", &self.visibility)
            .finish_non_exhaustive()
    }
}

/// How many messages of a batch run at a time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Concurrency {
    /// At most this many.
    most: NonZeroUsize,
    /// More than [`LEAST`] only if they fit into this much memory, in bytes.
    memory: usize,
}

/// How many messages run at a time in any case, if no setting says less.
pub(crate) const LEAST: NonZeroUsize = NonZeroUsize::new(10).unwrap();

/// Memory that a message may need for its output while it runs, in bytes. The largest output that fits into a record has
/// 400 KB, and there are several copies of it.
pub(super) const MEMORY_OF_OUTPUT: usize = 3 << 19;

impl Concurrency {
    pub(crate) const fn new(most: NonZeroUsize) -> Self {
        Self::within_memory(most, usize::MAX)
    }

    pub(crate) const fn within_memory(most: NonZeroUsize, memory: usize) -> Self {
        Self { most, memory }
    }

    pub(crate) const fn most(self) -> usize {
        self.most.get()
    }

    /// Returns how many messages without much of a body may run at a time.
    pub(crate) fn small_messages(self) -> usize {
        let fit = self.memory / MEMORY_OF_OUTPUT;
        self.most().min(fit.max(LEAST.get()))
    }

    /// Returns whether one more message may run beside these, if all of them then need this much memory.
    pub(crate) const fn admits(self, running: usize, memory: usize) -> bool {
        running < self.most() && (running < LEAST.get() || memory <= self.memory)
    }
}

impl<M, H> Consumer<M, H> {
    /// Returns the quarantine of the look-up, if there is one.
    pub(super) fn quarantine(&self) -> Option<Duration> {
        self.asks.as_ref().map(|(_, quarantine)| *quarantine)
    }

    /// Creates a consumer that runs `handler` for each message in this `mode` ([`Once`](crate::Once),
    /// [`Inbox`](crate::Inbox) or [`ItemMode`](crate::ItemMode)), with `namespace` as the first part of every
    /// key. By default it runs ten messages at a time, uses the message id as key, and keeps back half a
    /// second for outcomes and the response. [`handler_fn`](crate::handler_fn) turns an async function into a
    /// handler.
    pub fn new(mode: M, namespace: Namespace, handler: H) -> Self
    where
        M: Mode<H::Output>,
        H: Handler,
    {
        Self {
            mode: Arc::new(mode),
            handler: Arc::new(handler),
            asks: None,
            replay: None,
            namespace,
            key: KeySource::default(),
            envelope: Envelope::None,
            s3_bodies: None,
            fingerprint: FingerprintSource::default(),
            concurrency: Concurrency::new(LEAST),
            deadline_reserve: Duration::from_millis(500),
            reserve_per_message: reserve_per_message(LEAST_MEMORY),
            assumed_timeout: Duration::from_secs(300),
            min_time_to_start: Duration::ZERO,
            min_time_divisor: None,
            fifo_after_permanent: FifoAfterPermanent::default(),
            fail_when_store_unavailable: true,
            process: Arc::default(),
            visibility: None,
            metrics: None,
            observer: None,
            make_span: None,
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
            self.assumed_timeout,
            self.deadline_reserve,
        );
        let time_left = deadline.time_left();
        if time_left < self.min_time_to_start {
            tracing::warn!(
                time_left_ms = millis(time_left),
                min_time_to_start_ms = millis(self.min_time_to_start),
                "the function's timeout is shorter than its handler may take: raise it"
            );
        }
        deadline.min_time_to_start(self.min_time_to_start)
    }

    /// Checks that `CONSUMER_MIN_TIME_TO_START` leaves time to start a handler. Only an invocation shows the
    /// function's timeout, which counts in seconds.
    ///
    /// # Errors
    ///
    /// [`BatchError::MinTimeToStart`].
    pub(super) fn check_min_time(&self, deadline: &Deadline) -> Result<(), BatchError>
    where
        M: Mode<H::Output>,
        H: Handler,
    {
        let left = self.mode.now().until(deadline.invocation_end());
        let timeout = Duration::from_secs((Timestamp::default() + left).as_secs_ceil());
        match self.min_time_divisor {
            Some(divisor) if self.min_time_to_start > timeout / divisor => {
                Err(BatchError::MinTimeToStart {
                    setting: self.min_time_to_start,
                    timeout,
                    longest: timeout / divisor,
                })
            }
            _ => Ok(()),
        }
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

    #[test]
    fn min_time_above_the_timeout_is_refused() {
        let second = Duration::from_secs(1);
        let checked = |min_time: Duration, divisor, left: Duration| {
            let once = Once::new(MemoryStore::default());
            let handler = handler_fn(async |(): (), _: Attempt| Ok::<(), Failure>(()));
            let consumer = Consumer::new(once, Namespace::new("test").unwrap(), handler);
            let consumer = Consumer {
                min_time_divisor: divisor,
                ..consumer.min_time_to_start(min_time)
            };
            consumer.check_min_time(&consumer.deadline(Timestamp::now() + left))
        };
        // A little of the timeout is over when the process sees the invocation.
        let left = Duration::from_millis(29_900);
        for (seconds, divisor, is_refused) in [
            (30, Some(1), false),
            (31, Some(1), true),
            (31, None, false),
            (15, Some(2), false),
            (16, Some(2), true),
        ] {
            let checked = checked(seconds * second, divisor, left);
            assert_eq!(checked.is_err(), is_refused, "{seconds} {divisor:?}");
        }
        let error = checked(16 * second, Some(2), left).unwrap_err().to_string();
        for text in ["CONSUMER_MIN_TIME_TO_START is 16s", "at most 15s"] {
            assert!(error.contains(text), "{error}");
        }
    }
}

//! [`Consumer`]: its settings.

use std::{
    num::{NonZeroU32, NonZeroUsize},
    str::FromStr,
    sync::Arc,
    time::Duration,
};

use super::{
    Envelope,
    breaker::CircuitBreaker,
    encoding::{Decoding, Encoding},
    identity::{FingerprintSource, KeySource},
    observer::Observer,
    s3_pointer::ReadBodies,
    visibility::Visibility,
};
use sqs_once_core::once::Turns;

use crate::{
    InvalidValue,
    deadline::{Deadline, LEAST_MEMORY, reserve_per_message},
    handler::Handler,
    once::Mode,
    protocol::{Namespace, Timestamp},
    telemetry::{MessageOutcome, Metrics, millis},
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
#[derive(Debug)]
pub struct Consumer<M, H> {
    pub(super) mode: Arc<M>,
    pub(super) handler: Arc<H>,
    pub(super) namespace: Namespace,
    pub(super) key: KeySource,
    pub(super) envelope: Envelope,
    pub(super) decoding: Decoding,
    pub(super) s3_bodies: Option<Arc<dyn ReadBodies>>,
    pub(super) fingerprint: FingerprintSource,
    pub(super) concurrency: NonZeroUsize,
    pub(super) claims_ahead: usize,
    pub(super) conflict_wait: Duration,
    pub(super) deadline_reserve: Duration,
    pub(super) reserve_per_message: Duration,
    pub(super) assumed_timeout: Duration,
    pub(super) min_time_to_start: Duration,
    pub(super) fifo_after_permanent: FifoAfterPermanent,
    pub(super) fail_when_store_unavailable: bool,
    /// `None`: every message runs.
    pub(super) breaker: Option<CircuitBreaker>,
    /// Clones share the turns, and so the batches of a process.
    pub(super) turns: Turns,
    pub(super) visibility: Option<Visibility>,
    pub(super) metrics: Option<Metrics>,
    pub(super) observer: Option<Observer>,
    pub(super) log_sample_completed: f64,
}

/// Clones share mode and handler.
impl<M, H> Clone for Consumer<M, H> {
    fn clone(&self) -> Self {
        Self {
            mode: Arc::clone(&self.mode),
            handler: Arc::clone(&self.handler),
            namespace: self.namespace.clone(),
            key: self.key.clone(),
            envelope: self.envelope,
            decoding: self.decoding,
            s3_bodies: self.s3_bodies.clone(),
            fingerprint: self.fingerprint.clone(),
            concurrency: self.concurrency,
            claims_ahead: self.claims_ahead,
            conflict_wait: self.conflict_wait,
            deadline_reserve: self.deadline_reserve,
            reserve_per_message: self.reserve_per_message,
            assumed_timeout: self.assumed_timeout,
            min_time_to_start: self.min_time_to_start,
            fifo_after_permanent: self.fifo_after_permanent,
            fail_when_store_unavailable: self.fail_when_store_unavailable,
            breaker: self.breaker.clone(),
            turns: self.turns.clone(),
            visibility: self.visibility.clone(),
            metrics: self.metrics.clone(),
            observer: self.observer.clone(),
            log_sample_completed: self.log_sample_completed,
        }
    }
}

/// The treatment of a FIFO group's messages behind a permanent failure of their batch.
///
/// ```
/// use sqs_once::sqs::FifoAfterPermanent;
///
/// assert_eq!("continue".parse(), Ok(FifoAfterPermanent::Continue));
/// assert_eq!("stop".parse(), Ok(FifoAfterPermanent::Stop));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum FifoAfterPermanent {
    /// They run, once the failure is recorded: the failed message never runs again, so they do
    /// not overtake it. A failure that needs no record (an undecodable body, no key, a key that
    /// was reused) counts as recorded; one on an [item](crate::OnItem) is not recorded, and stops
    /// the group.
    #[default]
    Continue,
    /// They do not run, and are received again with the failed message: up to the dead-letter
    /// queue. AWS asks functions on FIFO queues to stop at the first failure (*AWS Lambda
    /// Developer Guide*, "Implementing partial batch responses").
    Stop,
}

impl FromStr for FifoAfterPermanent {
    type Err = InvalidValue;

    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        match text {
            "continue" => Ok(Self::Continue),
            "stop" => Ok(Self::Stop),
            _ => Err(InvalidValue::new("must be `continue` or `stop`")),
        }
    }
}

impl<M, H> Consumer<M, H> {
    /// Runs `handler` for each message in this `mode` ([`Once`](crate::Once),
    /// [`Inbox`](crate::Inbox) or [`OnItem`](crate::OnItem)), keys prefixed with `namespace`: ten messages at a time,
    /// keyed by message id, half a second kept back to end well. An async function is a handler by
    /// way of [`handler_fn`](crate::handler_fn).
    pub fn new(mode: M, namespace: Namespace, handler: H) -> Self
    where
        M: Mode<H::Output>,
        H: Handler,
    {
        Self {
            mode: Arc::new(mode),
            handler: Arc::new(handler),
            namespace,
            key: KeySource::default(),
            envelope: Envelope::None,
            decoding: Decoding::default(),
            s3_bodies: None,
            fingerprint: FingerprintSource::default(),
            concurrency: const { NonZeroUsize::new(10).unwrap() },
            claims_ahead: 0,
            conflict_wait: Duration::ZERO,
            deadline_reserve: Duration::from_millis(500),
            reserve_per_message: reserve_per_message(LEAST_MEMORY),
            assumed_timeout: Duration::from_secs(300),
            min_time_to_start: Duration::ZERO,
            fifo_after_permanent: FifoAfterPermanent::default(),
            fail_when_store_unavailable: true,
            breaker: Some(CircuitBreaker::default()),
            turns: Turns::default(),
            visibility: None,
            metrics: None,
            observer: None,
            log_sample_completed: 1.0,
        }
    }

    /// Where a message's key comes from.
    #[must_use]
    pub fn key(self, key: KeySource) -> Self {
        Self { key, ..self }
    }

    /// Sets the service that puts its own JSON around each message. The consumer removes it before
    /// it looks for the key. By default none does.
    ///
    /// ```
    /// use sqs_once::{Consumer, Handler, Mode, sqs::Envelope};
    ///
    /// # fn of_topic<M: Mode<H::Output>, H: Handler>(consumer: Consumer<M, H>) -> Consumer<M, H> {
    /// consumer.envelope(Envelope::Sns)
    /// # }
    /// ```
    #[must_use]
    pub fn envelope(self, envelope: Envelope) -> Self {
        Self { envelope, ..self }
    }

    /// Sets the encoding of messages without the message attribute `Content-Encoding`. By default they
    /// have none.
    ///
    /// ```
    /// use sqs_once::{Consumer, Handler, Mode, sqs::Encoding};
    ///
    /// # fn compressed<M: Mode<H::Output>, H: Handler>(consumer: Consumer<M, H>) -> Consumer<M, H> {
    /// consumer.encoding(Encoding::Gzip)
    /// # }
    /// ```
    #[must_use]
    pub fn encoding(self, encoding: Encoding) -> Self {
        let decoding = Decoding {
            encoding,
            ..self.decoding
        };
        Self { decoding, ..self }
    }

    /// Sets the largest decompressed body in bytes, 10 MiB by default. A larger body is a permanent
    /// failure, of which no more than the limit is decompressed.
    ///
    /// Each message in progress may hold a body of this size, and the handler's value. While its key is
    /// made, a body of JSON takes 14 times its size, and a hostile one up to 97 times.
    ///
    /// ```
    /// use std::num::NonZeroU32;
    /// use sqs_once::{Consumer, Handler, Mode};
    ///
    /// # fn small<M: Mode<H::Output>, H: Handler>(consumer: Consumer<M, H>) -> Consumer<M, H> {
    /// consumer.max_body_bytes(const { NonZeroU32::new(256 * 1024).unwrap() })
    /// # }
    /// ```
    #[must_use]
    pub fn max_body_bytes(self, max_body_bytes: NonZeroU32) -> Self {
        let decoding = Decoding {
            max_body_bytes,
            ..self.decoding
        };
        Self { decoding, ..self }
    }

    /// Reads bodies from S3 that the Amazon SQS Extended Client stored there: `S3Bodies` of the feature `s3`. By
    /// default a pointer to such a body is a body as any other.
    #[must_use]
    pub fn s3_bodies(self, s3_bodies: impl ReadBodies + 'static) -> Self {
        Self {
            s3_bodies: Some(Arc::new(s3_bodies)),
            ..self
        }
    }

    /// Sets the part of a message that must not change under one key.
    #[must_use]
    pub fn fingerprint(self, fingerprint: FingerprintSource) -> Self {
        Self {
            fingerprint,
            ..self
        }
    }

    /// How many handlers of one batch run at a time.
    #[must_use]
    pub fn concurrency(self, concurrency: NonZeroUsize) -> Self {
        Self {
            concurrency,
            ..self
        }
    }

    /// How many messages of one batch are in progress beyond the [concurrency](Self::concurrency):
    /// claimed, and waiting for a handler, or completed. 0 by default.
    ///
    /// For a store that [batches](crate::store::Batched) claims and completions, whose
    /// requests then hold more of them. 40 beside the default concurrency fill two groups.
    ///
    /// A message whose handler cannot start in time is released, which costs one write. After a
    /// crash, the messages claimed ahead wait for the end of their leases, and their next attempts
    /// are informed.
    ///
    /// ```
    /// # use sqs_once::{Consumer, Mode, Handler};
    /// fn ahead<M: Mode<H::Output>, H: Handler>(consumer: Consumer<M, H>) -> Consumer<M, H> {
    ///     consumer.claims_ahead(40)
    /// }
    /// ```
    #[must_use]
    pub fn claims_ahead(self, claims_ahead: usize) -> Self {
        Self {
            claims_ahead,
            ..self
        }
    }

    /// How long to wait, within the deadline, for another worker that holds a message's claim,
    /// to take their outcome. By default not at all: the message goes back to the queue. While it
    /// waits, the message takes up one of the [concurrency](Self::concurrency), and it claims
    /// again every 50 ms at first and every second in the end, one write unit each time.
    #[must_use]
    pub fn conflict_wait(self, conflict_wait: Duration) -> Self {
        Self {
            conflict_wait,
            ..self
        }
    }

    /// Reserves time at the end of an invocation to record outcomes and answer.
    #[must_use]
    pub fn deadline_reserve(self, deadline_reserve: Duration) -> Self {
        Self {
            deadline_reserve,
            ..self
        }
    }

    /// Reserves more time for each message of a batch, 140 µs by default: as much as the smallest function
    /// needs. `Settings` derives it from the function's memory.
    ///
    /// Each message has its part in the response, in the metrics and in the memory that is freed, on the
    /// share of a vCPU that the function has.
    ///
    /// ```
    /// use std::time::Duration;
    /// use sqs_once::{Consumer, Handler, Mode};
    ///
    /// # fn with_a_whole_vcpu<M: Mode<H::Output>, H: Handler>(consumer: Consumer<M, H>) -> Consumer<M, H> {
    /// consumer.deadline_reserve_per_message(Duration::from_micros(10))
    /// # }
    /// ```
    #[must_use]
    pub fn deadline_reserve_per_message(self, reserve_per_message: Duration) -> Self {
        Self {
            reserve_per_message,
            ..self
        }
    }

    /// The budget of an invocation whose deadline is not known (see
    /// [`Deadline::of_invocation`]).
    #[must_use]
    pub fn assumed_timeout(self, assumed_timeout: Duration) -> Self {
        Self {
            assumed_timeout,
            ..self
        }
    }

    /// How long the handler takes at most, where that is known (see
    /// [`Deadline::min_time_to_start`]): with less time left, a message is not started but goes back
    /// to the queue.
    #[must_use]
    pub fn min_time_to_start(self, min_time_to_start: Duration) -> Self {
        Self {
            min_time_to_start,
            ..self
        }
    }

    /// Sets the treatment of a FIFO group's messages behind a permanent failure; by default they run.
    ///
    /// ```
    /// use sqs_once::{Consumer, Handler, Mode, sqs::FifoAfterPermanent};
    ///
    /// # fn stopping<M: Mode<H::Output>, H: Handler>(consumer: Consumer<M, H>) -> Consumer<M, H> {
    /// consumer.fifo_after_permanent(FifoAfterPermanent::Stop)
    /// # }
    /// ```
    #[must_use]
    pub fn fifo_after_permanent(self, fifo_after_permanent: FifoAfterPermanent) -> Self {
        Self {
            fifo_after_permanent,
            ..self
        }
    }

    /// Fails the invocation where every message of the batch failed because DynamoDB could not be
    /// reached, denied access or has no such table ([`BatchError::StoreUnavailable`](crate::BatchError::StoreUnavailable)), so that
    /// Lambda's Errors metric shows it. On by default; throttling does not count. Visibility
    /// timeouts are set before, and the messages come back the same.
    ///
    /// ```
    /// # use sqs_once::{Consumer, Handler, Mode};
    /// # fn quiet<M: Mode<H::Output>, H: Handler>(consumer: Consumer<M, H>) -> Consumer<M, H> {
    /// consumer.fail_when_store_unavailable(false)
    /// # }
    /// ```
    #[must_use]
    pub fn fail_when_store_unavailable(self, fail_when_store_unavailable: bool) -> Self {
        Self {
            fail_when_store_unavailable,
            ..self
        }
    }

    /// Switches the circuit breaker on or off. On by default.
    ///
    /// After 20 handlers of this process failed in a row, for at least 10 keys, the circuit opens. Messages
    /// then return to the queue without a claim ([`Outcome::CircuitOpen`](crate::Outcome::CircuitOpen)), except at their
    /// first receive and at each tenth: they may call another system. After 5 seconds one message runs as a
    /// probe. If its handler fails too, the next probe follows after 10 seconds, then 20, and so on up to 60. A
    /// handler that succeeds or fails permanently closes the circuit.
    ///
    /// A handler fails in this sense if it returns a retryable failure, returns a failure without an effect, or is
    /// cut off. Failures of the store don't open the circuit. Clones of a consumer share one circuit.
    ///
    /// ```
    /// use sqs_once::{Consumer, Handler, Mode};
    ///
    /// # fn without<M: Mode<H::Output>, H: Handler>(consumer: Consumer<M, H>) -> Consumer<M, H> {
    /// consumer.circuit_breaker(false)
    /// # }
    /// ```
    #[must_use]
    pub fn circuit_breaker(self, circuit_breaker: bool) -> Self {
        Self {
            breaker: circuit_breaker.then(CircuitBreaker::default),
            ..self
        }
    }

    /// Sets the visibility timeouts of failed messages. Without it, they come back when the
    /// queue's own visibility timeout is over.
    #[must_use]
    pub fn visibility(self, visibility: impl Into<Option<Visibility>>) -> Self {
        Self {
            visibility: visibility.into(),
            ..self
        }
    }

    /// Adds metrics to the log line of each batch. By default there are none. Settings from
    /// environment variables add them, unless `CONSUMER_METRICS` is `off`.
    ///
    /// ```
    /// use sqs_once::{Consumer, Handler, InvalidValue, Mode, telemetry::Metrics};
    ///
    /// # fn measured<M: Mode<H::Output>, H: Handler>(consumer: Consumer<M, H>) -> Result<Consumer<M, H>, InvalidValue> {
    /// Ok(consumer.metrics(Metrics::new("sqs-once", "charge-orders")?))
    /// # }
    /// ```
    #[must_use]
    pub fn metrics(self, metrics: impl Into<Option<Metrics>>) -> Self {
        Self {
            metrics: metrics.into(),
            ..self
        }
    }

    /// Logs the line of this share of messages whose outcome is `completed`, from 0 to 1, chosen at
    /// random. By default every message has its line. Lines of other outcomes are always logged, and
    /// metrics count every message.
    ///
    /// ```
    /// use sqs_once::{Consumer, Handler, Mode};
    ///
    /// # fn quiet<M: Mode<H::Output>, H: Handler>(consumer: Consumer<M, H>) -> Consumer<M, H> {
    /// consumer.log_sample_completed(0.01)
    /// # }
    /// ```
    #[must_use]
    pub fn log_sample_completed(self, share: f64) -> Self {
        Self {
            log_sample_completed: share,
            ..self
        }
    }

    /// Calls `observe` once for each message of a batch, after the outcomes are recorded and before
    /// the response. By default nothing is called.
    ///
    /// The outcome has no output: a batch does not keep its outputs in memory. The output is in the
    /// record, and the handler sees it. Of an error's text, the outcome has the first 4 KB.
    ///
    /// `observe` must return soon, because the response waits for it. A panic in it is logged. It is
    /// not called for a batch whose process ends before the response.
    ///
    /// ```
    /// use std::sync::atomic::{AtomicU64, Ordering};
    /// use sqs_once::{Consumer, Handler, Mode};
    ///
    /// static TAKEOVERS: AtomicU64 = AtomicU64::new(0);
    ///
    /// # fn observed<M: Mode<H::Output>, H: Handler>(consumer: Consumer<M, H>) -> Consumer<M, H> {
    /// consumer.on_outcome(|message| {
    ///     if message.is_takeover() {
    ///         TAKEOVERS.fetch_add(1, Ordering::Relaxed);
    ///     }
    /// })
    /// # }
    /// ```
    #[must_use]
    pub fn on_outcome(self, observe: impl Fn(&MessageOutcome<'_>) + Send + Sync + 'static) -> Self {
        Self {
            observer: Some(Observer::new(observe)),
            ..self
        }
    }

    /// The deadline of an invocation that Lambda ends at `at`.
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
}

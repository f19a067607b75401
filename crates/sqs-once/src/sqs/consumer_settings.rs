//! The settings of a [`Consumer`], one method each.

use std::{num::NonZeroUsize, sync::Arc, time::Duration};

use serde::de::DeserializeOwned;
use tracing::Span;

use super::{
    Consumer, Envelope, FifoAfterPermanent, FingerprintSource, KeySource, MessageOutcome,
    ReadBodies, Visibility, callback::Callback, on_duplicate::OnDuplicate, options::Concurrency,
    process::CircuitBreaker,
};
use crate::{
    handler::{Attempt, DeliveryMetadata, Failure, Handler, HandlerOutput, LookUp, Stored},
    modes::Once,
    protocol::KeyPart,
    telemetry::Metrics,
};

impl<S, H: Handler> Consumer<Once<S>, H> {
    /// Adds a lookup, which finds out what an earlier attempt did if the called system has no idempotency keys: see
    /// [`LookUp`]. By default there is none.
    ///
    /// The `quarantine` is how long a request of an earlier attempt may still take effect after that attempt's lease
    /// has ended. Choose more than the call's time limit: if a call takes at most 20 seconds, choose 30. If the system turns out to
    /// have idempotency keys, pass `None`, and the lookup is never called. A consumer with a lookup does not start if its key is
    /// `message-id` or `deduplication-id` ([`BatchError::KeyChangesOnRedrive`](crate::BatchError)).
    ///
    /// ```
    /// use std::time::Duration;
    /// use sqs_once::{Attempt, Consumer, Failure, LookedUp, Once, handler_fn, look_up_fn};
    /// use sqs_once::{protocol::Namespace, store::MemoryStore};
    ///
    /// async fn send(mail: String, _: Attempt) -> Result<u64, Failure> {
    ///     Ok(mail.len() as u64)
    /// }
    ///
    /// async fn sent(mail: &String, _: &Attempt) -> Result<LookedUp<u64>, Failure> {
    ///     Ok(LookedUp::Found(mail.len() as u64))
    /// }
    ///
    /// let once = Once::new(MemoryStore::default());
    /// let consumer = Consumer::without_aws(once, Namespace::new("mails")?, handler_fn(send))
    ///     .key("body:/id".parse()?)
    ///     .look_up(look_up_fn(sent), Duration::from_secs(30));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn look_up<L>(self, look_up: L, quarantine: impl Into<Option<Duration>>) -> Self
    where
        L: LookUp<H::Message, H::Output>,
        H::Message: Sync,
    {
        Self {
            asks: quarantine
                .into()
                .map(|quarantine| (Arc::new(look_up) as _, quarantine)),
            ..self
        }
    }
}

impl<M, H> Consumer<M, H> {
    /// Calls `on_duplicate` for each duplicate (a message whose operation is already completed), for example to
    /// send a reply again. By default the consumer only acknowledges the message.
    ///
    /// `on_duplicate` gets the duplicate's own message, decoded as for the handler, and the stored output. Its attempt has
    /// the call key under which the operation was completed. If the message can't be decoded, for example by a newer build,
    /// it is still a duplicate. The consumer then doesn't call `on_duplicate`, but logs a warning with the key.
    ///
    /// `on_duplicate` runs for each duplicate, so its effects happen at least once. If `on_duplicate` fails, the message
    /// goes back to the queue, and the record stays unchanged. Messages behind it in its message group or under its key do
    /// not run. The function is cut off at the deadline, and isolation after a crash does not cover it.
    ///
    /// ```
    /// # use sqs_once::{Attempt, Consumer, Failure, Mode, Stored, Handler};
    /// # #[derive(serde::Deserialize)] struct Order { reply_to: String }
    /// # fn replying<M, H>(consumer: Consumer<M, H>) -> Consumer<M, H>
    /// # where M: Mode<u64>, H: Handler<Message = Order, Output = u64> {
    /// consumer.on_duplicate(async |order: Order, ticket: Stored<u64>, attempt: Attempt| {
    ///     match ticket.output().await? {
    ///         Some(ticket) => println!("{}: ticket {ticket}", order.reply_to),
    ///         None => println!("{}: {} had a ticket that was not kept", order.reply_to, attempt.key()),
    ///     }
    ///     Ok(())
    /// })
    /// # }
    /// ```
    #[must_use]
    pub fn on_duplicate<F, Fut>(self, on_duplicate: F) -> Self
    where
        F: Fn(H::Message, Stored<<H::Output as HandlerOutput>::Result>, Attempt) -> Fut
            + Send
            + Sync
            + 'static,
        Fut: Future<Output = Result<(), Failure>> + Send + 'static,
        H: Handler,
    {
        Self {
            replay: Some(OnDuplicate::new(on_duplicate)),
            ..self
        }
    }

    /// Sets where a message's key comes from. If `IDEMPOTENCY_KEY` is set to another source, the consumer does not start
    /// ([`BatchError::KeySetTwice`](crate::BatchError)).
    #[must_use]
    pub fn key(mut self, key: KeySource) -> Self {
        self.options.key = key;
        self
    }

    /// Makes the key from a small struct with members of the body: [`KeySource::by`].
    ///
    /// ```
    /// use serde::Deserialize;
    /// use sqs_once::{Consumer, Handler, Mode};
    ///
    /// #[derive(Deserialize)]
    /// #[serde(rename_all = "camelCase")]
    /// struct OrderKey { tenant: String, order_id: String }
    ///
    /// # fn keyed<M: Mode<H::Output>, H: Handler>(consumer: Consumer<M, H>) -> Consumer<M, H> {
    /// consumer.key_by(|key: OrderKey| [key.tenant, key.order_id])
    /// # }
    /// ```
    #[must_use]
    pub fn key_by<K, P>(self, parts: impl Fn(K) -> P + Send + Sync + 'static) -> Self
    where
        K: DeserializeOwned,
        P: IntoIterator<Item: Into<KeyPart<'static>>>,
    {
        self.key(KeySource::by(parts))
    }

    /// Sets whether the consumer removes the JSON that SNS, EventBridge or S3 puts around a message before it
    /// looks for the key. By default it does not.
    ///
    /// ```
    /// use sqs_once::{Consumer, Handler, Mode, sqs::Envelope};
    ///
    /// # fn of_topic<M: Mode<H::Output>, H: Handler>(consumer: Consumer<M, H>) -> Consumer<M, H> {
    /// consumer.envelope(Envelope::Auto)
    /// # }
    /// ```
    #[must_use]
    pub fn envelope(mut self, envelope: Envelope) -> Self {
        self.options.envelope = envelope;
        self
    }

    /// Lets the consumer read bodies that the Amazon SQS Extended Client stored in S3. Pass an `S3Bodies`, from the `s3`
    /// feature. By default, a message with a pointer to such a body fails permanently.
    #[must_use]
    pub fn s3_bodies(mut self, s3_bodies: impl ReadBodies + 'static) -> Self {
        self.options.s3_bodies = Some(Arc::new(s3_bodies));
        self
    }

    /// Sets the part of a message that must not change under one key.
    #[must_use]
    pub fn fingerprint(mut self, fingerprint: FingerprintSource) -> Self {
        self.options.fingerprint = fingerprint;
        self
    }

    /// Sets how many handlers of one batch run at a time, however much memory they take.
    #[must_use]
    pub fn concurrency(mut self, concurrency: NonZeroUsize) -> Self {
        self.options.concurrency = Concurrency::new(concurrency);
        self
    }

    /// Sets how many handlers of one batch run at a time if they fit into this many bytes: `CONSUMER_CONCURRENCY=auto`.
    #[cfg(feature = "simulation")]
    #[must_use]
    pub fn concurrency_within(mut self, most: NonZeroUsize, memory: usize) -> Self {
        self.options.concurrency = Concurrency::within_memory(most, memory);
        self
    }

    /// Changes the mode, for settings that have no environment variable.
    ///
    /// ```no_run
    /// use std::time::Duration;
    /// use sqs_once::{Handler, Settings};
    ///
    /// # async fn main_<H: Handler<Output = String>>(handler: H) -> Result<(), lambda_runtime::Error> {
    /// let consumer = Settings::from_env().once(Ok(handler)).await?;
    /// let consumer = consumer.map_mode(|once| once.lease_margin(Duration::from_secs(5)));
    /// # sqs_once::run(consumer).await }
    /// ```
    #[must_use]
    pub fn map_mode(self, change: impl FnOnce(M) -> M) -> Self
    where
        M: Clone,
    {
        Self {
            mode: Arc::new(change(M::clone(&self.mode))),
            ..self
        }
    }

    /// Reserves time at the end of an invocation to record outcomes and respond. The default is 500 ms.
    #[must_use]
    pub fn deadline_reserve(mut self, deadline_reserve: Duration) -> Self {
        self.options.deadline_reserve = deadline_reserve;
        self
    }

    /// Reserves additional time for each message of a batch. The default of 140 µs is what the smallest
    /// function needs. [`Settings`](crate::Settings) derives it from the function's memory.
    ///
    /// Each message adds to the response, to the metrics and to the memory that must be freed. The function may have only a
    /// share of a vCPU for that work.
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
    pub fn deadline_reserve_per_message(mut self, reserve_per_message: Duration) -> Self {
        self.options.reserve_per_message = reserve_per_message;
        self
    }

    /// Sets the time budget of an invocation whose deadline is not known (see
    /// [`Deadline::of_invocation`](crate::Deadline::of_invocation)), as under `cargo lambda watch`. The default
    /// is 5 minutes.
    #[must_use]
    pub fn assumed_timeout(mut self, assumed_timeout: Duration) -> Self {
        self.options.assumed_timeout = assumed_timeout;
        self
    }

    /// Sets how long the handler may take, if you know that (see
    /// [`Deadline::min_time_to_start`](crate::Deadline::min_time_to_start)). With less time left, a message
    /// does not start and goes back to the queue.
    #[must_use]
    pub fn min_time_to_start(mut self, min_time_to_start: Duration) -> Self {
        self.options.min_time_to_start = min_time_to_start;
        self
    }

    /// Sets what happens to the messages behind a permanent failure in their message group. By default they run.
    ///
    /// ```
    /// use sqs_once::{Consumer, Handler, Mode, sqs::FifoAfterPermanent};
    ///
    /// # fn stopping<M: Mode<H::Output>, H: Handler>(consumer: Consumer<M, H>) -> Consumer<M, H> {
    /// consumer.fifo_after_permanent(FifoAfterPermanent::Stop)
    /// # }
    /// ```
    #[must_use]
    pub fn fifo_after_permanent(mut self, fifo_after_permanent: FifoAfterPermanent) -> Self {
        self.options.fifo_after_permanent = fifo_after_permanent;
        self
    }

    /// Fails the invocation if every message of the batch failed because the store could not be reached, denied access or
    /// has no such table ([`BatchError::StoreUnavailable`](crate::BatchError::StoreUnavailable)). Lambda's Errors metric
    /// then shows the outage. On by default. Throttling alone does not fail an invocation. The consumer sets the visibility
    /// timeouts first, so the messages don't come back any sooner or later.
    ///
    /// ```
    /// # use sqs_once::{Consumer, Handler, Mode};
    /// # fn quiet<M: Mode<H::Output>, H: Handler>(consumer: Consumer<M, H>) -> Consumer<M, H> {
    /// consumer.fail_when_store_unavailable(false)
    /// # }
    /// ```
    #[must_use]
    pub fn fail_when_store_unavailable(mut self, fail_when_store_unavailable: bool) -> Self {
        self.options.fail_when_store_unavailable = fail_when_store_unavailable;
        self
    }

    /// Switches the circuit breaker on or off. On by default.
    ///
    /// After 20 handlers of this process failed in a row, for at least 10 keys, the circuit opens. Messages then
    /// return to the queue without a claim ([`Outcome::CircuitOpen`](crate::Outcome::CircuitOpen)). Only the first and every tenth
    /// receive of a message still run, because that message may call another system. After 5 seconds one message
    /// runs as a probe, the next after 10 more seconds, then after 20, and so on up to 60. A handler that
    /// succeeds or fails permanently closes the circuit.
    ///
    /// A handler fails in this sense if it returns a retryable failure or a failure without an effect, or if
    /// it is cut off. Failures of the store don't open the circuit. Clones of a consumer share one circuit.
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
            process: Arc::new(
                (self.process).with_breaker(circuit_breaker.then(CircuitBreaker::default)),
            ),
            ..self
        }
    }

    /// Sets the visibility timeouts of failed messages. Without this, they come back when the
    /// queue's own visibility timeout is over.
    #[must_use]
    pub fn visibility(mut self, visibility: impl Into<Option<Visibility>>) -> Self {
        self.options.visibility = visibility.into();
        self
    }

    /// Adds metrics to the log line of each batch. By default there are none, but [`Settings`](crate::Settings)
    /// adds them unless `CONSUMER_METRICS` is `off`.
    ///
    /// ```
    /// use sqs_once::{Consumer, Handler, InvalidValue, Mode, telemetry::Metrics};
    ///
    /// # fn measured<M: Mode<H::Output>, H: Handler>(consumer: Consumer<M, H>) -> Result<Consumer<M, H>, InvalidValue> {
    /// Ok(consumer.metrics(Metrics::new("sqs-once", "charge-orders")?))
    /// # }
    /// ```
    #[must_use]
    pub fn metrics(mut self, metrics: impl Into<Option<Metrics>>) -> Self {
        self.options.metrics = metrics.into();
        self
    }

    /// Calls `observe` once for each message of a batch, after the outcomes are recorded and before the
    /// response. By default the consumer calls nothing.
    ///
    /// The outcome does not contain the output, because a batch does not keep its outputs in memory. The record has the
    /// output. The outcome contains the first 4 KB of an error's text.
    ///
    /// `observe` must return soon, because the response waits for it. The consumer logs a panic in `observe`. If the
    /// process ends before the response, `observe` is not called for the batch.
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
    pub fn on_outcome(
        mut self,
        observe: impl Fn(&MessageOutcome<'_>) + Send + Sync + 'static,
    ) -> Self {
        self.options.observer = Some(Callback(Arc::new(observe)));
        self
    }

    /// Sets the `tracing` span of each message, which is open while the message is claimed, handled and
    /// recorded. Log lines and spans of the handler are inside it.
    ///
    /// By default the span is `message`, with the fields `message_id`, `key`, `receive_count` and `requestId`, at a
    /// level that every log level shows. In your own span, the consumer records `key` and `outcome`
    /// ([`Outcome::name`](crate::Outcome::name)) if it has these fields.
    ///
    /// `make_span` sees the message's attributes, so it can link the span to the producer's, as
    /// `examples/opentelemetry` does. If it panics, the message gets the default span.
    ///
    /// ```
    /// use sqs_once::{Consumer, Handler, Mode};
    /// use tracing::field::Empty;
    ///
    /// # fn traced<M: Mode<H::Output>, H: Handler>(consumer: Consumer<M, H>) -> Consumer<M, H> {
    /// consumer.make_span(|delivery| {
    ///     let tenant = delivery.attribute("tenant");
    ///     tracing::info_span!("charge", tenant, key = Empty, outcome = Empty)
    /// })
    /// # }
    /// ```
    #[must_use]
    pub fn make_span(
        mut self,
        make_span: impl Fn(&DeliveryMetadata) -> Span + Send + Sync + 'static,
    ) -> Self {
        self.options.make_span = Some(Callback(Arc::new(make_span)));
        self
    }
}

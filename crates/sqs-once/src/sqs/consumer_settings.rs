//! The settings of a [`Consumer`], one method each.

use std::{
    num::{NonZeroU32, NonZeroUsize},
    sync::Arc,
    time::Duration,
};

use super::{
    Consumer, Encoding, Envelope, FifoAfterPermanent, FingerprintSource, KeySource, MessageOutcome,
    ReadBodies, Visibility, breaker::CircuitBreaker, encoding::Decoding, observer::Observer,
};
use crate::telemetry::Metrics;

impl<M, H> Consumer<M, H> {
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

    /// Sets the largest decompressed body in bytes, 2 MiB by default. A larger body is a permanent
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

    /// How many messages of one batch run at a time that have a body in S3, or one that must be decoded: 10 by
    /// default, and never more than the [concurrency](Self::concurrency). An event has at most 6 MB of bodies. These
    /// are larger, so they decide how much memory the function needs.
    ///
    /// ```
    /// use std::num::NonZeroUsize;
    /// use sqs_once::{Consumer, Handler, Mode};
    ///
    /// # fn careful<M: Mode<H::Output>, H: Handler>(consumer: Consumer<M, H>) -> Consumer<M, H> {
    /// consumer.large_bodies(NonZeroUsize::MIN)
    /// # }
    /// ```
    #[must_use]
    pub fn large_bodies(self, large_bodies: NonZeroUsize) -> Self {
        Self {
            large_bodies,
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

    /// Changes the mode, for what no setting of a variable says.
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
    /// [`Deadline::of_invocation`](crate::Deadline::of_invocation)).
    #[must_use]
    pub fn assumed_timeout(self, assumed_timeout: Duration) -> Self {
        Self {
            assumed_timeout,
            ..self
        }
    }

    /// How long the handler takes at most, where that is known (see
    /// [`Deadline::min_time_to_start`](crate::Deadline::min_time_to_start)): with less time left, a
    /// message is not started but goes back to the queue.
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
}

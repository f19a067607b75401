//! Settings that every mode has.

use std::{
    num::{NonZeroU32, NonZeroUsize},
    time::Duration,
};

use aws_config::SdkConfig;

use super::{
    Settings, SettingsError,
    parse::{backoff, buckets, bytes, namespace, of_s3},
};
#[cfg(feature = "s3")]
use crate::sqs::S3Bodies;
use crate::{
    deadline::reserve_per_message,
    handler::Handler,
    modes::Mode,
    protocol::{Namespace, isolation::CrashWaits},
    settings::variables::{
        parse::{duration, on_or_off, positive},
        table::{
            CONSUMER_BACKOFF_BASE, CONSUMER_BACKOFF_CAP, CONSUMER_CIRCUIT_BREAKER,
            CONSUMER_CONCURRENCY, CONSUMER_CRASH_ISOLATION, CONSUMER_DIRECT_DEAD_LETTERING,
            CONSUMER_ENVELOPE, CONSUMER_FIFO_AFTER_PERMANENT, CONSUMER_MAX_BODY_BYTES,
            CONSUMER_METRICS, CONSUMER_MIN_TIME_TO_START, CONSUMER_S3_BUCKETS, CONSUMER_VISIBILITY,
            IDEMPOTENCY_FINGERPRINT, IDEMPOTENCY_KEY, IDEMPOTENCY_NAMESPACE, IDEMPOTENCY_RETENTION,
        },
    },
    sqs::{
        Concurrency, Consumer, Envelope, FifoAfterPermanent, FingerprintSource, KeySource, LEAST,
        Visibility,
    },
    telemetry::{
        Metrics,
        metrics::{checked_namespace, checked_service},
    },
};

/// The most handlers that run at a time unless a setting says otherwise.
const MOST_HANDLERS: NonZeroUsize = NonZeroUsize::new(100).unwrap();
/// Memory of the process without messages, in MB, with some room for the allocator.
const MEMORY_OF_PROCESS: u32 = 64;

impl Settings {
    /// Reads the settings of batches.
    pub(super) fn batches(&mut self) -> Result<Batches, SettingsError> {
        let lambda = self.required(
            "AWS_LAMBDA_RUNTIME_API",
            "Lambda sets it; on your own machine, `make watch` or `cargo lambda watch` does",
            |_| Ok::<_, String>(()),
        );
        let namespace = self.required(
            IDEMPOTENCY_NAMESPACE.name,
            "first part of every key: name the operation, such as `payments`, and keep that name; \
             under another one, what is done would be done again",
            namespace,
        );
        let key = self.setting(&IDEMPOTENCY_KEY, str::parse::<KeySource>);
        let envelope = self.setting(&CONSUMER_ENVELOPE, str::parse::<Envelope>);
        let max_body_bytes = self.setting(&CONSUMER_MAX_BODY_BYTES, bytes);
        let s3_buckets = self.changed(CONSUMER_S3_BUCKETS.name, Vec::new(), of_s3(buckets));
        let fingerprint = self.setting(&IDEMPOTENCY_FINGERPRINT, str::parse::<FingerprintSource>);
        let retention = self.setting(&IDEMPOTENCY_RETENTION, positive);
        let concurrency = self.setting(&CONSUMER_CONCURRENCY, |text| match text {
            "auto" => Ok(None),
            number => {
                (number.parse().map(Some)).map_err(|_| "must be `auto`, or a whole number from 1")
            }
        });
        let memory = self.memory();
        let min_time_to_start = self.setting(&CONSUMER_MIN_TIME_TO_START, duration);
        let invocations = self.invocations();
        // A default that the code sets is only a hint.
        let is_set = self.is_set(CONSUMER_MIN_TIME_TO_START.name);
        let min_time_divisor = is_set.then(|| invocations.get().min(2));
        let fifo_after_permanent = self.setting(
            &CONSUMER_FIFO_AFTER_PERMANENT,
            str::parse::<FifoAfterPermanent>,
        );
        let circuit_breaker = self.setting(&CONSUMER_CIRCUIT_BREAKER, on_or_off);
        let crash_isolation = self.setting(&CONSUMER_CRASH_ISOLATION, on_or_off);
        let timeouts = self.timeouts();
        let metrics = self.metrics();
        lambda?;
        Ok(Batches {
            namespace: namespace?,
            key: key?,
            envelope: envelope?,
            max_body_bytes: max_body_bytes?,
            s3_buckets: s3_buckets?,
            fingerprint: fingerprint?,
            retention: retention?,
            concurrency: concurrency?,
            memory,
            invocations,
            min_time_to_start: min_time_to_start?,
            min_time_divisor,
            fifo_after_permanent: fifo_after_permanent?,
            circuit_breaker: circuit_breaker?,
            crash_isolation: crash_isolation?,
            timeouts: timeouts?,
            metrics: metrics?,
        })
    }

    fn timeouts(&mut self) -> Result<Option<Timeouts>, SettingsError> {
        let on = self.setting(&CONSUMER_VISIBILITY, on_or_off);
        let base = self.setting(&CONSUMER_BACKOFF_BASE, backoff);
        let cap = self.setting(&CONSUMER_BACKOFF_CAP, backoff);
        let calls_sqs = on != Ok(false);
        let default = if calls_sqs {
            CONSUMER_DIRECT_DEAD_LETTERING.default
        } else {
            "off"
        };
        let dead_letter =
            self.optional(
                CONSUMER_DIRECT_DEAD_LETTERING.name,
                default,
                |text| match on_or_off(text)? {
                    true if !calls_sqs => {
                        Err("`on` needs CONSUMER_VISIBILITY=on, which calls SQS too")
                    }
                    on => Ok(on),
                },
            );
        let timeouts = Timeouts {
            base: base?,
            cap: cap?,
            dead_letter: dead_letter?,
        };
        Ok(on?.then_some(timeouts))
    }

    /// Reads the settings of metrics. They are on by default, because the alarms need them.
    ///
    /// # Errors
    ///
    /// The first variable that is missing or invalid. The others stay in the list, as with
    /// [`Variables::required`](crate::settings::variables::Variables::required).
    pub fn metrics(&mut self) -> Result<Option<Metrics>, SettingsError> {
        let on = self.setting(&CONSUMER_METRICS, on_or_off);
        let namespace = self.optional(
            "POWERTOOLS_METRICS_NAMESPACE",
            "sqs-once",
            checked_namespace,
        );
        // Powertools uses this default when nothing names a service.
        let default = match self.function() {
            function if function.is_empty() => "service_undefined".to_owned(),
            function => function,
        };
        let service = self.optional("POWERTOOLS_SERVICE_NAME", &default, checked_service);
        let metrics = Metrics::checked(namespace?, service?);
        Ok(on?.then_some(metrics))
    }
}

/// Settings that every mode has.
#[derive(Debug)]
pub(super) struct Batches {
    pub(super) namespace: Namespace,
    pub(super) key: KeySource,
    pub(super) envelope: Envelope,
    /// Longest body in S3.
    #[cfg_attr(not(feature = "s3"), allow(dead_code, reason = "nothing reads S3"))]
    pub(super) max_body_bytes: NonZeroU32,
    /// Buckets with bodies. If there are none, nothing is read from S3. Without the feature `s3`, the list is
    /// empty.
    pub(super) s3_buckets: Vec<String>,
    pub(super) fingerprint: FingerprintSource,
    pub(super) retention: Duration,
    /// `None`: the mode decides.
    pub(super) concurrency: Option<NonZeroUsize>,
    /// Memory of the function in MB; `None` where Lambda did not set it.
    pub(super) memory: Option<u32>,
    /// The most invocations that run at once in the process.
    pub(super) invocations: NonZeroU32,
    pub(super) min_time_to_start: Duration,
    /// `None`: the minimum is not checked.
    pub(super) min_time_divisor: Option<u32>,
    pub(super) fifo_after_permanent: FifoAfterPermanent,
    pub(super) circuit_breaker: bool,
    pub(super) crash_isolation: bool,
    pub(super) metrics: Option<Metrics>,
    pub(super) timeouts: Option<Timeouts>,
}

impl Batches {
    /// How many handlers of a batch run at a time, in modes whose handlers hold a connection or an item.
    pub(super) fn concurrency(&self) -> Concurrency {
        Concurrency::new(self.concurrency.unwrap_or(LEAST))
    }

    /// The same in claim mode, with outputs in the record. With `auto`, as many as the memory of an invocation holds, at
    /// least 10 and at most 100.
    pub(super) fn concurrency_of_claims(&self) -> Concurrency {
        match self.concurrency {
            Some(number) => Concurrency::new(number),
            None => {
                let memory = self.memory_of_messages().unwrap_or(usize::MAX);
                let invocations = usize::try_from(self.invocations.get()).unwrap_or(usize::MAX);
                Concurrency::within_memory(MOST_HANDLERS, memory / invocations)
            }
        }
    }

    /// Memory for all messages of the process, in bytes. `None` where Lambda did not set it.
    pub(super) fn memory_of_messages(&self) -> Option<usize> {
        let memory = self.memory?.saturating_sub(MEMORY_OF_PROCESS);
        usize::try_from(memory).ok()?.checked_mul(1 << 20)
    }

    pub(super) fn crash_waits(&self) -> CrashWaits {
        if self.crash_isolation {
            CrashWaits::default()
        } else {
            CrashWaits::off()
        }
    }

    pub(super) const fn read_s3(&self) -> bool {
        !self.s3_buckets.is_empty()
    }

    pub(super) const fn call_sqs(&self) -> bool {
        self.timeouts.is_some()
    }

    pub(super) fn consumer<M: Mode<H::Output>, H: Handler>(
        self,
        mode: M,
        handler: H,
        config: &SdkConfig,
    ) -> Consumer<M, H> {
        let concurrency = self.concurrency();
        let consumer = Consumer::new(mode, self.namespace, handler)
            .key(self.key)
            .envelope(self.envelope)
            .fingerprint(self.fingerprint)
            .concurrent(concurrency)
            .min_time_to_start(self.min_time_to_start)
            .circuit_breaker(self.circuit_breaker)
            .fifo_after_permanent(self.fifo_after_permanent)
            .metrics(self.metrics);
        let consumer = match self.memory.map(reserve_per_message) {
            Some(time) => consumer.deadline_reserve_per_message(time),
            None => consumer,
        };
        let consumer = match self.min_time_divisor {
            Some(divisor) => consumer.limit_min_time_to_start(divisor),
            None => consumer,
        };
        #[cfg(feature = "s3")]
        let consumer = if self.s3_buckets.is_empty() {
            consumer
        } else {
            let bodies = S3Bodies::new(config, self.s3_buckets).max_bytes(self.max_body_bytes);
            consumer.s3_bodies(bodies)
        };
        let timeouts = self.timeouts;
        let visibility = timeouts.map(|timeouts| timeouts.visibility(config, self.retention));
        consumer.visibility(visibility)
    }
}

/// Settings of visibility timeouts.
#[derive(Debug)]
pub(super) struct Timeouts {
    pub(super) base: Duration,
    pub(super) cap: Duration,
    pub(super) dead_letter: bool,
}

impl Timeouts {
    fn visibility(self, config: &SdkConfig, retention: Duration) -> Visibility {
        Visibility::new(aws_sdk_sqs::Client::new(config))
            .backoff(self.base, self.cap)
            .dead_letter(self.dead_letter)
            .record_retention(retention)
    }
}

//! Settings of batches: those that every mode has.

use std::{
    num::{NonZeroU32, NonZeroUsize},
    time::Duration,
};

use aws_config::SdkConfig;
use sqs_once_core::settings::parse::{duration, on_or_off, positive};

use super::{
    Settings, SettingsError,
    parse::{backoff, buckets, bytes, crash_waits, heartbeat, share},
};
#[cfg(feature = "s3")]
use crate::sqs::S3Bodies;
use crate::{
    deadline::reserve_per_message,
    handler::Handler,
    once::Mode,
    protocol::{Namespace, isolation::CrashWaits},
    sqs::{
        Consumer, Encoding, Envelope, FifoAfterPermanent, FingerprintSource, KeySource, Visibility,
    },
    telemetry::{
        Metrics,
        metrics::{checked_namespace, checked_service},
    },
};

impl Settings {
    /// Reads the settings of batches. A mode without a table of records has no default retention.
    pub(super) fn batches(
        &mut self,
        default_retention: Option<Duration>,
    ) -> Result<Batches, SettingsError> {
        let lambda = self.required(
            "AWS_LAMBDA_RUNTIME_API",
            "Lambda sets it; on your own machine, `make watch` or `cargo lambda watch` does",
            |_| Ok::<_, String>(()),
        );
        let function = self.function();
        let namespace = self.optional("IDEMPOTENCY_NAMESPACE", &function, |text| {
            Namespace::new(text)
        });
        let key = self.optional("IDEMPOTENCY_KEY", "message-id", str::parse::<KeySource>);
        let envelope = self.optional("CONSUMER_ENVELOPE", "none", str::parse::<Envelope>);
        let encoding = self.optional("CONSUMER_ENCODING", "none", str::parse::<Encoding>);
        let max_body_bytes = self.optional("CONSUMER_MAX_BODY_BYTES", "10485760", bytes);
        let s3_bodies = self.s3_bodies();
        let fingerprint = self.optional(
            "IDEMPOTENCY_FINGERPRINT",
            "body",
            str::parse::<FingerprintSource>,
        );
        let retention = self.changed("IDEMPOTENCY_RETENTION", default_retention, |_, text| {
            positive(text).map(Some)
        });
        let assumed_timeout = self.duration("IDEMPOTENCY_LEASE_FALLBACK", "5m");
        let heartbeat = self.optional("CONSUMER_HEARTBEAT", "off", heartbeat);
        let concurrency = self.optional("CONSUMER_CONCURRENCY", "10", |text| {
            let parsed = text.parse::<NonZeroUsize>();
            parsed.map_err(|_| "must be a whole number from 1")
        });
        let conflict_wait = self.optional("CONSUMER_CONFLICT_WAIT", "0s", duration);
        let deadline_reserve = self.duration("CONSUMER_DEADLINE_RESERVE", "500ms");
        let reserve_per_message = self.memory().map(reserve_per_message);
        let min_time_to_start = self.optional("CONSUMER_MIN_TIME_TO_START", "0s", duration);
        let fifo_after_permanent = self.optional(
            "CONSUMER_FIFO_AFTER_PERMANENT",
            "continue",
            str::parse::<FifoAfterPermanent>,
        );
        let fail_when_store_unavailable =
            self.optional("CONSUMER_FAIL_WHEN_STORE_UNAVAILABLE", "on", on_or_off);
        let circuit_breaker = self.optional("CONSUMER_CIRCUIT_BREAKER", "on", on_or_off);
        let crash_waits = self.optional("CONSUMER_CRASH_WAITS", "20m,2h,10h", crash_waits);
        let timeouts = self.timeouts();
        let metrics = self.metrics();
        let log_sample_completed = self.optional("CONSUMER_LOG_SAMPLE_COMPLETED", "1", share);
        lambda?;
        Ok(Batches {
            namespace: namespace?,
            key: key?,
            envelope: envelope?,
            encoding: encoding?,
            max_body_bytes: max_body_bytes?,
            s3_bodies: s3_bodies?,
            fingerprint: fingerprint?,
            retention: retention?,
            assumed_timeout: assumed_timeout?,
            heartbeat: heartbeat?,
            concurrency: concurrency?,
            conflict_wait: conflict_wait?,
            deadline_reserve: deadline_reserve?,
            reserve_per_message,
            min_time_to_start: min_time_to_start?,
            fifo_after_permanent: fifo_after_permanent?,
            fail_when_store_unavailable: fail_when_store_unavailable?,
            circuit_breaker: circuit_breaker?,
            crash_waits: crash_waits?,
            timeouts: timeouts?,
            metrics: metrics?,
            log_sample_completed: log_sample_completed?,
        })
    }

    /// Checks the settings of a mode without leases, in which a heartbeat extends visibility timeouts
    /// alone.
    pub(super) fn without_leases(&mut self, batches: Batches) -> Result<Batches, SettingsError> {
        if batches.heartbeat.is_none() || batches.call_sqs() {
            return Ok(batches);
        }
        self.optional("CONSUMER_HEARTBEAT", "off", |_| {
            Err::<Batches, _>("needs CONSUMER_VISIBILITY=on: this mode has no leases")
        })
    }

    /// Buckets and the longest body; no buckets, no reads.
    fn s3_bodies(&mut self) -> Result<(Vec<String>, NonZeroU32), SettingsError> {
        let read = |_, names: &str| match cfg!(feature = "s3") {
            true => buckets(names),
            false => Err("needs the feature `s3` of the crate sqs-once".to_owned()),
        };
        let buckets = self.changed("CONSUMER_S3_BUCKETS", Vec::new(), read);
        let max_bytes = self.optional("CONSUMER_S3_MAX_BYTES", "2097152", bytes);
        Ok((buckets?, max_bytes?))
    }

    fn timeouts(&mut self) -> Result<Option<Timeouts>, SettingsError> {
        let on = self.optional("CONSUMER_VISIBILITY", "on", on_or_off);
        let base = self.optional("CONSUMER_BACKOFF_BASE", "10s", backoff);
        let cap = self.optional("CONSUMER_BACKOFF_CAP", "15m", backoff);
        let calls_sqs = on != Ok(false);
        let default = if calls_sqs { "on" } else { "off" };
        let dead_letter = self.optional("CONSUMER_DEAD_LETTER", default, |text| {
            match on_or_off(text)? {
                true if !calls_sqs => Err("`on` needs CONSUMER_VISIBILITY=on, which calls SQS too"),
                on => Ok(on),
            }
        });
        let timeouts = Timeouts {
            base: base?,
            cap: cap?,
            dead_letter: dead_letter?,
        };
        Ok(on?.then_some(timeouts))
    }

    /// Reads the settings of metrics. They are on by default: without them, no alarm watches the outcomes.
    ///
    /// # Errors
    ///
    /// The first variable that is missing or invalid. The others stay in the list, as with
    /// [`Variables::required`](sqs_once_core::settings::Variables::required).
    pub fn metrics(&mut self) -> Result<Option<Metrics>, SettingsError> {
        let on = self.optional("CONSUMER_METRICS", "on", on_or_off);
        let namespace = self.fallback("CONSUMER_METRICS_NAMESPACE", "POWERTOOLS_METRICS_NAMESPACE");
        let namespace = self.optional(namespace, "sqs-once", checked_namespace);
        let service = self.fallback("CONSUMER_METRICS_SERVICE", "POWERTOOLS_SERVICE_NAME");
        // The default of Powertools, where no function is named.
        let default = match self.function() {
            function if function.is_empty() => "service_undefined".to_owned(),
            function => function,
        };
        let service = self.optional(service, &default, checked_service);
        let metrics = Metrics::checked(namespace?, service?);
        Ok(on?.then_some(metrics))
    }

    /// The name of the variable that counts: `other` if it is set and `name` is not.
    fn fallback(&mut self, name: &'static str, other: &'static str) -> &'static str {
        let only_other = self.value(name).is_none() && self.value(other).is_some();
        if only_other { other } else { name }
    }
}

/// Settings that every mode has.
#[derive(Debug)]
pub(super) struct Batches {
    pub(super) namespace: Namespace,
    pub(super) key: KeySource,
    pub(super) envelope: Envelope,
    pub(super) encoding: Encoding,
    pub(super) max_body_bytes: NonZeroU32,
    /// Without the feature `s3` no buckets are set.
    pub(super) s3_bodies: (Vec<String>, NonZeroU32),
    pub(super) fingerprint: FingerprintSource,
    pub(super) retention: Option<Duration>,
    pub(super) assumed_timeout: Duration,
    pub(super) heartbeat: Option<Duration>,
    pub(super) concurrency: NonZeroUsize,
    pub(super) conflict_wait: Duration,
    pub(super) deadline_reserve: Duration,
    /// `None` where Lambda did not set the function's memory.
    pub(super) reserve_per_message: Option<Duration>,
    pub(super) min_time_to_start: Duration,
    pub(super) fifo_after_permanent: FifoAfterPermanent,
    pub(super) fail_when_store_unavailable: bool,
    pub(super) circuit_breaker: bool,
    pub(super) crash_waits: CrashWaits,
    pub(super) metrics: Option<Metrics>,
    pub(super) log_sample_completed: f64,
    pub(super) timeouts: Option<Timeouts>,
}

impl Batches {
    pub(super) const fn read_s3(&self) -> bool {
        let (buckets, _max_bytes) = &self.s3_bodies;
        !buckets.is_empty()
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
        let consumer = Consumer::new(mode, self.namespace, handler)
            .key(self.key)
            .envelope(self.envelope)
            .encoding(self.encoding)
            .max_body_bytes(self.max_body_bytes)
            .fingerprint(self.fingerprint)
            .concurrency(self.concurrency)
            .conflict_wait(self.conflict_wait)
            .deadline_reserve(self.deadline_reserve)
            .assumed_timeout(self.assumed_timeout)
            .min_time_to_start(self.min_time_to_start)
            .fail_when_store_unavailable(self.fail_when_store_unavailable)
            .circuit_breaker(self.circuit_breaker)
            .fifo_after_permanent(self.fifo_after_permanent)
            .metrics(self.metrics)
            .log_sample_completed(self.log_sample_completed);
        let consumer = match self.reserve_per_message {
            Some(time) => consumer.deadline_reserve_per_message(time),
            None => consumer,
        };
        #[cfg(feature = "s3")]
        let consumer = {
            let (buckets, max_bytes) = self.s3_bodies;
            if buckets.is_empty() {
                consumer
            } else {
                consumer.s3_bodies(S3Bodies::new(config, buckets).max_bytes(max_bytes))
            }
        };
        let timeouts = self.timeouts;
        let visibility =
            timeouts.map(|timeouts| timeouts.visibility(config, self.retention, self.heartbeat));
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
    fn visibility(
        self,
        config: &SdkConfig,
        retention: Option<Duration>,
        heartbeat: Option<Duration>,
    ) -> Visibility {
        let visibility = Visibility::new(aws_sdk_sqs::Client::new(config))
            .heartbeat(heartbeat)
            .backoff(self.base, self.cap)
            .dead_letter(self.dead_letter);
        match retention {
            Some(retention) => visibility.record_retention(retention),
            None => visibility,
        }
    }
}

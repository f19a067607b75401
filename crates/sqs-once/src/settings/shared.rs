//! Settings that every mode reads.

use std::num::{NonZeroU32, NonZeroUsize};

use aws_config::SdkConfig;

use super::{Settings, SettingsError};
#[cfg(feature = "s3")]
use crate::sqs::S3Bodies;
use crate::{
    deadline::reserve_per_message,
    handler::Handler,
    modes::{Mode, Once},
    protocol::{Namespace, isolation::CrashWaits},
    settings::variables::{
        parse::on_or_off,
        table::{
            CONSUMER_DIRECT_DEAD_LETTERING, CONSUMER_METRICS, CONSUMER_MIN_TIME_TO_START,
            IDEMPOTENCY_KEY, IDEMPOTENCY_NAMESPACE, Values,
        },
    },
    sqs::{Concurrency, Consumer, LEAST, Options, Visibility},
    store::{Results, Store},
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
    /// Reads every setting that a consumer in any mode may have.
    pub(super) fn shared(&mut self) -> Result<Shared, SettingsError> {
        let lambda = self.required(
            "AWS_LAMBDA_RUNTIME_API",
            "Lambda sets it; on your own machine, `make dev` or `cargo lambda watch` does",
            |_| Ok::<_, String>(()),
        );
        let namespace = self.required(
            IDEMPOTENCY_NAMESPACE.name,
            "first part of every key: name the operation, such as `payments`, and keep that name; \
             under another one, what is done would be done again",
            |name| Namespace::new(name),
        );
        let values = Values::read(self).and_then(|values| self.without_calls(values));
        let metrics = self.metrics();
        let key = self
            .is_set(IDEMPOTENCY_KEY.name)
            .then(|| self.value(IDEMPOTENCY_KEY.name))
            .flatten();
        let invocations = self.invocations();
        // A default that the code sets is only a hint.
        let is_set = self.is_set(CONSUMER_MIN_TIME_TO_START.name);
        lambda?;
        Ok(Shared {
            namespace: namespace?,
            values: values?,
            metrics: metrics?,
            memory: self.memory(),
            invocations,
            key_in_environment: key,
            min_time_divisor: is_set.then(|| invocations.get().min(2)),
        })
    }

    /// A consumer that does not call SQS copies no message to a dead-letter queue.
    fn without_calls(&mut self, values: Values) -> Result<Values, SettingsError> {
        let name = CONSUMER_DIRECT_DEAD_LETTERING.name;
        if values.visibility || !values.dead_letter {
            Ok(values)
        } else if self.value(name).is_some() {
            let needs = "`on` needs CONSUMER_VISIBILITY=on, which calls SQS too";
            Err(self.error(format!("{name}: {needs}")))
        } else {
            Ok(Values {
                dead_letter: false,
                ..values
            })
        }
    }

    /// Reads the settings of metrics. They are on by default, because the alarms need them.
    ///
    /// # Errors
    ///
    /// The first variable that is missing or invalid. The others stay in the list, as with
    /// [`Variables::required`](crate::settings::variables::Variables::required).
    pub fn metrics(&mut self) -> Result<Option<Metrics>, SettingsError> {
        self.trim("POWERTOOLS_");
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

/// Settings that every mode reads, and the facts of the function.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) values: Values,
    pub(super) namespace: Namespace,
    pub(super) metrics: Option<Metrics>,
    /// Memory of the function in MB; `None` where Lambda did not set it.
    pub(super) memory: Option<u32>,
    /// The most invocations that run at once in the process.
    pub(super) invocations: NonZeroU32,
    /// `IDEMPOTENCY_KEY`, if it is set and not only a default of the code.
    pub(super) key_in_environment: Option<String>,
    /// `None`: the minimum is not checked.
    pub(super) min_time_divisor: Option<u32>,
}

impl Shared {
    /// How many handlers of a batch run at a time, in modes whose handlers hold a connection or an item.
    pub(super) fn concurrency(&self) -> Concurrency {
        Concurrency::new(self.values.concurrency.unwrap_or(LEAST))
    }

    /// The same in claim mode, with outputs in the record. With `auto`, as many as the memory of an invocation holds, at
    /// least 10 and at most 100. Outputs in S3 may have any size.
    pub(super) fn concurrency_of_claims(&self) -> Concurrency {
        if self.values.concurrency.is_some() || self.values.result_bucket.is_some() {
            return self.concurrency();
        }
        let memory = self.memory_of_messages().unwrap_or(usize::MAX);
        let invocations = usize::try_from(self.invocations.get()).unwrap_or(usize::MAX);
        Concurrency::within_memory(MOST_HANDLERS, memory / invocations)
    }

    /// Memory for all messages of the process, in bytes. `None` where Lambda did not set it.
    fn memory_of_messages(&self) -> Option<usize> {
        let memory = self.memory?.saturating_sub(MEMORY_OF_PROCESS);
        usize::try_from(memory).ok()?.checked_mul(1 << 20)
    }

    pub(super) fn crash_waits(&self) -> CrashWaits {
        if self.values.crash_isolation {
            CrashWaits::default()
        } else {
            CrashWaits::off()
        }
    }

    /// Returns whether the consumer calls SQS or S3.
    pub(super) const fn calls_aws(&self) -> bool {
        let values = &self.values;
        values.visibility || !values.s3_buckets.is_empty() || values.result_bucket.is_some()
    }

    /// Where outputs are stored: in the record, and large ones in the bucket if there is one.
    #[cfg_attr(
        not(feature = "s3"),
        expect(unused_variables, reason = "read by the feature")
    )]
    pub(super) fn results(&self, config: &SdkConfig) -> Results {
        match &self.values.result_bucket {
            #[cfg(feature = "s3")]
            Some(bucket) => Results::outside(crate::s3::S3Results::new(config, bucket.clone())),
            _ => Results::inline(),
        }
    }

    pub(super) fn once<S: Store>(&self, store: S, config: &SdkConfig) -> Once<S> {
        let once = Once::new(store.with_outbox(self.values.outbox.clone()))
            .retention(self.values.retention)
            .results(self.results(config))
            .crash_waits(self.crash_waits())
            .call_key_lifetime(self.values.call_key_lifetime);
        match self.memory_of_messages() {
            Some(memory) => once.output_memory(memory / 2),
            None => once,
        }
    }

    pub(super) fn consumer<M: Mode<H::Output>, H: Handler>(
        self,
        mode: M,
        handler: H,
        concurrency: Concurrency,
        config: &SdkConfig,
    ) -> Consumer<M, H> {
        let values = self.values;
        let defaults = Options::new(self.namespace);
        let options = Options {
            key: values.key,
            key_in_environment: self.key_in_environment,
            envelope: values.envelope,
            fingerprint: values.fingerprint,
            concurrency,
            reserve_per_message: (self.memory)
                .map_or(defaults.reserve_per_message, reserve_per_message),
            min_time_to_start: values.min_time_to_start,
            min_time_divisor: self.min_time_divisor,
            fifo_after_permanent: values.fifo_after_permanent,
            visibility: values.visibility.then(|| {
                Visibility::new(aws_sdk_sqs::Client::new(config))
                    .backoff(values.backoff_base, values.backoff_cap)
                    .dead_letter(values.dead_letter)
                    .record_retention(values.retention)
            }),
            metrics: self.metrics,
            ..defaults
        };
        let consumer =
            Consumer::with_options(mode, handler, options).circuit_breaker(values.circuit_breaker);
        #[cfg(feature = "s3")]
        if !values.s3_buckets.is_empty() {
            let bodies = S3Bodies::new(config, values.s3_buckets).max_bytes(values.max_body_bytes);
            return consumer.s3_bodies(bodies);
        }
        consumer
    }
}

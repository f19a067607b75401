//! Settings that every mode reads.

use std::num::{NonZeroU32, NonZeroUsize};

use aws_config::SdkConfig;

use super::{Settings, SettingsError, parse::on_or_off};
#[cfg(feature = "s3")]
use crate::sqs::S3Bodies;
use crate::{
    deadline::reserve_per_message,
    handler::Handler,
    modes::{Mode, Once},
    protocol::Namespace,
    settings::variables::{
        table::{
            CONSUMER_DIRECT_DEAD_LETTERING, CONSUMER_METRICS, CONSUMER_MIN_TIME_TO_START,
            IDEMPOTENCY_KEY, IDEMPOTENCY_NAMESPACE,
        },
        values::Values,
    },
    sqs::{Concurrency, Consumer, LEAST, Options, Visibility},
    store::{Results, Store},
    telemetry::{
        Metrics,
        metrics::{checked_namespace, checked_service},
    },
};

/// At most this many handlers run at a time, unless a setting says otherwise.
const MOST_HANDLERS: NonZeroUsize = NonZeroUsize::new(100).unwrap();
/// Memory that the process needs without any messages, in MB, with some room for the allocator.
const MEMORY_OF_PROCESS: u32 = 64;

impl Settings {
    /// Reads the settings that a consumer may have in any mode.
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
        let values = Values::read(self).and_then(|values| self.calls_sqs_to_copy(values));
        let metrics = self.metrics();
        lambda?;
        let mut shared = Shared {
            namespace: namespace?,
            values: values?,
            memory: self.memory(),
            invocations: self.invocations(),
        };
        let options = &mut shared.values.options;
        options.metrics = metrics?;
        if self.is_set(IDEMPOTENCY_KEY.name) {
            options.key_in_environment = self.value(IDEMPOTENCY_KEY.name);
        }
        // A value that the code sets as a default is only a hint.
        if self.is_set(CONSUMER_MIN_TIME_TO_START.name) {
            options.min_time_divisor = Some(shared.invocations.get().min(2));
        }
        if let Some(memory) = shared.memory {
            options.reserve_per_message = reserve_per_message(memory);
        }
        Ok(shared)
    }

    /// Reads the settings that all modes share. Fails with every error so far, so a caller reads its own settings first.
    pub(super) fn read<H>(
        &mut self,
        handler: Result<H, SettingsError>,
    ) -> Result<(H, Shared), SettingsError> {
        let shared = self.shared();
        self.check(Ok(()))?;
        Ok((handler?, shared?))
    }

    /// Rejects direct dead-lettering for a consumer that does not call SQS, unless dead-lettering is only on by default.
    fn calls_sqs_to_copy(&mut self, values: Values) -> Result<Values, SettingsError> {
        let name = CONSUMER_DIRECT_DEAD_LETTERING.name;
        if values.dead_letter && !values.visibility && self.value(name).is_some() {
            let needs = "`on` needs CONSUMER_VISIBILITY=on, which calls SQS too";
            return Err(self.error(format!("{name}: {needs}")));
        }
        Ok(values)
    }

    /// Reads the settings for metrics. Metrics are on by default, because the alarms need them.
    ///
    /// # Errors
    ///
    /// Returns the error of the first missing or invalid variable. Errors in the others stay in the list, as with
    /// [`Variables::required`](crate::settings::variables::Variables::required).
    pub fn metrics(&mut self) -> Result<Option<Metrics>, SettingsError> {
        self.trim("POWERTOOLS_");
        let on = self.setting(&CONSUMER_METRICS, on_or_off);
        let namespace = self.optional(
            "POWERTOOLS_METRICS_NAMESPACE",
            "sqs-once",
            checked_namespace,
        );
        // Powertools also falls back to `service_undefined`.
        let default = match self.function() {
            function if function.is_empty() => "service_undefined".to_owned(),
            function => function,
        };
        let service = self.optional("POWERTOOLS_SERVICE_NAME", &default, checked_service);
        let metrics = Metrics::checked(namespace?, service?);
        Ok(on?.then_some(metrics))
    }
}

/// Settings that every mode reads, and facts about the function.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) values: Values,
    pub(super) namespace: Namespace,
    /// The function's memory in MB; `None` if Lambda doesn't provide it.
    pub(super) memory: Option<u32>,
    /// How many invocations the process may run at once.
    pub(super) invocations: NonZeroU32,
}

impl Shared {
    /// Returns how many handlers of a batch run at a time, in modes whose handlers hold a connection or an item.
    pub(super) fn concurrency(&self) -> Concurrency {
        Concurrency::new(self.values.concurrency.unwrap_or(LEAST))
    }

    /// Returns the concurrency for claim mode with outputs in the record. `auto` is as many as an invocation's memory
    /// holds, from 10 to 100. With outputs in S3 it is 10, because they may have any size.
    pub(super) fn concurrency_of_claims(&self) -> Concurrency {
        if self.values.concurrency.is_some() || self.values.result_bucket.is_some() {
            return self.concurrency();
        }
        let memory = self.memory_of_messages().unwrap_or(usize::MAX);
        let invocations = usize::try_from(self.invocations.get()).unwrap_or(usize::MAX);
        Concurrency::within_memory(MOST_HANDLERS, memory / invocations)
    }

    /// Returns the memory for all of the process's messages in bytes, or `None` if Lambda doesn't provide the function's memory.
    fn memory_of_messages(&self) -> Option<usize> {
        let memory = self.memory?.saturating_sub(MEMORY_OF_PROCESS);
        usize::try_from(memory).ok()?.checked_mul(1 << 20)
    }

    /// Returns whether the consumer calls SQS or S3.
    pub(super) const fn calls_aws(&self) -> bool {
        let values = &self.values;
        values.visibility || !values.s3_buckets.is_empty() || values.result_bucket.is_some()
    }

    /// Returns where outputs are stored: in the record or, if they are large and there is a bucket, in S3.
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
            .crash_waits(self.values.crash_waits.clone())
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
        let options = Options {
            concurrency,
            visibility: values.visibility.then(|| {
                Visibility::new(aws_sdk_sqs::Client::new(config))
                    .backoff(values.backoff_base, values.backoff_cap)
                    .dead_letter(values.dead_letter)
                    .record_retention(values.retention)
            }),
            ..values.options
        };
        let consumer = Consumer::with_options(mode, self.namespace, handler, options)
            .circuit_breaker(values.circuit_breaker);
        #[cfg(feature = "s3")]
        if !values.s3_buckets.is_empty() {
            let bodies = S3Bodies::new(config, values.s3_buckets).max_bytes(values.max_body_bytes);
            return consumer.s3_bodies(bodies);
        }
        consumer
    }
}

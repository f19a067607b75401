//! [`Settings`]: environment variables into a configured [`Consumer`].

pub(crate) mod any_store;
mod batches;
mod function;
mod modes;
mod parse;
mod records;

use std::{
    fmt,
    ops::{Deref, DerefMut},
    time::Duration,
};

use aws_config::SdkConfig;
use sqs_once_core::settings::{ModeOptions, ModeSettings};

pub use sqs_once_core::settings::{SettingsError, Variables};

use self::{any_store::AnyStore, batches::Batches, records::ResultPlace};
use crate::{
    aws,
    handler::Handler,
    once::{Mode, Once},
    protocol::AfterFailure,
    sqs::Consumer,
};

/// The default of `IDEMPOTENCY_RETENTION` where a table has the records.
const RETENTION: Duration = Duration::from_secs(20 * 24 * 3600);

/// The environment variables of a consumer, and the errors found in them so far.
///
/// [`once`](Self::once), [`inbox`](Self::inbox) and [`on_item`](Self::on_item) each build a
/// [`Consumer`] in the mode of that name. They read every variable before they report errors, so
/// one [`SettingsError`] lists all of them. An empty variable counts as not set.
///
/// ```no_run
/// use sqs_once::{Attempt, Failure, Handler, Settings, SettingsError, telemetry};
///
/// struct Greet { sender: String }
///
/// impl Greet {
///     fn read(settings: &mut Settings) -> Result<Self, SettingsError> {
///         let sender = settings.required("SENDER", "name of the sender", str::parse)?;
///         Ok(Self { sender })
///     }
/// }
///
/// impl Handler for Greet {
///     type Message = serde_json::Value;
///     type Output = String;
///
///     async fn handle(&self, _: serde_json::Value, _: Attempt) -> Result<String, Failure> {
///         Ok(format!("{} says hello", self.sender))
///     }
/// }
///
/// #[tokio::main]
/// async fn main() -> Result<(), lambda_runtime::Error> {
///     telemetry::init();
///     let mut settings = Settings::from_env();
///     settings.set_default("IDEMPOTENCY_KEY", "body:/customerId");
///     let greet = Greet::read(&mut settings);
///     sqs_once::run(settings.once(greet).await?).await
/// }
/// ```
///
/// # Variables
///
/// Durations are written as `500ms`, `30s`, `5m`, `24h` or `20d`.
///
/// | variable | default | meaning |
/// | --- | --- | --- |
/// | `IDEMPOTENCY_TABLE_NAME` | required, not used by `on_item` and `InPostgres` | DynamoDB table of the records; under `cargo lambda watch` see [`in_memory`](Settings::in_memory) |
/// | `IDEMPOTENCY_LAYOUT` | `native` | attribute names of the records: `native` or `powertools`; not used by `on_item` and `InPostgres`, nor are the next two ([`Layout`](crate::store::Layout)) |
/// | `IDEMPOTENCY_ATTRIBUTES` | none | other attribute names, as `id=PK,expires_at=ttl` ([`Layout::rename`](crate::store::Layout::rename)) |
/// | `IDEMPOTENCY_SORT_KEY` | none | `SK` or `SK=PARTITION`: sort key that holds the idempotency key; the partition defaults to `idempotency#<function name>` ([`Layout::sort_key`](crate::store::Layout::sort_key)) |
/// | `IDEMPOTENCY_NAMESPACE` | function name | first part of every key ([`Namespace`](crate::protocol::Namespace)) |
/// | `IDEMPOTENCY_KEY` | `message-id` | source of a message's key ([`KeySource`](crate::sqs::KeySource)) |
/// | `CONSUMER_ENVELOPE` | `none` | service that puts its own JSON around each message: `none`, `sns`, `eventbridge` or `s3` ([`Envelope`](crate::sqs::Envelope)) |
/// | `CONSUMER_ENCODING` | `none` | encoding of messages without the attribute `Content-Encoding`: `none`, `base64`, `gzip` or `base64+gzip` ([`Encoding`](crate::sqs::Encoding)) |
/// | `CONSUMER_MAX_BODY_BYTES` | `10485760` | largest decompressed body, in bytes |
/// | `CONSUMER_S3_BUCKETS` | none | names of S3 buckets, as `orders,invoices`: a body that the Amazon SQS Extended Client stored there is read; needs the feature `s3` |
/// | `CONSUMER_S3_MAX_BYTES` | `2097152` | longest body that is read from S3 |
/// | `IDEMPOTENCY_FINGERPRINT` | `body`; `off` for `on_item` | part of a message that must not change under one key ([`FingerprintSource`](crate::sqs::FingerprintSource)); for `on_item` see [`OnItem::check_payload`](crate::OnItem::check_payload) |
/// | `IDEMPOTENCY_RETENTION` | `20d`; unlimited for `on_item` | time that a record is kept |
/// | `IDEMPOTENCY_AFTER_FAILURE` | `retry` | other message with the key of a permanent failure: `retry` or `replay`; not used by `on_item` ([`AfterFailure`]) |
/// | `IDEMPOTENCY_RESULTS` | `inline` | place of outputs: `inline` is the record, `none` stores no output, `s3` stores large ones in S3 and needs the feature `s3`; not used by `on_item` ([`Results`](crate::store::Results)) |
/// | `IDEMPOTENCY_RESULT_INLINE_LIMIT` | `65536` | with `s3`, longest output in the record, in bytes |
/// | `IDEMPOTENCY_RESULT_BUCKET` | required for `s3` | S3 bucket of longer outputs |
/// | `IDEMPOTENCY_GROUPING` | `off` | sends claims and settlements of concurrent messages as groups; not used by `on_item` and `InPostgres` ([`Batched`](crate::store::Batched)) |
/// | `OUTBOX_TABLE_NAME` | none | DynamoDB table of published events, for handlers that publish; not used by `on_item` and `InPostgres` ([`Once::outbox`]) |
/// | `IDEMPOTENCY_LEASE_MARGIN` | `1s` | time added to the deadline, for clocks that differ; not used by `on_item` and `InPostgres` |
/// | `IDEMPOTENCY_LEASE_FALLBACK` | `5m` | time budget of an invocation without a known deadline |
/// | `CONSUMER_HEARTBEAT` | `off` | length of leases and visibility timeouts that are renewed while handlers run, from `10s`; `off`: the deadline of the invocation ends the lease ([`Once::heartbeat`]) |
/// | `CONSUMER_CONCURRENCY` | `10` | handlers of one batch that run at a time |
/// | `CONSUMER_CONFLICT_WAIT` | `0s` | time to wait for the outcome of another worker that holds the claim |
/// | `CONSUMER_DEADLINE_RESERVE` | `500ms` | time reserved to record outcomes and answer |
/// | `CONSUMER_MIN_TIME_TO_START` | `0s` | longest run of the handler: a message is not started with less time left |
/// | `CONSUMER_VISIBILITY` | `on` | sets the visibility timeout of each failed message |
/// | `CONSUMER_BACKOFF_BASE` | `10s` | longest back-off after the first receive, doubled with each receive |
/// | `CONSUMER_BACKOFF_CAP` | `15m` | longest back-off, at most `11h 30m` |
/// | `CONSUMER_DEAD_LETTER` | `on`; `off` with `CONSUMER_VISIBILITY=off` | copies permanent failures to the dead-letter queue after one receive (`Visibility::dead_letter`) |
/// | `CONSUMER_FIFO_AFTER_PERMANENT` | `continue` | messages of a FIFO group behind a permanent failure: `continue` or `stop` ([`FifoAfterPermanent`](crate::sqs::FifoAfterPermanent)) |
/// | `CONSUMER_FAIL_WHEN_STORE_UNAVAILABLE` | `on` | fails the invocation if DynamoDB or PostgreSQL was unavailable for every message |
/// | `CONSUMER_CIRCUIT_BREAKER` | `on` | after 20 handlers failed in a row, messages wait until a probe succeeds ([`Consumer::circuit_breaker`]) |
/// | `CONSUMER_CRASH_WAITS` | `20m,2h,10h` | rest of a message after each death of its process while it ran alone; `off`: no message runs alone ([`Once::crash_waits`]) |
/// | `CONSUMER_METRICS` | `on` | adds metrics to the log line of each batch ([`Metrics`](crate::telemetry::Metrics)) |
/// | `CONSUMER_METRICS_NAMESPACE` | `POWERTOOLS_METRICS_NAMESPACE`, else `sqs-once` | namespace of the metrics |
/// | `CONSUMER_METRICS_SERVICE` | `POWERTOOLS_SERVICE_NAME`, else function name | dimension `service` of the metrics |
/// | `CONSUMER_METRICS_WRITE_UNITS` | `off` | asks DynamoDB for the write units, for the metric `WriteUnits`; not used by `on_item` and `InPostgres` |
/// | `CONSUMER_LOG_SAMPLE_COMPLETED` | `1` | share of the completed messages that are logged, from `0` to `1`; all other outcomes are logged |
/// | `CONSUMER_RUNTIME` | `auto` | threads of the runtime: `single`, `multi`, or `auto`, which is `multi` with two vCPUs or more ([`Settings::runtime`]) |
/// | `CONSUMER_PRIME` | `on` | reads the table once at start, or creates it (`InPostgres`); not used by `on_item` |
///
/// Under `cargo lambda watch` a function that is invoked without a name takes the name of its program.
///
/// `AWS_LAMBDA_RUNTIME_API` must be set, since [`run`](crate::run) needs it.
///
/// A variable that begins with `CONSUMER_`, `IDEMPOTENCY_` or `OUTBOX_` and that is not read has no effect, and
/// is logged at WARN with the setting of the nearest name.
pub struct Settings {
    variables: Variables,
    config: Option<SdkConfig>,
}

impl fmt::Debug for Settings {
    /// Without values: they may hold credentials.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Settings").field(&self.variables).finish()
    }
}

impl Deref for Settings {
    type Target = Variables;

    fn deref(&self) -> &Variables {
        &self.variables
    }
}

impl DerefMut for Settings {
    fn deref_mut(&mut self) -> &mut Variables {
        &mut self.variables
    }
}

impl<H: Handler> Consumer<Once<AnyStore>, H>
where
    Once<AnyStore>: Mode<H::Output>,
{
    /// A consumer in the mode [`Once`], configured by environment variables: see [`Settings`].
    ///
    /// # Errors
    ///
    /// [`SettingsError`] with every variable that is missing or invalid.
    ///
    /// ```no_run
    /// # use sqs_once::{Consumer, Failure, Handler};
    /// # async fn main_<H: Handler<Output = String>>(handler: H) -> Result<(), lambda_runtime::Error> {
    /// sqs_once::run(Consumer::from_env(handler).await?).await
    /// # }
    /// ```
    pub async fn from_env(handler: H) -> Result<Self, SettingsError> {
        Settings::from_env().once(Ok(handler)).await
    }
}

impl Settings {
    /// Takes variables from the process's environment. Bytes that are not UTF-8 are replaced.
    #[must_use]
    pub const fn from_env() -> Self {
        Self {
            variables: Variables::from_env(),
            config: None,
        }
    }

    /// Takes these variables alone, for tests.
    ///
    /// ```
    /// # use sqs_once::Settings;
    /// let mut settings = Settings::from_vars([("ORDERS_TABLE_NAME", "orders")]);
    /// let orders: String = settings.required("ORDERS_TABLE_NAME", "table", str::parse).unwrap();
    /// assert_eq!(orders, "orders");
    /// ```
    #[must_use]
    pub fn from_vars<N: Into<String>, V: Into<String>>(
        variables: impl IntoIterator<Item = (N, V)>,
    ) -> Self {
        Self {
            variables: Variables::from_vars(variables),
            config: None,
        }
    }

    /// Calls AWS with this configuration, in place of [`aws::config`].
    #[must_use]
    pub fn sdk_config(self, config: SdkConfig) -> Self {
        Self {
            config: Some(config),
            ..self
        }
    }

    /// A consumer in a mode of another crate, such as `sqs_once_postgres::InPostgres`. `mode` is what
    /// that crate read from these variables, or its error. It is for modes without leases: a heartbeat
    /// extends visibility timeouts alone, and no message runs alone after a crash.
    ///
    /// ```text
    /// let mut settings = Settings::from_env();
    /// let database = DatabaseSettings::read(&mut settings);
    /// let consumer = settings.consumer(database, Ok(handler_fn(place))).await?;
    /// ```
    ///
    /// # Errors
    ///
    /// Every error of the mode's variables, the handler's and the consumer's.
    pub async fn consumer<P, H>(
        mut self,
        mode: Result<P, SettingsError>,
        handler: Result<H, SettingsError>,
    ) -> Result<Consumer<P::Mode, H>, SettingsError>
    where
        P: ModeSettings<SdkConfig>,
        P::Mode: Mode<H::Output>,
        H: Handler,
    {
        let shared = self.shared();
        let read = (|| Ok((handler?, mode?, shared?)))();
        let (handler, mode, (after_failure, results, batches)) = self.check(read)?;
        let config = self.config().await;
        let options = ModeOptions {
            retention: batches.retention,
            after_failure,
            results: results.results(&config),
            concurrency: batches.concurrency,
        };
        let mode = mode.build(options, &config).await?;
        Ok(batches.consumer(mode, handler, &config))
    }

    /// Reads everything for [`consumer`](Self::consumer) except the variables of the mode.
    fn shared(&mut self) -> Result<(AfterFailure, ResultPlace, Batches), SettingsError> {
        let (after_failure, results) = (self.after_failure(), self.results());
        let batches = self.batches(Some(RETENTION));
        let batches = batches.and_then(|batches| self.without_leases(batches));
        Ok((after_failure?, results?, batches?))
    }

    /// Reads every variable of [`once`](Self::once) without building a consumer, so that
    /// [`errors`](Variables::errors) lists what is wrong with them.
    pub fn read_once(&mut self) {
        let (_table, _records) = (self.table(), self.records());
        let _batches = self.batches(Some(RETENTION));
        self.read_runtime();
    }

    /// Reads every variable of [`consumer`](Self::consumer) except the mode's own, without building it, so
    /// that [`errors`](Variables::errors) lists what is wrong with them.
    pub fn read_consumer(&mut self) {
        let _shared = self.shared();
        self.read_runtime();
    }

    /// Returns the names of variables that begin with `CONSUMER_`, `IDEMPOTENCY_` or `OUTBOX_` and that
    /// nothing has read so far, each with the setting of the nearest name. It knows the variables of all
    /// modes in this crate.
    #[must_use]
    pub fn unknown(&self) -> Vec<(String, Option<String>)> {
        self.variables.unknown(|| {
            let mut others = Self::from_vars::<String, String>([]);
            others.read_once();
            others.variables
        })
    }

    /// Returns `read`, or every error so far. Logs unknown variables, which may explain an error. Their
    /// values may hold credentials, so only their names are logged.
    ///
    /// # Errors
    ///
    /// As [`Variables::checked`].
    pub fn check<T>(&self, read: Result<T, SettingsError>) -> Result<T, SettingsError> {
        for (variable, nearest) in self.unknown() {
            tracing::warn!(variable, nearest, "unknown variable: it has no effect");
        }
        self.checked(read)
    }

    /// Returns the configuration of the SDK: the given one, or [`aws::config`].
    pub async fn config(&mut self) -> SdkConfig {
        match &self.config {
            Some(config) => config.clone(),
            None => {
                let config = aws::config().await;
                self.config.insert(config).clone()
            }
        }
    }
}

#[cfg(test)]
mod tests;

//! [`Settings`]: environment variables into a configured [`Consumer`].

pub(crate) mod any_store;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "outbox")]
mod relay;
mod unknown;

use std::{
    collections::{BTreeMap, BTreeSet},
    env,
    ffi::OsStr,
    fmt, io,
    num::{NonZeroU32, NonZeroUsize},
    path::Path,
    time::Duration,
};

use aws_config::SdkConfig;
use aws_sdk_dynamodb::Client;
use futures_util::future::join;
use tokio::runtime::{Builder, Runtime};

#[cfg(feature = "s3")]
use crate::sqs::S3Bodies;
use crate::{
    aws,
    deadline::{MEMORY_OF_A_VCPU, reserve_per_message},
    dynamodb::{
        inbox::Inbox,
        on_item::OnItem,
        store::{Batched, DynamoStore, Field, Layout},
    },
    handler::Handler,
    once::{Mode, Once},
    protocol::{AfterFailure, Namespace, isolation::CrashWaits, record::MAX_RESULT_BYTES},
    settings::any_store::AnyStore,
    sqs::{
        Consumer, Encoding, Envelope, FifoAfterPermanent, FingerprintSource, KeySource, Visibility,
    },
    store::{MemoryStore, Results, Store},
    telemetry::{
        Metrics,
        metrics::{checked_namespace, checked_service},
    },
};

/// Bounds the read at start: Lambda's init phase ends after 10 seconds.
const PRIME_TIMEOUT: Duration = Duration::from_secs(2);

/// Messages claimed or completed beside those whose handlers run, where their writes are grouped.
/// With the default concurrency of 10 they fill two groups.
const CLAIMS_AHEAD: usize = 40;

/// The name that cargo-lambda gives a function that is invoked without a name.
const UNNAMED: &str = "_";

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
/// | `IDEMPOTENCY_TABLE_NAME` | required, not used by `on_item` and `in_postgres` | DynamoDB table of the records; under `cargo lambda watch` see [`in_memory`](Settings::in_memory) |
/// | `IDEMPOTENCY_LAYOUT` | `native` | attribute names of the records: `native` or `powertools`; not used by `on_item` and `in_postgres`, nor are the next two ([`Layout`]) |
/// | `IDEMPOTENCY_ATTRIBUTES` | none | other attribute names, as `id=PK,expires_at=ttl` ([`Layout::rename`]) |
/// | `IDEMPOTENCY_SORT_KEY` | none | `SK` or `SK=PARTITION`: sort key that holds the idempotency key; the partition defaults to `idempotency#<function name>` ([`Layout::sort_key`]) |
/// | `IDEMPOTENCY_NAMESPACE` | function name | first part of every key ([`Namespace`]) |
/// | `IDEMPOTENCY_KEY` | `message-id` | source of a message's key ([`KeySource`]) |
/// | `CONSUMER_ENVELOPE` | `none` | service that puts its own JSON around each message: `none`, `sns`, `eventbridge` or `s3` ([`Envelope`]) |
/// | `CONSUMER_ENCODING` | `none` | encoding of messages without the attribute `Content-Encoding`: `none`, `base64`, `gzip` or `base64+gzip` ([`Encoding`]) |
/// | `CONSUMER_MAX_BODY_BYTES` | `10485760` | largest decompressed body, in bytes |
/// | `CONSUMER_S3_BUCKETS` | none | names of S3 buckets, as `orders,invoices`: a body that the Amazon SQS Extended Client stored there is read; needs the feature `s3` |
/// | `CONSUMER_S3_MAX_BYTES` | `2097152` | longest body that is read from S3 |
/// | `IDEMPOTENCY_FINGERPRINT` | `body`; `off` for `on_item` | part of a message that must not change under one key ([`FingerprintSource`]); for `on_item` see [`OnItem::check_payload`] |
/// | `IDEMPOTENCY_RETENTION` | `20d`; unlimited for `on_item` | time that a record is kept |
/// | `IDEMPOTENCY_AFTER_FAILURE` | `retry` | other message with the key of a permanent failure: `retry` or `replay`; not used by `on_item` ([`AfterFailure`]) |
/// | `IDEMPOTENCY_RESULTS` | `inline` | place of outputs: `inline` is the record, `none` stores no output, `s3` stores large ones in S3 and needs the feature `s3`; not used by `on_item` ([`Results`]) |
/// | `IDEMPOTENCY_RESULT_INLINE_LIMIT` | `65536` | with `s3`, longest output in the record, in bytes |
/// | `IDEMPOTENCY_RESULT_BUCKET` | required for `s3` | S3 bucket of longer outputs |
/// | `IDEMPOTENCY_GROUPING` | `off` | sends claims and settlements of concurrent messages as groups; not used by `on_item` and `in_postgres` ([`Batched`]) |
/// | `OUTBOX_TABLE_NAME` | none | DynamoDB table of published events, for handlers that publish; not used by `on_item` and `in_postgres` ([`Once::outbox`]) |
/// | `IDEMPOTENCY_LEASE_MARGIN` | `1s` | time added to the deadline, for clocks that differ; not used by `on_item` and `in_postgres` |
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
/// | `CONSUMER_FIFO_AFTER_PERMANENT` | `continue` | messages of a FIFO group behind a permanent failure: `continue` or `stop` ([`FifoAfterPermanent`]) |
/// | `CONSUMER_FAIL_WHEN_STORE_UNAVAILABLE` | `on` | fails the invocation if DynamoDB or PostgreSQL was unavailable for every message |
/// | `CONSUMER_CIRCUIT_BREAKER` | `on` | after 20 handlers failed in a row, messages wait until a probe succeeds ([`Consumer::circuit_breaker`]) |
/// | `CONSUMER_CRASH_WAITS` | `20m,2h,10h` | rest of a message after each death of its process while it ran alone; `off`: no message runs alone ([`Once::crash_waits`]) |
/// | `CONSUMER_METRICS` | `on` | adds metrics to the log line of each batch ([`Metrics`]) |
/// | `CONSUMER_METRICS_NAMESPACE` | `POWERTOOLS_METRICS_NAMESPACE`, else `sqs-once` | namespace of the metrics |
/// | `CONSUMER_METRICS_SERVICE` | `POWERTOOLS_SERVICE_NAME`, else function name | dimension `service` of the metrics |
/// | `CONSUMER_METRICS_WRITE_UNITS` | `off` | asks DynamoDB for the write units, for the metric `WriteUnits`; not used by `on_item` and `in_postgres` |
/// | `CONSUMER_LOG_SAMPLE_COMPLETED` | `1` | share of the completed messages that are logged, from `0` to `1`; all other outcomes are logged |
/// | `CONSUMER_RUNTIME` | `auto` | threads of the runtime: `single`, `multi`, or `auto`, which is `multi` with two vCPUs or more ([`Settings::runtime`]) |
/// | `CONSUMER_PRIME` | `on` | reads the table once at start, or creates it (`in_postgres`); not used by `on_item` |
///
/// Under `cargo lambda watch` a function that is invoked without a name takes the name of its program.
///
/// `AWS_LAMBDA_RUNTIME_API` must be set, since [`run`](crate::run) needs it.
///
/// A variable that begins with `CONSUMER_`, `IDEMPOTENCY_` or `OUTBOX_` and that is not read has no effect, and
/// is logged at WARN with the setting of the nearest name.
pub struct Settings {
    /// `None`: the process's environment.
    variables: Option<BTreeMap<String, String>>,
    defaults: BTreeMap<String, String>,
    /// Names that were read, set or not.
    read: BTreeSet<String>,
    errors: Vec<String>,
    config: Option<SdkConfig>,
}

/// Every error of a configuration: variable, problem and remedy.
///
/// ```
/// use sqs_once::Settings;
///
/// let mut settings = Settings::from_vars([("TIMEOUT", "soon")]);
/// let error = settings.duration("TIMEOUT", "5s").unwrap_err();
/// assert_eq!(
///     error.to_string(),
///     "invalid configuration (1 error): TIMEOUT: `soon` is not a duration such as 500ms, 30s, 5m or 24h"
/// );
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "invalid configuration ({} error{}): {}",
    .errors.len(),
    if .errors.len() == 1 { "" } else { "s" },
    .errors.join("; ")
)]
pub struct SettingsError {
    errors: Vec<String>,
}

impl SettingsError {
    /// The errors, each with the name of its variable.
    ///
    /// ```
    /// # use sqs_once::Settings;
    /// let mut settings = Settings::from_vars([("TIMEOUT", "0s")]);
    /// let error = settings.duration("TIMEOUT", "5s").unwrap_err();
    /// assert_eq!(error.errors(), ["TIMEOUT: must be more than 0"]);
    /// ```
    #[must_use]
    pub fn errors(&self) -> &[String] {
        &self.errors
    }
}

impl fmt::Debug for Settings {
    /// Without values: they may hold credentials.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings")
            .field("errors", &self.errors)
            .finish_non_exhaustive()
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
    pub fn from_env() -> Self {
        Self {
            variables: None,
            defaults: BTreeMap::new(),
            read: BTreeSet::new(),
            errors: Vec::new(),
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
        let pairs = variables.into_iter();
        let variables = pairs.map(|(name, value)| (name.into(), value.into()));
        Self {
            variables: Some(variables.collect()),
            ..Self::from_env()
        }
    }

    /// Calls DynamoDB and SQS with this configuration, in place of [`aws::config`].
    #[must_use]
    pub fn sdk_config(self, config: SdkConfig) -> Self {
        Self {
            config: Some(config),
            ..self
        }
    }

    /// Sets the value of a variable that is not set. Of two defaults for one variable the later
    /// counts.
    ///
    /// ```
    /// # use sqs_once::Settings;
    /// let mut settings = Settings::from_vars([("A", "set")]);
    /// settings.set_default("A", "default");
    /// settings.set_default("B", "default");
    /// assert_eq!(settings.optional("A", "", str::parse), Ok("set".to_owned()));
    /// assert_eq!(settings.optional("B", "", str::parse), Ok("default".to_owned()));
    /// ```
    pub fn set_default(&mut self, name: impl Into<String>, value: impl Into<String>) {
        self.defaults.insert(name.into(), value.into());
    }

    /// Reads a variable that must be set. The error contains `meaning`.
    ///
    /// # Errors
    ///
    /// If the variable is not set, or `parse` rejects it. The error stays in the list: read all
    /// variables before the first `?`, and the final error has them all. The value is not in the
    /// error, unless `parse` puts it there.
    ///
    /// ```
    /// # use sqs_once::Settings;
    /// let mut settings = Settings::from_vars([("PORT", "x"), ("HOST", "")]);
    /// let port = settings.required("PORT", "port of the printer", str::parse::<u16>);
    /// assert_eq!(port.unwrap_err().errors(), ["PORT: invalid digit found in string"]);
    /// let host = settings.required("HOST", "host of the printer", str::parse::<String>);
    /// assert_eq!(host.unwrap_err().errors(), ["HOST is not set (host of the printer)"]);
    /// ```
    pub fn required<T, E: fmt::Display>(
        &mut self,
        name: &str,
        meaning: &str,
        parse: impl FnOnce(&str) -> Result<T, E>,
    ) -> Result<T, SettingsError> {
        match self.value(name) {
            Some(value) => self.parse(name, &value, parse),
            None => Err(self.error(format!("{name} is not set ({meaning})"))),
        }
    }

    /// Reads a variable that may be missing.
    ///
    /// # Errors
    ///
    /// If `parse` rejects the value. The error stays in the list, as with
    /// [`required`](Self::required).
    pub fn optional<T, E: fmt::Display>(
        &mut self,
        name: &str,
        default: &str,
        parse: impl FnOnce(&str) -> Result<T, E>,
    ) -> Result<T, SettingsError> {
        let value = self.value(name).unwrap_or_else(|| default.to_owned());
        self.parse(name, &value, parse)
    }

    /// Reads a duration of more than 0.
    ///
    /// # Errors
    ///
    /// If the value is no such duration. The error stays in the list, as with
    /// [`required`](Self::required).
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use sqs_once::Settings;
    /// let mut settings = Settings::from_vars([("TIMEOUT", "1m 30s")]);
    /// assert_eq!(settings.duration("TIMEOUT", "5s"), Ok(Duration::from_secs(90)));
    /// assert_eq!(settings.duration("PAUSE", "5s"), Ok(Duration::from_secs(5)));
    /// ```
    pub fn duration(&mut self, name: &str, default: &str) -> Result<Duration, SettingsError> {
        self.optional(name, default, positive)
    }

    /// The runtime of the function, as `CONSUMER_RUNTIME` says.
    ///
    /// - `single` runs everything on one thread. A batch of ten messages then needs a quarter less
    ///   CPU time. A handler that blocks this thread stops the whole batch: no other message runs,
    ///   no outcome is recorded and no deadline is kept. Concurrent invocations in one process
    ///   (`AWS_LAMBDA_MAX_CONCURRENCY`) share this thread. A poll of more than 100 ms is logged. Run
    ///   blocking code by [`spawn_blocking`](tokio::task::spawn_blocking).
    /// - `multi` runs one thread for each vCPU. While one of them is not blocked, the response is in
    ///   time, but messages whose next step is queued on a blocked thread wait. Handlers that block
    ///   every thread have the effect of `single`.
    /// - `auto`, the default, is `multi` with at least two vCPUs: `AWS_LAMBDA_FUNCTION_MEMORY_SIZE`
    ///   from 3,538, since 1,769 MB have one vCPU (*AWS Lambda Developer Guide*, "Configure Lambda
    ///   function memory"). Otherwise, and without this variable, it is `single`.
    ///
    /// An invalid value is reported with the errors of the other variables. Until then `single`
    /// stands in.
    ///
    /// # Errors
    ///
    /// If the operating system refuses the runtime's resources.
    ///
    /// ```no_run
    /// use sqs_once::{Attempt, Failure, Settings, handler_fn, telemetry};
    ///
    /// async fn greet(name: String, _: Attempt) -> Result<String, Failure> {
    ///     Ok(format!("hello {name}"))
    /// }
    ///
    /// fn main() -> Result<(), lambda_runtime::Error> {
    ///     telemetry::init();
    ///     let mut settings = Settings::from_env();
    ///     settings.runtime()?.block_on(async {
    ///         sqs_once::run(settings.once(Ok(handler_fn(greet))).await?).await
    ///     })
    /// }
    /// ```
    pub fn runtime(&mut self) -> io::Result<Runtime> {
        let mut builder = match self.has_threads() {
            Ok(true) => Builder::new_multi_thread(),
            Ok(false) | Err(_) => Builder::new_current_thread(),
        };
        builder.enable_all().build()
    }

    /// The function's memory in MB, where Lambda set it.
    fn memory(&mut self) -> Option<u32> {
        let megabytes = self.value("AWS_LAMBDA_FUNCTION_MEMORY_SIZE")?;
        megabytes.parse().ok()
    }

    fn has_threads(&mut self) -> Result<bool, SettingsError> {
        let memory = self.memory();
        self.optional("CONSUMER_RUNTIME", "auto", |text| match text {
            "auto" => Ok(memory.is_some_and(|memory| memory >= 2 * MEMORY_OF_A_VCPU)),
            "single" => Ok(false),
            "multi" => Ok(true),
            _ => Err("must be `auto`, `single` or `multi`"),
        })
    }

    /// A consumer in the mode [`Once`]. `handler` is the handler, or an error of the handler's own
    /// variables. Reads the table once, unless `CONSUMER_PRIME` is `off`; a failure of that read
    /// is logged. Records are in the table, or [in memory](Self::in_memory).
    ///
    /// # Errors
    ///
    /// Every error of the handler's variables and the consumer's.
    pub async fn once<H: Handler>(
        mut self,
        handler: Result<H, SettingsError>,
    ) -> Result<Consumer<Once<AnyStore>, H>, SettingsError>
    where
        Once<AnyStore>: Mode<H::Output>,
    {
        let table = if self.in_memory() {
            // No queue holds the messages of an event file.
            self.set_default("CONSUMER_VISIBILITY", "off");
            Ok(None)
        } else {
            self.table().map(Some)
        };
        let (records, batches) = (self.records(), self.batches(Some("20d")));
        let read = (|| Ok((handler?, table?, records?, batches?)))();
        let (handler, table, records, batches) = self.check(read)?;
        let reads_s3 = batches.read_s3() || records.results.call_s3();
        let config = if table.is_some() || batches.call_sqs() || reads_s3 {
            self.take_config().await
        } else {
            // The SDK would look for a Region, for seconds on a machine outside AWS.
            SdkConfig::builder().build()
        };
        let grouping = table.as_ref().is_some_and(|table| table.grouping);
        let ahead = if grouping { CLAIMS_AHEAD } else { 0 };
        let (store, to_read) = match table {
            Some(table) => {
                let (store, to_read) = table.store(&config);
                let store = if grouping {
                    AnyStore::Batched(Batched::new(store))
                } else {
                    AnyStore::DynamoDb(store)
                };
                (store, to_read)
            }
            None => {
                tracing::warn!(
                    "IDEMPOTENCY_TABLE_NAME is not set: records are in memory, and no record survives a restart; `make dev` or `make watch` runs on a local table"
                );
                (AnyStore::Memory(MemoryStore::default()), None)
            }
        };
        let once = records.once(store, &batches, &config);
        let build = || batches.consumer(once, handler, &config);
        Ok(while_reading(to_read, build).await.claims_ahead(ahead))
    }

    /// Returns whether [`once`](Self::once) keeps records in memory: under `cargo lambda watch`, for
    /// the function that has no name there, with no `IDEMPOTENCY_TABLE_NAME`. A handler can then
    /// choose defaults with which it runs on its own.
    ///
    /// Never on AWS, where a missing table is an error. [`inbox`](Self::inbox) needs a table
    /// everywhere.
    ///
    /// ```
    /// # use sqs_once::Settings;
    /// let watched = [
    ///     ("AWS_LAMBDA_FUNCTION_NAME", "_"),
    ///     ("AWS_LAMBDA_RUNTIME_API", "http://127.0.0.1:9000/.rt/_"),
    /// ];
    /// let mut settings = Settings::from_vars(watched);
    /// if settings.in_memory() {
    ///     settings.set_default("PRINTER_URL", "sandbox");
    /// }
    /// assert_eq!(settings.optional("PRINTER_URL", "", str::parse), Ok("sandbox".to_owned()));
    /// ```
    pub fn in_memory(&mut self) -> bool {
        self.is_unnamed_under_watch() && self.value("IDEMPOTENCY_TABLE_NAME").is_none()
    }

    /// Returns whether this is the function that `cargo lambda watch` runs for an invocation without
    /// a function name.
    ///
    /// cargo-lambda calls it `_`, which is a valid name on AWS too. The Runtime API of cargo-lambda
    /// is a URL that ends with this name. The one of AWS is a host and a port, and AWS always sets
    /// `AWS_LAMBDA_INITIALIZATION_TYPE`.
    fn is_unnamed_under_watch(&mut self) -> bool {
        let name = self.value("AWS_LAMBDA_FUNCTION_NAME");
        let runtime_api = self.value("AWS_LAMBDA_RUNTIME_API").unwrap_or_default();
        name.as_deref() == Some(UNNAMED)
            && runtime_api.starts_with("http://")
            && runtime_api.ends_with("/_")
            && self.value("AWS_LAMBDA_INITIALIZATION_TYPE").is_none()
    }

    /// A consumer in the mode [`Inbox`], otherwise as [`once`](Self::once).
    ///
    /// # Errors
    ///
    /// Every error of the handler's variables and the consumer's.
    ///
    /// ```no_run
    /// use sqs_once::{Done, Handler, Settings};
    ///
    /// # async fn main_<H: Handler<Output = Done<String>>>(handler: H) -> Result<(), lambda_runtime::Error> {
    /// let consumer = Settings::from_env().inbox(Ok(handler)).await?;
    /// # sqs_once::run(consumer).await }
    /// ```
    pub async fn inbox<H: Handler>(
        mut self,
        handler: Result<H, SettingsError>,
    ) -> Result<Consumer<Inbox<DynamoStore>, H>, SettingsError>
    where
        Inbox<DynamoStore>: Mode<H::Output>,
    {
        let (table, records) = (self.table(), self.records());
        let batches = self.batches(Some("20d"));
        let batches = batches.and_then(|batches| self.without_leases(batches));
        let read = (|| Ok((handler?, table?, records?, batches?)))();
        let (handler, table, records, batches) = self.check(read)?;
        let config = self.take_config().await;
        let (store, to_read) = table.store(&config);
        let inbox = Inbox::new(records.once(store, &batches, &config));
        let build = || batches.consumer(inbox, handler, &config);
        Ok(while_reading(to_read, build).await)
    }

    /// A consumer in the mode [`OnItem`], otherwise as [`once`](Self::once). There is no table of
    /// records. Items remember keys without limit, unless `IDEMPOTENCY_RETENTION` is set.
    ///
    /// # Errors
    ///
    /// Every error of the handler's variables and the consumer's.
    ///
    /// ```no_run
    /// use sqs_once::{Change, Handler, Settings};
    ///
    /// # async fn main_<H: Handler<Output = Change<()>>>(handler: H) -> Result<(), lambda_runtime::Error> {
    /// let consumer = Settings::from_env().on_item(Ok(handler)).await?;
    /// # sqs_once::run(consumer).await }
    /// ```
    pub async fn on_item<H: Handler>(
        mut self,
        handler: Result<H, SettingsError>,
    ) -> Result<Consumer<OnItem, H>, SettingsError>
    where
        OnItem: Mode<H::Output>,
    {
        let fingerprint = self.value("IDEMPOTENCY_FINGERPRINT");
        let batches = self.batches(None);
        let batches = batches.and_then(|batches| self.without_leases(batches));
        let read = (|| Ok((handler?, batches?)))();
        let (handler, batches) = self.check(read)?;
        let config = self.take_config().await;
        let mut on_item = OnItem::new(Client::new(&config));
        // Without the option, an item stores keys alone, and the setting would have no effect.
        if fingerprint.is_some_and(|source| source != "off") {
            on_item = on_item.check_payload();
        }
        let on_item = match batches.retention {
            Some(retention) => on_item.retention(retention),
            None => on_item,
        };
        Ok(batches.consumer(on_item, handler, &config))
    }

    fn table(&mut self) -> Result<Table, SettingsError> {
        let name = self.required(
            "IDEMPOTENCY_TABLE_NAME",
            "DynamoDB table of the records; on your own machine, `make watch` sets it",
            str::parse,
        );
        let layout = self.layout();
        let grouping = self.optional("IDEMPOTENCY_GROUPING", "off", on_or_off);
        let prime = self.optional("CONSUMER_PRIME", "on", on_or_off);
        let write_units = self.optional("CONSUMER_METRICS_WRITE_UNITS", "off", on_or_off);
        Ok(Table {
            name: name?,
            layout: layout?,
            grouping: grouping?,
            prime: prime?,
            write_units: write_units?,
        })
    }

    fn records(&mut self) -> Result<Records, SettingsError> {
        let after_failure = self.after_failure();
        let lease_margin = self.optional("IDEMPOTENCY_LEASE_MARGIN", "1s", duration);
        let outbox = self.value("OUTBOX_TABLE_NAME");
        let results = self.results();
        Ok(Records {
            outbox,
            after_failure: after_failure?,
            lease_margin: lease_margin?,
            results: results?,
        })
    }

    fn after_failure(&mut self) -> Result<AfterFailure, SettingsError> {
        self.optional("IDEMPOTENCY_AFTER_FAILURE", "retry", |text| match text {
            "retry" => Ok(AfterFailure::Retry),
            "replay" => Ok(AfterFailure::Replay),
            _ => Err("must be `retry` or `replay`"),
        })
    }

    fn results(&mut self) -> Result<ResultPlace, SettingsError> {
        // `None`: in S3, at the place that the other two variables give.
        let place = |text: &str| match text {
            "none" => Ok(Some(ResultPlace::Nowhere)),
            "inline" => Ok(Some(ResultPlace::InRecord)),
            "s3" if cfg!(feature = "s3") => Ok(None),
            "s3" => Err("`s3` needs the feature `s3` of the crate sqs-once"),
            _ => Err("must be `none`, `inline` or `s3`"),
        };
        let place = self.optional("IDEMPOTENCY_RESULTS", "inline", place);
        let limit = self.optional("IDEMPOTENCY_RESULT_INLINE_LIMIT", "65536", inline_limit);
        let name = "IDEMPOTENCY_RESULT_BUCKET";
        let bucket = if place == Ok(None) {
            self.required(name, "S3 bucket of large outputs", bucket)
        } else {
            self.changed(name, String::new(), |_, text| bucket(text))
        };
        let (bucket, inline_limit) = (bucket?, limit?);
        Ok(place?.unwrap_or(ResultPlace::InS3 {
            bucket,
            inline_limit,
        }))
    }

    /// The table of records, for the command-line tool.
    ///
    /// # Errors
    ///
    /// Every error of the table's variables.
    #[doc(hidden)]
    pub fn store(&mut self, config: &SdkConfig) -> Result<DynamoStore, SettingsError> {
        let table = self.table();
        let table = self.check(table)?;
        Ok(DynamoStore::new(Client::new(config), table.name).layout(table.layout))
    }

    /// Returns every error of the variables of a consumer with a table of records, for the
    /// command-line tool.
    #[doc(hidden)]
    pub fn problems(&mut self) -> Vec<String> {
        self.read_all();
        self.errors.clone()
    }

    /// Reads every variable of a consumer with a table of records.
    fn read_all(&mut self) {
        let (_table, _records) = (self.table(), self.records());
        let (_batches, _threads) = (self.batches(Some("20d")), self.has_threads());
    }

    fn layout(&mut self) -> Result<Layout, SettingsError> {
        // After an error the native layout stands in, so that the next variables are read too.
        let preset = self.optional("IDEMPOTENCY_LAYOUT", "native", |text| match text {
            "native" => Ok(Layout::native()),
            "powertools" => Ok(Layout::powertools()),
            _ => Err("must be `native` or `powertools`"),
        });
        let layout = preset.clone().unwrap_or_default();
        let renamed = self.changed("IDEMPOTENCY_ATTRIBUTES", layout, rename);
        let layout = renamed.clone().unwrap_or_default();
        let function = self.function();
        let sorted = self.changed("IDEMPOTENCY_SORT_KEY", layout, |layout, text| {
            let partition = format!("idempotency#{function}");
            let (name, partition) = text.split_once('=').unwrap_or((text, &partition));
            let layout = layout.sort_key(name, partition);
            layout.map_err(|error| error.to_string())
        });
        preset.and(renamed).and(sorted)
    }

    fn batches(&mut self, default_retention: Option<&str>) -> Result<Batches, SettingsError> {
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
        let retention = self.value("IDEMPOTENCY_RETENTION");
        let retention = retention.or_else(|| default_retention.map(str::to_owned));
        let retention = retention
            .map(|value| self.parse("IDEMPOTENCY_RETENTION", &value, positive))
            .transpose();
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
        let metrics = self.metrics(&function);
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
    fn without_leases(&mut self, batches: Batches) -> Result<Batches, SettingsError> {
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

    /// On by default: without metrics, no alarm watches the outcomes.
    fn metrics(&mut self, function: &str) -> Result<Option<Metrics>, SettingsError> {
        let on = self.optional("CONSUMER_METRICS", "on", on_or_off);
        let namespace = self.fallback("CONSUMER_METRICS_NAMESPACE", "POWERTOOLS_METRICS_NAMESPACE");
        let namespace = self.optional(namespace, "sqs-once", checked_namespace);
        let service = self.fallback("CONSUMER_METRICS_SERVICE", "POWERTOOLS_SERVICE_NAME");
        // The default of Powertools, where no function is named.
        let default = if function.is_empty() {
            "service_undefined"
        } else {
            function
        };
        let service = self.optional(service, default, checked_service);
        let metrics = Metrics::checked(namespace?, service?);
        Ok(on?.then_some(metrics))
    }

    /// The name of the variable that counts: `other` if it is set and `name` is not.
    fn fallback(&mut self, name: &'static str, other: &'static str) -> &'static str {
        let only_other = self.value(name).is_none() && self.value(other).is_some();
        if only_other { other } else { name }
    }

    /// The function's name. The function without a name under `cargo lambda watch` has the name of
    /// its program. So a message has one key, also if it is invoked by that name.
    fn function(&mut self) -> String {
        let program = if self.is_unnamed_under_watch() {
            env::current_exe().ok()
        } else {
            None
        };
        let program = program.as_deref().and_then(Path::file_stem);
        match program.and_then(OsStr::to_str) {
            Some(program) => program.to_owned(),
            None => self.value("AWS_LAMBDA_FUNCTION_NAME").unwrap_or_default(),
        }
    }

    /// An empty parameter of a template makes an empty variable, which counts as not set.
    fn value(&mut self, name: &str) -> Option<String> {
        self.read.insert(name.to_owned());
        let value = match &self.variables {
            Some(variables) => variables.get(name).cloned(),
            None => env::var_os(name).map(|value| value.to_string_lossy().into_owned()),
        };
        let value = value.filter(|value| !value.is_empty());
        value.or_else(|| self.defaults.get(name).cloned())
    }

    /// `base`, changed by a variable that is set.
    fn changed<T>(
        &mut self,
        name: &str,
        base: T,
        change: impl FnOnce(T, &str) -> Result<T, String>,
    ) -> Result<T, SettingsError> {
        match self.value(name) {
            Some(value) => self.parse(name, &value, |text| change(base, text)),
            None => Ok(base),
        }
    }

    fn parse<T, E: fmt::Display>(
        &mut self,
        name: &str,
        value: &str,
        parse: impl FnOnce(&str) -> Result<T, E>,
    ) -> Result<T, SettingsError> {
        parse(value).map_err(|problem| self.error(format!("{name}: {problem}")))
    }

    /// Adds an error to the list.
    fn error(&mut self, error: String) -> SettingsError {
        self.errors.push(error.clone());
        SettingsError {
            errors: vec![error],
        }
    }

    /// Replaces the first error of `read` by all that were found. Logs unknown variables, which may
    /// explain an error.
    fn check<T>(&self, read: Result<T, SettingsError>) -> Result<T, SettingsError> {
        self.warn_of_unknown();
        if self.errors.is_empty() {
            read
        } else {
            Err(SettingsError {
                errors: self.errors.clone(),
            })
        }
    }

    async fn take_config(&mut self) -> SdkConfig {
        match self.config.take() {
            Some(config) => config,
            None => aws::config().await,
        }
    }
}

/// Settings of the table of records.
#[derive(Debug)]
struct Table {
    name: String,
    layout: Layout,
    grouping: bool,
    prime: bool,
    write_units: bool,
}

impl Table {
    /// The store, and the same again if the table is to be read at start.
    fn store(self, config: &SdkConfig) -> (DynamoStore, Option<DynamoStore>) {
        let store = DynamoStore::new(Client::new(config), self.name)
            .layout(self.layout)
            .write_units(self.write_units);
        let to_read = self.prime.then(|| store.clone());
        (store, to_read)
    }
}

/// Settings of the records, in a table or in memory.
#[derive(Debug)]
struct Records {
    outbox: Option<String>,
    after_failure: AfterFailure,
    lease_margin: Duration,
    results: ResultPlace,
}

/// The place of outputs.
#[derive(Debug, PartialEq, Eq)]
enum ResultPlace {
    Nowhere,
    InRecord,
    /// Without the feature `s3`, no setting selects it.
    InS3 {
        bucket: String,
        inline_limit: usize,
    },
}

impl ResultPlace {
    const fn call_s3(&self) -> bool {
        matches!(self, Self::InS3 { .. })
    }

    #[cfg_attr(
        not(feature = "s3"),
        expect(unused_variables, reason = "read by the feature")
    )]
    fn results(self, config: &SdkConfig) -> Results {
        match self {
            Self::Nowhere => Results::none(),
            #[cfg(feature = "s3")]
            Self::InS3 {
                bucket,
                inline_limit,
            } => Results::outside(crate::s3_results::S3Results::new(config, bucket))
                .inline_limit(inline_limit),
            _ => Results::inline(),
        }
    }
}

impl Records {
    fn once<S: Store>(self, store: S, batches: &Batches, config: &SdkConfig) -> Once<S> {
        let once = Once::new(store)
            .after_failure(self.after_failure)
            .lease_margin(self.lease_margin)
            .outbox(self.outbox)
            .results(self.results.results(config))
            .crash_waits(batches.crash_waits.clone())
            .heartbeat(batches.heartbeat);
        match batches.retention {
            Some(retention) => once.retention(retention),
            None => once,
        }
    }
}

/// Reads the table of `store` once, and calls `build` meanwhile. A failure of the read is logged.
async fn while_reading<T>(store: Option<DynamoStore>, build: impl FnOnce() -> T) -> T {
    let Some(store) = store else {
        return build();
    };
    // The first poll of `prime` starts the connection. `build` has the time of its round trips.
    let (read, built) = join(store.prime(PRIME_TIMEOUT), async { build() }).await;
    if let Err(error) = read {
        tracing::warn!(%error, "could not read the table at start: messages fail until DynamoDB answers");
    }
    built
}

/// Settings that every mode has.
#[derive(Debug)]
struct Batches {
    namespace: Namespace,
    key: KeySource,
    envelope: Envelope,
    encoding: Encoding,
    max_body_bytes: NonZeroU32,
    /// Without the feature `s3` no buckets are set.
    s3_bodies: (Vec<String>, NonZeroU32),
    fingerprint: FingerprintSource,
    retention: Option<Duration>,
    assumed_timeout: Duration,
    heartbeat: Option<Duration>,
    concurrency: NonZeroUsize,
    conflict_wait: Duration,
    deadline_reserve: Duration,
    /// `None` where Lambda did not set the function's memory.
    reserve_per_message: Option<Duration>,
    min_time_to_start: Duration,
    fifo_after_permanent: FifoAfterPermanent,
    fail_when_store_unavailable: bool,
    circuit_breaker: bool,
    crash_waits: CrashWaits,
    metrics: Option<Metrics>,
    log_sample_completed: f64,
    timeouts: Option<Timeouts>,
}

impl Batches {
    const fn read_s3(&self) -> bool {
        let (buckets, _max_bytes) = &self.s3_bodies;
        !buckets.is_empty()
    }

    const fn call_sqs(&self) -> bool {
        self.timeouts.is_some()
    }

    fn consumer<M: Mode<H::Output>, H: Handler>(
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
            let reads = !buckets.is_empty();
            let s3_bodies = reads.then(|| S3Bodies::new(config, buckets).max_bytes(max_bytes));
            consumer.s3_bodies(s3_bodies)
        };
        let timeouts = self.timeouts;
        let visibility =
            timeouts.map(|timeouts| timeouts.visibility(config, self.retention, self.heartbeat));
        consumer.visibility(visibility)
    }
}

/// Settings of visibility timeouts.
#[derive(Debug)]
struct Timeouts {
    base: Duration,
    cap: Duration,
    dead_letter: bool,
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

/// Renames attributes as in `id=PK,expires_at=ttl`: native name, other name.
fn rename(layout: Layout, text: &str) -> Result<Layout, String> {
    let pair = |pair: &str| {
        let (field, name) = pair
            .split_once('=')
            .ok_or_else(|| format!("`{pair}` is not of the form id=PK"))?;
        let field = field.parse::<Field>().map_err(|error| error.to_string())?;
        Ok((field, name.to_owned()))
    };
    let names = text.split(',').map(pair);
    let names = names.collect::<Result<Vec<_>, String>>()?;
    layout.rename(names).map_err(|error| error.to_string())
}

fn duration(text: &str) -> Result<Duration, String> {
    humantime::parse_duration(text)
        .map_err(|_| format!("`{text}` is not a duration such as 500ms, 30s, 5m or 24h"))
}

/// The shortest heartbeat: SQS counts whole seconds, and a third of it must be more than a slow request.
const SHORTEST_HEARTBEAT: Duration = Duration::from_secs(10);

fn heartbeat(text: &str) -> Result<Option<Duration>, String> {
    if text == "off" {
        return Ok(None);
    }
    match duration(text)? {
        length if length < SHORTEST_HEARTBEAT => Err("must be `off`, or at least 10s".to_owned()),
        length => Ok(Some(length)),
    }
}

fn crash_waits(text: &str) -> Result<CrashWaits, String> {
    if text == "off" {
        return Ok(CrashWaits::off());
    }
    let waits = text.split(',').map(|wait| duration(wait.trim()));
    let waits = waits.collect::<Result<Vec<_>, _>>();
    waits
        .map(CrashWaits::new)
        .map_err(|_| "must be `off`, or durations such as `20m,2h,10h`".to_owned())
}

fn positive(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        Duration::ZERO => Err("must be more than 0".to_owned()),
        span => Ok(span),
    }
}

fn backoff(text: &str) -> Result<Duration, String> {
    match positive(text)? {
        span if span > Visibility::LONGEST_BACKOFF => Err(
            "must be at most 11h 30m: SQS hides a message for no longer than 12 hours after its receive"
                .to_owned(),
        ),
        span => Ok(span),
    }
}

/// Names of S3 buckets, separated by commas.
fn buckets(text: &str) -> Result<Vec<String>, String> {
    let names = text.split(',').map(bucket).collect::<Result<_, _>>();
    names.map_err(|error| format!("{error}; separate names by commas"))
}

/// The name of an S3 bucket (*Amazon S3 User Guide*, "Bucket naming rules").
fn bucket(name: &str) -> Result<String, String> {
    let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '.' || c == '-';
    let ends = !name.starts_with(['.', '-']) && !name.ends_with(['.', '-']);
    if (3..=63).contains(&name.len()) && ends && name.chars().all(inner) {
        Ok(name.to_owned())
    } else {
        Err(format!("`{name}` is not the name of an S3 bucket"))
    }
}

fn inline_limit(text: &str) -> Result<usize, String> {
    let parsed = text.parse().ok();
    let parsed = parsed.filter(|bytes| *bytes <= MAX_RESULT_BYTES);
    parsed.ok_or_else(|| format!("must be a whole number of bytes from 0 to {MAX_RESULT_BYTES}"))
}

fn bytes(text: &str) -> Result<NonZeroU32, &'static str> {
    let parsed = text.parse();
    parsed.map_err(|_| "must be a whole number of bytes from 1 to 4294967295")
}

fn share(text: &str) -> Result<f64, &'static str> {
    let parsed = text.parse().ok();
    let parsed = parsed.filter(|share| (0.0..=1.0).contains(share));
    parsed.ok_or("must be a number from 0 to 1")
}

fn on_or_off(text: &str) -> Result<bool, &'static str> {
    match text {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err("must be `on` or `off`"),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    };

    use aws_sdk_dynamodb::config::{
        Credentials,
        http::{HttpRequest, HttpResponse},
    };
    use aws_smithy_runtime_api::client::http::{
        HttpConnector, HttpConnectorFuture, SharedHttpConnector, http_client_fn,
    };
    use tokio::{runtime::RuntimeFlavor, sync::Notify};

    use super::*;
    use crate::{
        dynamodb::{done::Done, on_item::Change},
        handler::{Answer, Attempt, Failure, handler_fn},
    };

    const REQUIRED: [(&str, &str); 3] = [
        ("AWS_LAMBDA_RUNTIME_API", "127.0.0.1:9001"),
        ("AWS_LAMBDA_FUNCTION_NAME", "payments"),
        ("IDEMPOTENCY_TABLE_NAME", "idempotency"),
    ];

    fn read(variables: &[(&str, &str)]) -> Result<(Table, Records, Batches), SettingsError> {
        let mut settings = Settings::from_vars(variables.iter().copied());
        let (table, records) = (settings.table(), settings.records());
        let batches = settings.batches(Some("20d"));
        settings.check((|| Ok((table?, records?, batches?)))())
    }

    fn with(variables: &[(&str, &str)]) -> Result<(Table, Records, Batches), SettingsError> {
        read(&[&REQUIRED, variables].concat())
    }

    /// The variables that `cargo lambda watch` sets for a function without a name.
    const WATCHED: [(&str, &str); 2] = [
        ("AWS_LAMBDA_RUNTIME_API", "http://127.0.0.1:9000/.rt/_"),
        ("AWS_LAMBDA_FUNCTION_NAME", "_"),
    ];

    fn offline(variables: &[(&str, &str)]) -> Settings {
        let version = aws_sdk_dynamodb::config::BehaviorVersion::latest();
        let config = SdkConfig::builder().behavior_version(version).build();
        Settings::from_vars(variables.iter().copied()).sdk_config(config)
    }

    #[tokio::test]
    async fn watched_function_has_records_in_memory() {
        let consumer = offline(&WATCHED).once(Ok(unused::<()>())).await.unwrap();
        let consumer = format!("{consumer:?}");
        assert!(consumer.contains("Memory(MemoryStore"), "{consumer}");
        assert!(consumer.contains("visibility: None"), "{consumer}");
    }

    #[tokio::test]
    async fn function_on_lambda_needs_a_table() {
        let [watched, unnamed] = WATCHED;
        for variables in [
            // A function of AWS, also if its name is `_`.
            vec![unnamed, ("AWS_LAMBDA_RUNTIME_API", "127.0.0.1:9001")],
            vec![unnamed, ("AWS_LAMBDA_RUNTIME_API", "127.0.0.1:9001/_")],
            vec![
                unnamed,
                watched,
                ("AWS_LAMBDA_INITIALIZATION_TYPE", "on-demand"),
            ],
            // A function with a name under `cargo lambda watch`.
            vec![
                (
                    "AWS_LAMBDA_RUNTIME_API",
                    "http://127.0.0.1:9000/.rt/consumer",
                ),
                ("AWS_LAMBDA_FUNCTION_NAME", "consumer"),
            ],
            vec![watched, ("AWS_LAMBDA_FUNCTION_NAME", "consumer")],
        ] {
            let error = offline(&variables)
                .once(Ok(unused::<()>()))
                .await
                .unwrap_err();
            assert!(
                error.errors()[0].starts_with("IDEMPOTENCY_TABLE_NAME is not set"),
                "{variables:?}: {error}"
            );
        }
    }

    #[tokio::test]
    async fn watched_inbox_needs_a_table() {
        let error = offline(&WATCHED)
            .inbox(Ok(unused::<Done<()>>()))
            .await
            .err()
            .unwrap();
        assert_eq!(error.errors().len(), 1, "{error}");
    }

    #[tokio::test]
    async fn heartbeat_without_lease_needs_visibility() {
        let heartbeat = ("CONSUMER_HEARTBEAT", "30s");
        let off = ("CONSUMER_VISIBILITY", "off");
        let variables = [&REQUIRED[..], &[heartbeat, off]].concat();
        let error = offline(&variables)
            .on_item(Ok(unused::<Change<()>>()))
            .await
            .err()
            .unwrap();
        let expected = "CONSUMER_HEARTBEAT: needs CONSUMER_VISIBILITY=on: this mode has no leases";
        assert_eq!(error.errors(), [expected]);
        let leases = [&variables[..], &[("CONSUMER_PRIME", "off")]].concat();
        assert!(offline(&leases).once(Ok(unused::<()>())).await.is_ok());
    }

    #[tokio::test]
    async fn watched_function_with_table_uses_it() {
        let table = ("IDEMPOTENCY_TABLE_NAME", "records");
        let prime = ("CONSUMER_PRIME", "off");
        let variables = [&WATCHED[..], &[table, prime]].concat();
        let consumer = offline(&variables).once(Ok(unused::<()>())).await.unwrap();
        let consumer = format!("{consumer:?}");
        assert!(consumer.contains("DynamoDb("), "{consumer}");
    }

    #[test]
    fn watched_function_is_named_after_its_program() {
        let mut settings = Settings::from_vars(WATCHED);
        let program = env::current_exe().unwrap();
        let program = program.file_stem().unwrap().to_str().unwrap();
        let batches = settings.batches(None).unwrap();
        assert_eq!(batches.namespace.as_str(), program);
        // On AWS the name stays.
        let mut settings = Settings::from_vars([WATCHED[1], REQUIRED[0]]);
        assert_eq!(settings.batches(None).unwrap().namespace.as_str(), "_");
    }

    #[test]
    fn defaults_match_the_documented_table() {
        let (table, records, batches) = read(&REQUIRED).unwrap();
        assert_eq!(table.name, "idempotency");
        assert_eq!(table.layout, Layout::native());
        assert!(!table.grouping);
        assert!(table.prime);
        assert!(!table.write_units);
        assert_eq!(records.after_failure, AfterFailure::Retry);
        assert_eq!(records.lease_margin, Duration::from_secs(1));
        assert_eq!(records.results, ResultPlace::InRecord);
        assert_eq!(batches.namespace.as_str(), "payments");
        let metrics = batches.metrics.unwrap();
        assert_eq!(metrics.names(), ("sqs-once", "payments"));
        assert_eq!(batches.key, KeySource::MessageId);
        assert_eq!(batches.encoding, Encoding::None);
        assert_eq!(batches.max_body_bytes.get(), 10 * 1024 * 1024);
        assert_eq!(batches.fingerprint, FingerprintSource::Body);
        assert_eq!(batches.retention, Some(Duration::from_secs(20 * 86_400)));
        assert_eq!(batches.assumed_timeout, Duration::from_secs(300));
        assert_eq!(batches.heartbeat, None);
        assert_eq!(batches.concurrency.get(), 10);
        assert_eq!(batches.conflict_wait, Duration::ZERO);
        assert_eq!(batches.deadline_reserve, Duration::from_millis(500));
        assert_eq!(batches.min_time_to_start, Duration::ZERO);
        assert!(batches.fail_when_store_unavailable);
        assert!(batches.circuit_breaker);
        assert_eq!(batches.crash_waits, CrashWaits::default());
        assert_eq!(batches.log_sample_completed.to_string(), "1");
        assert_eq!(batches.fifo_after_permanent, FifoAfterPermanent::Continue);
        {
            let timeouts = batches.timeouts.unwrap();
            assert!(timeouts.dead_letter);
            assert_eq!(timeouts.base, Duration::from_secs(10));
            assert_eq!(timeouts.cap, Duration::from_secs(15 * 60));
        }
    }

    #[tokio::test]
    async fn errors_are_reported_all_at_once() {
        let invalid = [
            ("IDEMPOTENCY_RETENTION", "a day"),
            ("IDEMPOTENCY_LAYOUT", "python"),
            ("IDEMPOTENCY_KEY", "orderId"),
            ("IDEMPOTENCY_FINGERPRINT", "yes"),
            ("CONSUMER_ENCODING", "deflate"),
            ("CONSUMER_MAX_BODY_BYTES", "10MB"),
            ("IDEMPOTENCY_AFTER_FAILURE", "strict"),
            ("IDEMPOTENCY_GROUPING", "yes"),
            ("IDEMPOTENCY_LEASE_MARGIN", "-1s"),
            ("CONSUMER_CRASH_WAITS", "20m,soon"),
            ("CONSUMER_HEARTBEAT", "9s"),
            ("CONSUMER_CONCURRENCY", "0"),
            ("CONSUMER_DEADLINE_RESERVE", "0s"),
            ("CONSUMER_MIN_TIME_TO_START", "5"),
            ("CONSUMER_PRIME", "yes"),
            ("CONSUMER_METRICS_NAMESPACE", "AWS/SQS"),
            ("CONSUMER_METRICS_WRITE_UNITS", "yes"),
            ("POWERTOOLS_SERVICE_NAME", ":payments"),
            ("CONSUMER_VISIBILITY", "yes"),
            ("CONSUMER_DEAD_LETTER", "yes"),
            ("CONSUMER_FAIL_WHEN_STORE_UNAVAILABLE", "no"),
            ("CONSUMER_FIFO_AFTER_PERMANENT", "on"),
            ("CONSUMER_S3_BUCKETS", "Orders"),
            ("CONSUMER_S3_MAX_BYTES", "4MiB"),
            ("IDEMPOTENCY_RESULTS", "both"),
            ("IDEMPOTENCY_RESULT_INLINE_LIMIT", "64KB"),
            ("IDEMPOTENCY_RESULT_BUCKET", "Outputs"),
            ("CONSUMER_BACKOFF_BASE", "0s"),
            ("CONSUMER_BACKOFF_CAP", "12h"),
            ("OWN", "0s"),
        ];
        let missing = [
            "AWS_LAMBDA_RUNTIME_API",
            "IDEMPOTENCY_TABLE_NAME",
            "IDEMPOTENCY_NAMESPACE",
        ];
        let mut settings = Settings::from_vars(invalid);
        let handler = settings.duration("OWN", "5s").map(|_| unused::<()>());
        let error = settings.once(handler).await.unwrap_err();
        for name in missing.iter().chain(invalid.iter().map(|(name, _)| name)) {
            let of_name = error
                .errors()
                .iter()
                .filter(|error| error.starts_with(name));
            assert_eq!(of_name.count(), 1, "{name} in {error}");
        }
        let count = missing.len() + invalid.len();
        assert_eq!(error.errors().len(), count, "{error}");
        let text = error.to_string();
        let start = format!("invalid configuration ({count} errors): ");
        assert!(text.starts_with(&start), "{text}");
    }

    /// A handler that never runs.
    fn unused<O: Answer + 'static>() -> impl Handler<Output = O> + fmt::Debug {
        handler_fn(|(): (), _: Attempt| async { Err::<O, _>(Failure::from("unused")) })
    }

    #[tokio::test]
    async fn on_item_compares_payloads_by_the_fingerprint() {
        for (value, compares) in [
            (None, false),
            (Some("body:/cents"), true),
            (Some("off"), false),
        ] {
            let fingerprint = value.map(|value| ("IDEMPOTENCY_FINGERPRINT", value));
            let variables: Vec<_> = REQUIRED[..2].iter().copied().chain(fingerprint).collect();
            let mut settings = offline(&variables);
            settings.set_default("CONSUMER_VISIBILITY", "off");
            let consumer = format!("{:?}", settings.on_item(Ok(unused::<Change<()>>())).await);
            assert!(
                consumer.contains(&format!("checks_payload: {compares}")),
                "{consumer}"
            );
        }
    }

    #[tokio::test]
    async fn consumer_is_built_while_table_is_read() {
        let (sent, built) = (Arc::new(AtomicBool::new(false)), Arc::new(Notify::new()));
        let answered = Arc::new(AtomicBool::new(false));
        let table = StubTable {
            sent: sent.clone(),
            built: built.clone(),
            answered: answered.clone(),
        };
        let config = aws_sdk_dynamodb::Config::builder()
            .behavior_version_latest()
            .region(aws_config::Region::from_static("eu-central-1"))
            .credentials_provider(Credentials::new("a", "b", None, None, "tests"))
            .http_client(http_client_fn(move |_, _| {
                SharedHttpConnector::new(table.clone())
            }))
            .build();
        let store = DynamoStore::new(Client::from_conf(config), "idempotency");
        let was_sent = while_reading(Some(store), || {
            built.notify_one();
            sent.load(Relaxed)
        });
        assert!(was_sent.await, "built before the read");
        assert!(answered.load(Relaxed), "built after the read");
    }

    /// A table that answers a read once the consumer is built.
    #[derive(Clone, Debug)]
    struct StubTable {
        sent: Arc<AtomicBool>,
        built: Arc<Notify>,
        answered: Arc<AtomicBool>,
    }

    impl HttpConnector for StubTable {
        fn call(&self, _: HttpRequest) -> HttpConnectorFuture {
            let Self {
                sent,
                built,
                answered,
            } = self.clone();
            HttpConnectorFuture::new(async move {
                sent.store(true, Relaxed);
                built.notified().await;
                answered.store(true, Relaxed);
                let ok = 200.try_into().unwrap();
                Ok(HttpResponse::new(ok, "{}".into()))
            })
        }
    }

    #[test]
    fn every_error_of_the_layout_is_reported() {
        let error = with(&[
            ("IDEMPOTENCY_LAYOUT", "python"),
            ("IDEMPOTENCY_ATTRIBUTES", "PK"),
            ("IDEMPOTENCY_SORT_KEY", "=all"),
        ]);
        assert_eq!(error.unwrap_err().errors().len(), 3);
    }

    #[test]
    fn on_item_needs_no_table_and_has_no_default_retention() {
        let mut settings = Settings::from_vars(REQUIRED[..2].iter().copied());
        let batches = settings.batches(None);
        assert_eq!(settings.check(batches).unwrap().retention, None);
        settings.set_default("IDEMPOTENCY_RETENTION", "1h");
        let retention = settings.batches(None).unwrap().retention;
        assert_eq!(retention, Some(Duration::from_secs(3600)));
    }

    #[test]
    fn dead_letter_is_on_unless_visibility_is_off() {
        let dead_letter = |vars: &[_]| {
            let (_, _, batches) = with(vars).unwrap();
            batches.timeouts.map(|timeouts| timeouts.dead_letter)
        };
        assert_eq!(dead_letter(&[]), Some(true));
        assert_eq!(dead_letter(&[("CONSUMER_DEAD_LETTER", "off")]), Some(false));
        let (on, off) = (
            ("CONSUMER_DEAD_LETTER", "on"),
            ("CONSUMER_VISIBILITY", "off"),
        );
        assert_eq!(dead_letter(&[on]), Some(true));
        assert_eq!(dead_letter(&[off]), None);
        let error = with(&[on, off]).unwrap_err();
        assert_eq!(
            error.errors(),
            ["CONSUMER_DEAD_LETTER: `on` needs CONSUMER_VISIBILITY=on, which calls SQS too"]
        );
    }

    #[test]
    fn runtime_has_threads_from_two_vcpus_on() {
        let flavor = |setting: &str, memory: &str| {
            let mut settings = Settings::from_vars([
                ("CONSUMER_RUNTIME", setting),
                ("AWS_LAMBDA_FUNCTION_MEMORY_SIZE", memory),
            ]);
            let runtime = settings.runtime().unwrap();
            (runtime.handle().runtime_flavor(), settings.errors)
        };
        use RuntimeFlavor::{CurrentThread, MultiThread};
        for (setting, memory, expected) in [
            ("", "", CurrentThread),
            ("auto", "128", CurrentThread),
            ("auto", "3537", CurrentThread),
            ("auto", "3538", MultiThread),
            ("single", "10240", CurrentThread),
            ("multi", "128", MultiThread),
        ] {
            assert_eq!(
                flavor(setting, memory),
                (expected, vec![]),
                "{setting} {memory}"
            );
        }
        let error = "CONSUMER_RUNTIME: must be `auto`, `single` or `multi`".to_owned();
        assert_eq!(flavor("two", "10240"), (CurrentThread, vec![error]));
    }

    #[test]
    fn log_sample_is_a_number_from_0_to_1() {
        for text in ["0", "0.01", "1"] {
            let (_, _, batches) = with(&[("CONSUMER_LOG_SAMPLE_COMPLETED", text)]).unwrap();
            assert_eq!(batches.log_sample_completed.to_string(), text);
        }
        for text in ["-0.1", "1.01", "NaN", "1%", "all"] {
            let error = with(&[("CONSUMER_LOG_SAMPLE_COMPLETED", text)]).unwrap_err();
            let expected = "CONSUMER_LOG_SAMPLE_COMPLETED: must be a number from 0 to 1";
            assert_eq!(error.errors(), [expected]);
        }
    }

    #[test]
    fn fifo_after_permanent_is_continue_or_stop() {
        for (text, parsed) in [
            ("continue", FifoAfterPermanent::Continue),
            ("stop", FifoAfterPermanent::Stop),
        ] {
            let (_, _, batches) = with(&[("CONSUMER_FIFO_AFTER_PERMANENT", text)]).unwrap();
            assert_eq!(batches.fifo_after_permanent, parsed);
        }
    }

    #[cfg(feature = "s3")]
    #[test]
    fn buckets_are_names_separated_by_commas() {
        let buckets = |text: &str| {
            let (.., batches) = with(&[("CONSUMER_S3_BUCKETS", text)])?;
            Ok::<_, SettingsError>(batches.s3_bodies)
        };
        assert_eq!(
            buckets("").unwrap(),
            (vec![], 2_097_152.try_into().unwrap())
        );
        assert_eq!(buckets("orders").unwrap().0, ["orders"]);
        assert_eq!(buckets("a.b-1,invoices").unwrap().0, ["a.b-1", "invoices"]);
        let long = "x".repeat(64);
        for invalid in [
            ",",
            "orders,",
            "orders, invoices",
            "ab",
            "-orders",
            "orders.",
            "ORDERS",
            "s3://orders",
            "arn:aws:s3:::orders",
            &long,
        ] {
            let error = buckets(invalid).unwrap_err();
            assert!(
                error.to_string().contains("name of an S3 bucket"),
                "{error}"
            );
        }
    }

    #[cfg(feature = "s3")]
    #[tokio::test]
    async fn watched_function_reads_bodies_from_s3() {
        let buckets = ("CONSUMER_S3_BUCKETS", "orders");
        let variables = [&WATCHED[..], &[buckets]].concat();
        let consumer = offline(&variables).once(Ok(unused::<()>())).await.unwrap();
        let consumer = format!("{consumer:?}");
        assert!(consumer.contains("s3_bodies: Some("), "{consumer}");
    }

    #[cfg(feature = "s3")]
    #[test]
    fn outputs_in_s3_need_a_bucket_and_have_a_limit() {
        let (s3, bucket) = (
            ("IDEMPOTENCY_RESULTS", "s3"),
            ("IDEMPOTENCY_RESULT_BUCKET", "outputs"),
        );
        let limit = |text| ("IDEMPOTENCY_RESULT_INLINE_LIMIT", text);
        let place = |variables: &[_]| with(variables).map(|(_, records, _)| records.results);
        for (text, inline_limit) in [("", 65_536), ("0", 0), ("401408", 401_408)] {
            let in_s3 = ResultPlace::InS3 {
                bucket: "outputs".into(),
                inline_limit,
            };
            assert_eq!(place(&[s3, bucket, limit(text)]), Ok(in_s3));
        }
        assert_eq!(place(&[bucket]), Ok(ResultPlace::InRecord));
        let none = ("IDEMPOTENCY_RESULTS", "none");
        assert_eq!(place(&[none]), Ok(ResultPlace::Nowhere));
        let error = "IDEMPOTENCY_RESULT_BUCKET is not set (S3 bucket of large outputs)";
        assert_eq!(place(&[s3]).unwrap_err().errors(), [error]);
        for text in ["-1", "401409", "64KB"] {
            let error = place(&[s3, bucket, limit(text)]).unwrap_err();
            let told =
                "IDEMPOTENCY_RESULT_INLINE_LIMIT: must be a whole number of bytes from 0 to 401408";
            assert_eq!(error.errors(), [told]);
        }
    }

    #[cfg(not(feature = "s3"))]
    #[test]
    fn outputs_in_s3_need_the_feature() {
        let error = with(&[("IDEMPOTENCY_RESULTS", "s3")]).unwrap_err();
        let expected = "IDEMPOTENCY_RESULTS: `s3` needs the feature `s3` of the crate sqs-once";
        assert_eq!(error.errors(), [expected]);
    }

    #[cfg(not(feature = "s3"))]
    #[test]
    fn buckets_need_the_feature() {
        assert!(with(&[("CONSUMER_S3_MAX_BYTES", "1")]).is_ok());
        let error = with(&[("CONSUMER_S3_BUCKETS", "orders")]).unwrap_err();
        let expected = "CONSUMER_S3_BUCKETS: needs the feature `s3` of the crate sqs-once";
        assert_eq!(error.errors(), [expected]);
    }

    #[test]
    fn layout_is_a_preset_with_renames_and_sort_key() {
        let layout = |variables: &[_]| with(variables).map(|(table, ..)| table.layout);
        let powertools = ("IDEMPOTENCY_LAYOUT", "powertools");
        let attributes = ("IDEMPOTENCY_ATTRIBUTES", "id=PK,expires_at=ttl");
        assert_eq!(layout(&[powertools]).unwrap(), Layout::powertools());
        let names = [(Field::Id, "PK"), (Field::ExpiresAt, "ttl")];
        let names = Layout::powertools().rename(names).unwrap();
        for (sort_key, partition) in [("SK", "idempotency#payments"), ("SK=all", "all")] {
            assert_eq!(
                layout(&[powertools, attributes, ("IDEMPOTENCY_SORT_KEY", sort_key)]).unwrap(),
                names.clone().sort_key("SK", partition).unwrap()
            );
        }
        for invalid in ["PK", "key=PK", "id=status", "id="] {
            let layout = layout(&[("IDEMPOTENCY_ATTRIBUTES", invalid)]);
            assert!(layout.is_err(), "{invalid}");
        }
        for invalid in ["status", "=all", "SK="] {
            let layout = layout(&[("IDEMPOTENCY_SORT_KEY", invalid)]);
            assert!(layout.is_err(), "{invalid}");
        }
    }

    #[test]
    fn debug_output_has_no_values() {
        let settings = Settings::from_vars([("A", "SECRET")]);
        assert!(!format!("{settings:?}").contains("SECRET"));
    }
}

//! [`Settings`]: makes a configured [`Consumer`] from environment variables.

pub(crate) mod any_store;
mod function;
mod modes;
pub(crate) mod parse;
mod records;
mod shared;
pub(crate) mod variables;

use std::{
    fmt,
    ops::{Deref, DerefMut},
};

use aws_config::SdkConfig;

pub use crate::settings::variables::{SettingsError, UnknownVariable, Variables};

use self::any_store::AnyStore;
use crate::{
    aws,
    handler::Handler,
    modes::{Mode, Once},
    settings::variables::{ModeOptions, ModeSettings},
    sqs::Consumer,
};

/// The environment variables of a consumer, and the errors found in them so far.
///
/// [`once`](Self::once), [`inbox`](Self::inbox) and [`item_mode`](Self::item_mode) each build a [`Consumer`] in
/// the mode of that name. They read every variable before they report errors, so one [`SettingsError`] lists
/// all errors. An empty variable is treated as not set.
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
/// | `IDEMPOTENCY_TABLE_NAME` | required; not used by `item_mode` and `PostgresMode` | DynamoDB table for the records. Without it, `once` runs only under `cargo lambda watch`, with records in memory |
/// | `IDEMPOTENCY_ATTRIBUTES` | not set; not used by `item_mode` and `PostgresMode` | other names of the key and of the TTL attribute, such as `id=PK,expires_at=ttl` |
/// | `IDEMPOTENCY_SORT_KEY` | not set; not used by `item_mode` and `PostgresMode` | `SK` puts the key into the sort key `SK`, in the partition `idempotency#<namespace>`; `SK=TEXT` does so in the partition `TEXT` |
/// | `IDEMPOTENCY_NAMESPACE` | required | first part of every key, such as `payments`. Never share it between consumers, and never change it: every message would be a new operation |
/// | `IDEMPOTENCY_KEY` | `message-id` | what names an operation: `body:/orderId`, `attribute:NAME`, `deduplication-id` or `message-id` (choose one). With `message-id`, a message that is sent twice runs twice |
/// | `CONSUMER_ENVELOPE` | `none` | `auto` unwraps what SNS, EventBridge or S3 put around a message |
/// | `CONSUMER_MAX_BODY_BYTES` | `2097152` | largest body to read from S3; a message with a larger one fails permanently. Each MiB needs 31 MB of memory |
/// | `CONSUMER_S3_BUCKETS` | not set | S3 buckets, such as `orders,invoices`, from which to read large bodies; needs the feature `s3` |
/// | `IDEMPOTENCY_FINGERPRINT` | `body`; not used by `item_mode` | what must not change under one key: the body, parts of it (`body:/amount,/currency`), or `off` |
/// | `IDEMPOTENCY_RETENTION` | `20d` | how long a record, or the key on an item, is kept. Must exceed the retention of the queue and the dead-letter queue together |
/// | `IDEMPOTENCY_RESULT_BUCKET` | not set; not used by `item_mode` | S3 bucket for outputs over 64 KB; needs the feature `s3`. Without it, the record holds up to 392 KB |
/// | `IDEMPOTENCY_BATCHED_WRITES` | `on`; in claim mode only | concurrent claims and completions share requests; needs `dynamodb:PartiQLInsert` and `PartiQLUpdate` |
/// | `OUTBOX_TABLE_NAME` | not set; not used by `item_mode` and `PostgresMode` | DynamoDB table for the events that handlers publish |
/// | `CONSUMER_CONCURRENCY` | `auto` | how many of a batch's handlers run at a time. `auto` means 10 or, in claim mode without a result bucket, 10 to 100 depending on memory |
/// | `CONSUMER_MIN_TIME_TO_START` | `0s` | a message isn't started with less time left than this. With a value above the function's timeout (half of it, with several invocations per process) none is started, and if it's more than 10 s above, every invocation fails |
/// | `CONSUMER_VISIBILITY` | `on` | sets the visibility timeout of each failed message; `off` keeps the queue's own timeout |
/// | `CONSUMER_BACKOFF_BASE` | `10s` | backoff after the first receive. It doubles with each further receive. Half of it is random, so the first backoff is 5 to 10 seconds |
/// | `CONSUMER_BACKOFF_CAP` | `15m` | longest backoff, at most `11h 30m`. The template derives it from the function's timeout |
/// | `CONSUMER_DIRECT_DEAD_LETTERING` | `on` | copies a permanently failed message to the dead-letter queue after one receive. With `CONSUMER_VISIBILITY=off`, the default is `off`, and `on` is an error |
/// | `CONSUMER_FIFO_AFTER_PERMANENT` | `continue` | after a recorded permanent failure, `continue` runs the rest of the FIFO group, and `stop` reports it as failed |
/// | `CONSUMER_CIRCUIT_BREAKER` | `on` | after 20 failures in a row, for at least 10 keys, messages return without a claim until a probe succeeds |
/// | `CONSUMER_CALL_KEY_LIFETIME` | `20h`; in claim mode only | how long the downstream system remembers a call key (`off`: forever). If an attempt has been open for longer by the end of the invocation, the message fails permanently, unless there is a lookup |
/// | `CONSUMER_CRASH_ISOLATION` | `on`; in claim mode only | after a crash, each message that may have caused it runs alone, and waits after each further crash |
/// | `CONSUMER_METRICS` | `on` | adds metrics to the log line of each batch |
///
/// `AWS_LAMBDA_RUNTIME_API` must be set, because [`run`](crate::run) needs it.
///
/// `POWERTOOLS_METRICS_NAMESPACE` and `POWERTOOLS_SERVICE_NAME` set the metrics' namespace and service. By
/// default these are `sqs-once` and the function's name.
///
/// A variable that begins with `CONSUMER_`, `IDEMPOTENCY_` or `OUTBOX_` but is never read has no effect. A
/// warning names it, and the setting with the most similar name.
///
/// Builder methods of [`Consumer`] set what no variable can. [`Consumer::map_mode`] changes the mode's own settings.
pub struct Settings {
    variables: Variables,
    config: Option<SdkConfig>,
    /// True if the consumer should read the table at start.
    warm_up: bool,
}

impl fmt::Debug for Settings {
    /// Leaves out the values, because they may be credentials.
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
    /// Creates a consumer in [`Once`] mode from environment variables: see [`Settings`].
    ///
    /// # Errors
    ///
    /// Returns a [`SettingsError`] that lists every missing or invalid variable.
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
    /// Takes the variables from the process's environment as it is now. Replaces bytes that are not UTF-8.
    #[must_use]
    pub fn from_env() -> Self {
        Self::of(Variables::from_env())
    }

    /// Takes these variables and no others, for tests.
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
        Self::of(Variables::from_vars(variables))
    }

    const fn of(variables: Variables) -> Self {
        Self {
            variables,
            config: None,
            warm_up: true,
        }
    }

    /// Sets the configuration for calls to AWS. By default, it is [`aws::config`], which also supplies the time limits,
    /// retries and HTTP client that yours doesn't set. If yours has its own HTTP client, connect timeout or read timeout,
    /// we keep it and log a warning. Connections that died while Lambda had the process frozen then stay in use.
    ///
    /// ```no_run
    /// # async fn main_() {
    /// use sqs_once::Settings;
    ///
    /// let config = aws_config::load_defaults(aws_config::BehaviorVersion::latest()).await;
    /// let settings = Settings::from_env().sdk_config(config);
    /// # }
    /// ```
    #[must_use]
    pub fn sdk_config(self, config: SdkConfig) -> Self {
        Self {
            config: Some(aws::completed(config)),
            ..self
        }
    }

    /// Switches the read of the table at start on (the default) or off. The read opens the connection, and reports a
    /// missing table or permission before the first message arrives. The read needs `dynamodb:GetItem`. `item_mode` has no
    /// table to read.
    #[must_use]
    pub fn warm_up(self, warm_up: bool) -> Self {
        Self { warm_up, ..self }
    }

    /// Creates a consumer in a mode from another crate, such as `sqs_once_postgres::PostgresMode`. In such
    /// modes, no message runs alone after a crash.
    ///
    /// ```text
    /// let mode = PostgresMode::new(pool);
    /// let consumer = Settings::from_env().consumer(mode, Ok(handler_fn(place))).await?;
    /// ```
    ///
    /// # Errors
    ///
    /// Returns every error in the variables of the handler and the consumer.
    pub async fn consumer<M, H>(
        mut self,
        mode: M,
        handler: Result<H, SettingsError>,
    ) -> Result<Consumer<M, H>, SettingsError>
    where
        M: ModeSettings + Mode<H::Output>,
        H: Handler,
    {
        let (handler, shared) = self.read(handler)?;
        let config = self.config().await;
        let options = ModeOptions {
            retention: shared.values.retention,
            results: shared.results(&config),
            warm_up: self.warm_up,
        };
        let mode = mode.with_settings(options).await;
        let concurrency = shared.concurrency();
        Ok(shared.consumer(mode, handler, concurrency, &config))
    }

    /// Returns `read`, or every error so far. Also logs the names of unknown variables, because they may explain an error.
    /// Doesn't log the values, which may be credentials.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Variables::checked`].
    pub fn check<T>(&self, read: Result<T, SettingsError>) -> Result<T, SettingsError> {
        for unknown in self.unknown() {
            let UnknownVariable {
                name: variable,
                nearest,
                ..
            } = unknown;
            tracing::warn!(variable, nearest, "unknown variable: it has no effect");
        }
        self.checked(read)
    }

    /// Returns the SDK's configuration: the one that was set, or [`aws::config`].
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

//! Settings of a relay.

use aws_config::SdkConfig;

use super::{Settings, SettingsError};
use crate::{
    outbox::{Relay, Targets},
    telemetry::Metrics,
};

const TARGETS: &str = "OUTBOX_TARGETS";
const DEAD_LETTERS: &str = "OUTBOX_DEAD_LETTER_QUEUE_URL";

/// Settings of a relay, wherever its events are.
#[derive(Debug)]
pub(super) struct RelaySettings {
    targets: Targets,
    dead_letters: String,
    source: String,
    metrics: Option<Metrics>,
}

impl Settings {
    /// The relay of an outbox in DynamoDB, from these variables and those of metrics:
    ///
    /// | variable | default | meaning |
    /// | --- | --- | --- |
    /// | `OUTBOX_TARGETS` | required | queue, topic or event bus for each name of an event ([`Targets`](crate::outbox::Targets)) |
    /// | `OUTBOX_DEAD_LETTER_QUEUE_URL` | required | queue for events that their target refuses |
    /// | `OUTBOX_EVENT_SOURCE` | function name | `source` of events on EventBridge |
    ///
    /// # Errors
    ///
    /// Every variable that is missing or invalid, and targets that do not exist
    /// ([`Relay::check_targets`]). `IDEMPOTENCY_POSTGRES_URL` is an error: call `postgres_relay`, which
    /// needs the feature `postgres`.
    ///
    /// ```no_run
    /// use sqs_once::{Settings, outbox};
    ///
    /// # async fn main_() -> Result<(), lambda_runtime::Error> {
    /// outbox::run(Settings::from_env().relay().await?).await
    /// # }
    /// ```
    pub async fn relay(mut self) -> Result<Relay, SettingsError> {
        let problem = if cfg!(feature = "postgres") {
            "is not for the relay of a stream: call `Settings::postgres_relay`"
        } else {
            "needs the feature `postgres` of the crate sqs-once"
        };
        let other = |(), _: &str| Err(problem.to_owned());
        let other = self.changed("IDEMPOTENCY_POSTGRES_URL", (), other);
        let (relay, _threads) = (self.relay_settings(), self.has_threads());
        let relay = self.check(other.and(relay))?;
        let config = self.take_config().await;
        let relay = relay.relay(&mut self, &config)?;
        self.checked(relay).await
    }

    /// The relay of an outbox in PostgreSQL: reads the variables of [`relay`](Self::relay), and those
    /// of the database ([`in_postgres`](Self::in_postgres)). It needs one connection, the default of
    /// `IDEMPOTENCY_POSTGRES_CONNECTIONS`. With `CONSUMER_PRIME=on` it creates the tables too.
    ///
    /// # Errors
    ///
    /// Every variable that is missing or invalid, and targets that do not exist.
    ///
    /// ```no_run
    /// use sqs_once::{Settings, outbox};
    ///
    /// # async fn main_() -> Result<(), lambda_runtime::Error> {
    /// outbox::run(Settings::from_env().postgres_relay().await?).await
    /// # }
    /// ```
    #[cfg(feature = "postgres")]
    pub async fn postgres_relay(mut self) -> Result<crate::outbox::PostgresRelay, SettingsError> {
        let (database, relay) = (self.database(), self.relay_settings());
        let _threads = self.has_threads();
        let read = (|| Ok((database?, relay?)))();
        let (database, relay) = self.check(read)?;
        let config = self.take_config().await;
        let relay = relay.relay(&mut self, &config)?;
        let relay = self.checked(relay).await?;
        let store = database.prepared_store(&config, 1).await;
        Ok(crate::outbox::PostgresRelay::new(relay, store))
    }

    /// The relay of a consumer that sends events right after their commit. `None` if neither targets
    /// nor dead-letter queue are set.
    #[cfg(feature = "postgres")]
    pub(super) fn relay_after_commit(&mut self) -> Result<Option<RelaySettings>, SettingsError> {
        let is_set = [TARGETS, DEAD_LETTERS].map(|name| self.value(name).is_some());
        is_set
            .contains(&true)
            .then(|| self.relay_settings())
            .transpose()
    }

    /// Fails if a target is missing.
    async fn checked(&mut self, relay: Relay) -> Result<Relay, SettingsError> {
        match relay.check_targets().await {
            Ok(()) => Ok(relay),
            Err(missing) => Err(self.error(format!("{TARGETS} or {DEAD_LETTERS}: {missing}"))),
        }
    }

    /// Returns every error of the variables of a relay, for the command-line tool.
    #[doc(hidden)]
    pub fn problems_of_relay(&mut self) -> Vec<String> {
        #[cfg(feature = "postgres")]
        if self.value("IDEMPOTENCY_POSTGRES_URL").is_some() {
            let _database = self.database();
        }
        let (_relay, _threads) = (self.relay_settings(), self.has_threads());
        self.errors.clone()
    }

    fn relay_settings(&mut self) -> Result<RelaySettings, SettingsError> {
        let function = self.function();
        let targets = self.required(
            TARGETS,
            "queue, topic or event bus for each name of an event, as `*=URL or ARN`",
            str::parse,
        );
        let dead_letters = self.required(
            DEAD_LETTERS,
            "queue for events that their target refuses",
            str::parse::<String>,
        );
        let source = self.optional("OUTBOX_EVENT_SOURCE", &function, str::parse::<String>);
        let metrics = self.metrics(&function);
        Ok(RelaySettings {
            targets: targets?,
            dead_letters: dead_letters?,
            source: source?,
            metrics: metrics?,
        })
    }
}

impl RelaySettings {
    pub(super) fn relay(
        self,
        settings: &mut Settings,
        config: &SdkConfig,
    ) -> Result<Relay, SettingsError> {
        let relay = Relay::new(config, self.targets, &self.dead_letters);
        let relay = relay.map_err(|error| settings.error(format!("{DEAD_LETTERS}: {error}")))?;
        Ok(relay.source(self.source).metrics(self.metrics))
    }
}

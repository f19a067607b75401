//! [`DatabaseSettings`]: turns environment variables into a store or the mode.

use std::{num::NonZeroU32, time::Duration};

use aws_config::{Region, SdkConfig};
use aws_sdk_secretsmanager::Client;
use sqlx::postgres::PgConnectOptions;
use sqs_once_core::settings::{
    ModeOptions, ModeSettings, SettingsError, Variables,
    table::{
        IDEMPOTENCY_POSTGRES_AUTH, IDEMPOTENCY_POSTGRES_CONNECTIONS, IDEMPOTENCY_POSTGRES_URL,
    },
};
use tokio::time::timeout;

use crate::{
    connections::Passwords, explain::explain, migrate::create_first_tables, mode::PostgresMode,
    pool, store::PostgresStore, transaction_connection::TransactionConnection,
};

/// Time limit of the connection at start. Lambda's init phase ends after 10 seconds.
const WARM_UP_TIMEOUT: Duration = Duration::from_secs(2);

/// The settings of a database, read from environment variables. `sqs_once::Settings::consumer` builds a
/// consumer in the mode [`PostgresMode`] from them.
///
/// | variable | default | meaning |
/// | --- | --- | --- |
/// | `IDEMPOTENCY_POSTGRES_URL` | required by `PostgresMode` | `postgres://user@host:5432/database`; parameters such as `sslrootcert` follow after `?` |
/// | `IDEMPOTENCY_POSTGRES_AUTH` | `password` | `password`: from `PGPASSWORD` or the URL; `iam`: a token of RDS, signed by the function's IAM role; the ARN of a secret in Secrets Manager: its password. See authentication |
/// | `IDEMPOTENCY_POSTGRES_CONNECTIONS` | `10`; of a relay 1 | most connections of one environment; more handlers than that wait for each other |
///
/// ```no_run
/// use sqs_once::{Handler, Settings};
/// use sqs_once_postgres::{DatabaseSettings, InTransaction};
///
/// # async fn main_<H: Handler<Output = InTransaction<String>>>(handler: H) -> Result<(), lambda_runtime::Error> {
/// let mut settings = Settings::from_env();
/// let database = DatabaseSettings::read(&mut settings);
/// sqs_once::run(settings.consumer(database, Ok(handler)).await?).await
/// # }
/// ```
// No `Debug`, because the options may contain a password.
pub struct DatabaseSettings {
    options: PgConnectOptions,
    /// As set, or as the table of settings says.
    connections: NonZeroU32,
    auth: Auth,
    warm_up: bool,
}

/// Where the password comes from.
enum Auth {
    /// From `PGPASSWORD` or the URL.
    Password,
    Iam,
    Secret {
        arn: String,
        region: String,
    },
}

impl ModeSettings<SdkConfig> for DatabaseSettings {
    type Mode = PostgresMode;

    async fn build(
        self,
        options: ModeOptions,
        config: &SdkConfig,
    ) -> Result<PostgresMode, SettingsError> {
        let store = self.prepared_store(config).await;
        let mode = PostgresMode::on(store)
            .after_failure(options.after_failure)
            .results(options.results)
            .creates_tables(self.warm_up);
        Ok(match options.retention {
            Some(retention) => mode.retention(retention),
            None => mode,
        })
    }
}

impl DatabaseSettings {
    /// Reads the settings.
    ///
    /// # Errors
    ///
    /// The first variable that is missing or invalid. The others stay in the list, as with
    /// [`Variables::required`](sqs_once_core::settings::Variables::required). No error quotes the URL,
    /// because it may contain a password.
    pub fn read(variables: &mut Variables) -> Result<Self, SettingsError> {
        let meaning = "PostgreSQL database of the records, as postgres://user@host/database";
        let options = variables.required(IDEMPOTENCY_POSTGRES_URL.name, meaning, |url| {
            // The parser's error may quote the URL.
            let parsed = url.parse::<PgConnectOptions>();
            parsed.map_err(|_| "is not a URL such as postgres://user@host/database")
        });
        let auth = variables.setting(&IDEMPOTENCY_POSTGRES_AUTH, auth);
        let connections = variables.setting(&IDEMPOTENCY_POSTGRES_CONNECTIONS, |text| {
            text.parse().map_err(|_| "must be a whole number from 1")
        });
        Ok(Self {
            options: options?,
            connections: connections?,
            auth: auth?,
            warm_up: true,
        })
    }

    /// Switches the connection at start on or off. It is on by default: the consumer connects, and creates
    /// the tables of records and events ([`migrate`](crate::migrate)) if no schema of the database has them.
    /// If it is off, the first message does not create tables either.
    #[must_use]
    pub fn warm_up(self, warm_up: bool) -> Self {
        Self { warm_up, ..self }
    }

    /// Creates the store for records in this database, without connecting. `config` is used to sign RDS
    /// tokens, or to read the secret.
    ///
    /// # Errors
    ///
    /// If tokens must be signed, and `config` has no Region or no credentials.
    pub fn store(&self, config: &SdkConfig) -> Result<PostgresStore, SettingsError> {
        let passwords = self.auth.passwords(config).map_err(SettingsError::new)?;
        Ok(self.store_with(passwords))
    }

    /// Creates the store and its tables, unless [`warm_up`](Self::warm_up) is off. Logs a failure, because a
    /// later message may be able to reach the database.
    pub async fn prepared_store(&self, config: &SdkConfig) -> PostgresStore {
        let passwords = self.auth.passwords(config).unwrap_or_else(|why| {
            tracing::warn!("{why}");
            Passwords::Fixed
        });
        let store = self.store_with(passwords);
        if self.warm_up {
            let created =
                TransactionConnection::run(store.connections(), None, create_first_tables);
            match timeout(WARM_UP_TIMEOUT, created).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => tracing::warn!(
                    error = explain(&error),
                    "could not prepare the tables at start: messages fail until PostgreSQL responds"
                ),
                Err(_elapsed) => tracing::warn!(
                    "could not prepare the tables at start in time: messages fail until PostgreSQL responds"
                ),
            }
        }
        store
    }

    fn store_with(&self, passwords: Passwords) -> PostgresStore {
        let connections = self.connections.get();
        PostgresStore::new(pool(self.options.clone(), connections)).passwords(passwords)
    }
}

impl Auth {
    fn passwords(&self, config: &SdkConfig) -> Result<Passwords, &'static str> {
        match self {
            Self::Password => Ok(Passwords::Fixed),
            Self::Iam => match (config.region(), config.credentials_provider()) {
                (Some(region), Some(credentials)) => {
                    Ok(Passwords::iam(region.clone(), credentials))
                }
                _ => Err("no token for RDS: the SDK has no region or no credentials"),
            },
            Self::Secret { arn, region } => {
                let region = Region::new(region.clone());
                let config = config.to_builder().region(region).build();
                Ok(Passwords::secret(Client::new(&config), arn.clone()))
            }
        }
    }
}

/// Parses the source of the password. The error does not quote `text`, which may be a password.
fn auth(text: &str) -> Result<Auth, &'static str> {
    match text.split(':').collect::<Vec<_>>()[..] {
        ["password"] => Ok(Auth::Password),
        ["iam"] => Ok(Auth::Iam),
        ["arn", _, "secretsmanager", region, _, "secret", name] if !name.is_empty() => {
            Ok(Auth::Secret {
                arn: text.to_owned(),
                region: region.to_owned(),
            })
        }
        _ => Err("must be `password`, `iam`, or the ARN of a secret \
             (arn:aws:secretsmanager:REGION:ACCOUNT:secret:NAME)"),
    }
}

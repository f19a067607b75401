//! Settings of a consumer with records in PostgreSQL.

use std::num::NonZeroU32;

use aws_config::{Region, SdkConfig};
use aws_sdk_secretsmanager::Client;
use sqlx::postgres::PgConnectOptions;
use tokio::time::timeout;

use super::{PRIME_TIMEOUT, ResultPlace, Settings, SettingsError, on_or_off};
use crate::{
    handler::Handler,
    once::Mode,
    postgres::{
        self, connections::Passwords, explain::explain, lent::Lent, mode::InPostgres,
        store::PostgresStore,
    },
    protocol::AfterFailure,
    sqs::Consumer,
};

/// Settings of the database. No `Debug`: the options may hold a password.
pub(super) struct Database {
    options: PgConnectOptions,
    /// `None`: the concurrency of a batch, and 1 for a relay.
    connections: Option<NonZeroU32>,
    auth: Auth,
    prime: bool,
    after_failure: AfterFailure,
    results: ResultPlace,
}

/// Source of the password.
enum Auth {
    /// `PGPASSWORD` or the URL.
    Password,
    Iam,
    Secret {
        arn: String,
        region: String,
    },
}

impl Settings {
    /// A consumer in the mode [`InPostgres`], otherwise as [`once`](Self::once).
    ///
    /// Three variables take the place of the table's:
    ///
    /// | variable | default | meaning |
    /// | --- | --- | --- |
    /// | `IDEMPOTENCY_POSTGRES_URL` | required | database, as `postgres://user@host:5432/database`; parameters such as `sslrootcert` follow after `?` |
    /// | `IDEMPOTENCY_POSTGRES_AUTH` | `password` | `password`: from `PGPASSWORD` or the URL; `iam`: a token of RDS, signed by the function's role; the ARN of a secret: its password ([`PostgresStore::secret`](crate::store::PostgresStore::secret)) |
    /// | `IDEMPOTENCY_POSTGRES_CONNECTIONS` | `CONSUMER_CONCURRENCY`; of a relay 1 | connections of one environment |
    ///
    /// With `CONSUMER_PRIME=on` the consumer connects at start, and creates the tables of records and
    /// events ([`migrate`](crate::postgres::migrate)) if no schema of the database has them. A failure is
    /// logged.
    ///
    /// If `OUTBOX_TARGETS` and `OUTBOX_DEAD_LETTER_QUEUE_URL` are set, as for a relay, the consumer sends
    /// events right after their commit. One of the two alone is an error. Both need the feature `outbox`.
    /// If one of these targets does not exist, that is logged, and the events wait for the relay.
    ///
    /// # Errors
    ///
    /// Every error of the handler's variables and the consumer's.
    ///
    /// ```no_run
    /// use sqs_once::{Handler, InTransaction, Settings};
    ///
    /// # async fn main_<H: Handler<Output = InTransaction<String>>>(handler: H) -> Result<(), lambda_runtime::Error> {
    /// let consumer = Settings::from_env().in_postgres(Ok(handler)).await?;
    /// # sqs_once::run(consumer).await }
    /// ```
    pub async fn in_postgres<H: Handler>(
        mut self,
        handler: Result<H, SettingsError>,
    ) -> Result<Consumer<InPostgres, H>, SettingsError>
    where
        InPostgres: Mode<H::Output>,
    {
        let (database, batches) = (self.database(), self.batches(Some("20d")));
        let batches = batches.and_then(|batches| self.without_leases(batches));
        let relay = self.relay_after_commit();
        let read = (|| Ok((handler?, database?, batches?, relay?)))();
        let (handler, database, batches, relay) = self.check(read)?;
        let config = self.take_config().await;
        let connections = batches.concurrency.get();
        let store = database.prepared_store(&config, connections).await;
        let mode = InPostgres::on(store)
            .after_failure(database.after_failure)
            .results(database.results.results(&config))
            .creates_tables(database.prime);
        let mode = match batches.retention {
            Some(retention) => mode.retention(retention),
            None => mode,
        };
        #[cfg(feature = "outbox")]
        let mode = match relay {
            Some(relay) => {
                let relay = relay.relay(&mut self, &config)?;
                match relay.check_targets().await {
                    Ok(()) => mode.relay(relay),
                    // Messages are processed all the same, and their events wait for the relay.
                    Err(error) => {
                        tracing::error!(%error, "no events are sent right after commits");
                        mode
                    }
                }
            }
            None => mode,
        };
        #[cfg(not(feature = "outbox"))]
        let () = relay;
        Ok(batches.consumer(mode, handler, &config))
    }

    /// Without the feature `outbox` the consumer has no relay.
    #[cfg(not(feature = "outbox"))]
    fn relay_after_commit(&mut self) -> Result<(), SettingsError> {
        self.changed("OUTBOX_TARGETS", (), |(), _| {
            Err("needs the feature `outbox` of the crate sqs-once".to_owned())
        })
    }

    pub(super) fn database(&mut self) -> Result<Database, SettingsError> {
        let meaning = "PostgreSQL database of the records, as postgres://user@host/database";
        let options = self.required("IDEMPOTENCY_POSTGRES_URL", meaning, |url| {
            // The error of the parser may quote the URL, which may hold a password.
            let parsed = url.parse::<PgConnectOptions>();
            parsed.map_err(|_| "is not a URL such as postgres://user@host/database")
        });
        let auth = self.optional("IDEMPOTENCY_POSTGRES_AUTH", "password", auth);
        let connections = self.changed("IDEMPOTENCY_POSTGRES_CONNECTIONS", None, |_, text| {
            let number = text.parse().map(Some);
            number.map_err(|_| "must be a whole number from 1".to_owned())
        });
        let prime = self.optional("CONSUMER_PRIME", "on", on_or_off);
        let (after_failure, results) = (self.after_failure(), self.results());
        Ok(Database {
            options: options?,
            connections: connections?,
            auth: auth?,
            prime: prime?,
            after_failure: after_failure?,
            results: results?,
        })
    }
}

impl Settings {
    /// Returns every error of the variables of a consumer with records in PostgreSQL, for the
    /// command-line tool.
    #[doc(hidden)]
    pub fn problems_in_postgres(&mut self) -> Vec<String> {
        let _database = self.database();
        let batches = self.batches(Some("20d"));
        let _batches = batches.and_then(|batches| self.without_leases(batches));
        #[cfg(feature = "outbox")]
        let _relay = self.relay_after_commit();
        // The tool may have fewer features than the consumer.
        #[cfg(not(feature = "outbox"))]
        for name in [
            "OUTBOX_TARGETS",
            "OUTBOX_DEAD_LETTER_QUEUE_URL",
            "OUTBOX_EVENT_SOURCE",
        ] {
            let _unchecked = self.value(name);
        }
        let _threads = self.has_threads();
        self.errors.clone()
    }

    /// The records in PostgreSQL, for the command-line tool. `config` signs tokens of RDS.
    ///
    /// # Errors
    ///
    /// Every error of the database's variables.
    #[doc(hidden)]
    pub fn postgres_store(&mut self, config: &SdkConfig) -> Result<PostgresStore, SettingsError> {
        let database = self.database();
        let database = self.check(database)?;
        let passwords = database.auth.passwords(config);
        let passwords = passwords.map_err(|why| self.error(why.into()))?;
        Ok(database.store(passwords, 1))
    }
}

impl Database {
    /// The store, whose tables are created now unless `CONSUMER_PRIME` is off. A failure is logged.
    /// `connections` is their number unless a variable sets it.
    pub(super) async fn prepared_store(
        &self,
        config: &SdkConfig,
        connections: usize,
    ) -> PostgresStore {
        let passwords = self.auth.passwords(config).unwrap_or_else(|why| {
            tracing::warn!("{why}");
            Passwords::Fixed
        });
        let store = self.store(passwords, connections);
        if self.prime {
            let created = Lent::run(store.connections(), postgres::create_first_tables);
            match timeout(PRIME_TIMEOUT, created).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => tracing::warn!(
                    error = explain(&error),
                    "could not prepare the tables at start: messages fail until PostgreSQL answers"
                ),
                Err(_elapsed) => tracing::warn!(
                    "could not prepare the tables at start in time: messages fail until PostgreSQL answers"
                ),
            }
        }
        store
    }

    fn store(&self, passwords: Passwords, connections: usize) -> PostgresStore {
        let connections = self.connections.map_or_else(
            || u32::try_from(connections).unwrap_or(u32::MAX),
            NonZeroU32::get,
        );
        let pool = postgres::pool(self.options.clone(), connections);
        PostgresStore::new(pool).passwords(passwords)
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

/// The error does not quote `text`, which may be a password.
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

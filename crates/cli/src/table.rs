//! The table of records that a command reads, in DynamoDB or PostgreSQL.

use aws_config::SdkConfig;
use clap::Args;
use sqs_once::{
    Settings,
    internal::{RecordFilter, RecordPage, StoredRecord},
    protocol::{Record, Timestamp},
    store::{DynamoStore, StoreError},
};
#[cfg(feature = "postgres")]
use {
    sqlx::postgres::{PgConnectOptions, PgSslMode},
    sqs_once_postgres::PostgresStore,
};

use crate::{aws, output::Error};

/// The table and the attribute names of its records. The consumer's variables are the defaults of the options.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Table of the records")]
pub(crate) struct Table {
    /// DynamoDB table of the records.
    #[arg(long, env = "IDEMPOTENCY_TABLE_NAME", value_name = "NAME")]
    table: Option<String>,
    /// Other attribute names in DynamoDB, as in `id=PK,expires_at=ttl`.
    #[arg(long, env = "IDEMPOTENCY_ATTRIBUTES", value_name = "NAMES")]
    attributes: Option<String>,
    /// Sort key of the DynamoDB table, as in `SK=payments`.
    #[arg(long, env = "IDEMPOTENCY_SORT_KEY", value_name = "NAME=PARTITION")]
    sort_key: Option<String>,
    /// PostgreSQL database of the records, in place of --table: postgres://user@host/database. Set
    /// PGPASSWORD for the password.
    #[arg(long, env = "DATABASE_URL", hide_env_values = true, value_name = "URL")]
    postgres: Option<String>,
}

impl Table {
    /// Opens the records of the table that the options name.
    ///
    /// # Errors
    ///
    /// If no table or two tables are named, or an option is invalid.
    pub(crate) async fn open(&self) -> Result<Records, Error> {
        match (named(&self.table), named(&self.postgres)) {
            (Some(_), None) => {
                let store = self.dynamodb(&aws::config().await?)?;
                Ok(Records::DynamoDb(Box::new(store)))
            }
            (None, Some(url)) => postgres(url),
            (Some(_), Some(_)) => Err(Error::usage(
                "two tables are named: pass --table or --postgres, and unset the variable of the other \
                 (IDEMPOTENCY_TABLE_NAME, DATABASE_URL)",
            )),
            (None, None) => Err(Error::usage(
                "no table is named: pass --table NAME or --postgres URL, or set IDEMPOTENCY_TABLE_NAME or \
                 DATABASE_URL as the consumer has it",
            )),
        }
    }

    pub(crate) fn is_named(&self) -> bool {
        named(&self.table).or(named(&self.postgres)).is_some()
    }

    fn dynamodb(&self, config: &SdkConfig) -> Result<DynamoStore, Error> {
        if self.sort_key.as_ref().is_some_and(|key| !key.contains('=')) {
            return Err(Error::usage(
                "--sort-key must name the partition too, as in SK=idempotency#payments",
            ));
        }
        let variables = [
            ("IDEMPOTENCY_TABLE_NAME", &self.table),
            ("IDEMPOTENCY_ATTRIBUTES", &self.attributes),
            ("IDEMPOTENCY_SORT_KEY", &self.sort_key),
        ];
        let given = variables
            .into_iter()
            .filter_map(|(name, value)| Some((name, value.as_deref()?)));
        Settings::from_vars(given)
            .store(config)
            .map_err(Error::usage)
    }
}

/// Returns the value of an option. An empty variable is treated as not set, as in the consumer.
fn named(option: &Option<String>) -> Option<&str> {
    option.as_deref().filter(|value| !value.is_empty())
}

#[cfg(feature = "postgres")]
fn postgres(url: &str) -> Result<Records, Error> {
    // The parser's error may quote the URL, which may contain a password.
    let options: PgConnectOptions = url.parse().map_err(|_| {
        Error::usage("DATABASE_URL is not a URL such as postgres://user@host/database")
    })?;
    let pool = sqlx::postgres::PgPoolOptions::new()
        .max_connections(1)
        .connect_lazy_with(secured(options));
    Ok(Records::Postgres(PostgresStore::new(pool)))
}

/// Replaces PostgreSQL's default, `prefer`, which accepts any certificate, and also a connection without TLS.
#[cfg(feature = "postgres")]
fn secured(options: PgConnectOptions) -> PgConnectOptions {
    let host = options.get_host();
    let address = host.trim_start_matches('[').trim_end_matches(']').parse();
    let is_this_machine = options.get_socket().is_some()
        || host == "localhost"
        || address.is_ok_and(|address: std::net::IpAddr| address.is_loopback());
    if matches!(options.get_ssl_mode(), PgSslMode::Prefer) && !is_this_machine {
        options.ssl_mode(PgSslMode::VerifyFull)
    } else {
        options
    }
}

#[cfg(not(feature = "postgres"))]
fn postgres(_url: &str) -> Result<Records, Error> {
    Err(Error::usage(
        "--postgres needs a tool with the feature `postgres`: install sqs-once-cli with --features postgres",
    ))
}

/// Records in one of the two stores.
#[derive(Debug)]
pub(crate) enum Records {
    DynamoDb(Box<DynamoStore>),
    #[cfg(feature = "postgres")]
    Postgres(PostgresStore),
}

impl Records {
    /// Reads a record.
    pub(crate) async fn show(&self, key: &str) -> Result<Option<StoredRecord>, StoreError> {
        match self {
            Self::DynamoDb(store) => store.show(key).await,
            #[cfg(feature = "postgres")]
            Self::Postgres(store) => store.show(key).await,
        }
    }

    /// Returns whether an open transaction claims this key, which has no record.
    pub(crate) async fn has_open_claim(&self, key: &str) -> Result<bool, StoreError> {
        match (self, key) {
            (Self::DynamoDb(_), _) => Ok(false),
            #[cfg(feature = "postgres")]
            (Self::Postgres(store), key) => store.has_open_claim(key).await,
        }
    }

    /// Reads a page of records.
    pub(crate) async fn list(
        &self,
        filter: &RecordFilter,
        after: Option<&str>,
        limit: i32,
        now: Timestamp,
    ) -> Result<RecordPage, StoreError> {
        match self {
            Self::DynamoDb(store) => store.list(filter, after, limit, now).await,
            #[cfg(feature = "postgres")]
            Self::Postgres(store) => store.list(filter, after, limit, now).await,
        }
    }

    /// Replaces a record that is not completed, if it is still as it was shown.
    pub(crate) async fn replace(
        &self,
        shown: &StoredRecord,
        to: Record,
    ) -> Result<bool, StoreError> {
        match self {
            Self::DynamoDb(store) => store.replace(shown, to).await,
            #[cfg(feature = "postgres")]
            Self::Postgres(store) => store.replace(shown, to).await,
        }
    }

    /// Deletes a record, if it is still as it was shown.
    pub(crate) async fn delete_record(&self, shown: &StoredRecord) -> Result<bool, StoreError> {
        match self {
            Self::DynamoDb(store) => store.delete_record(shown).await,
            #[cfg(feature = "postgres")]
            Self::Postgres(store) => store.delete_record(shown).await,
        }
    }
}

#[cfg(all(test, feature = "postgres"))]
mod tests {
    use super::*;

    #[test]
    fn other_host_needs_verified_tls() {
        let mode = |url: &str| format!("{:?}", secured(url.parse().unwrap()).get_ssl_mode());
        for (url, expected) in [
            ("postgres://db.example/orders", "VerifyFull"),
            ("postgres://10.0.0.1/orders?sslmode=prefer", "VerifyFull"),
            ("postgres://db.example/orders?sslmode=require", "Require"),
            ("postgres://127.0.0.1/orders", "Prefer"),
            ("postgres://[::1]/orders", "Prefer"),
            ("postgres://localhost/orders", "Prefer"),
        ] {
            assert_eq!(mode(url), expected, "{url}");
        }
    }
}

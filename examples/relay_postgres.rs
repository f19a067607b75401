//! The relay of an outbox in PostgreSQL. A schedule invokes it once a minute, and it sends the events that
//! consumers have published. docs/outbox.md says how to deploy it.
//!
//! `DATABASE_URL` names the database. The relay logs in by IAM (`rds/iam.rs`), unless the server accepts the password in
//! the URL or in `PGPASSWORD`.

#[path = "rds/iam.rs"]
mod rds_iam;

use sqlx::{PgPool, postgres::PgPoolOptions};
use sqs_once::{Settings, telemetry};
use sqs_once_outbox::{PostgresRelay, Relay};
use sqs_once_postgres::PostgresStore;

fn pool(url: &str) -> Result<PgPool, &'static str> {
    PgPoolOptions::new()
        // A relay needs one connection, and tests it with its first statement.
        .max_connections(1)
        .test_before_acquire(false)
        .idle_timeout(None)
        .max_lifetime(None)
        .connect_lazy(url)
        // The parser's error could quote the URL, and with it a password.
        .map_err(|_| "is not a URL such as postgres://user@host/database")
}

/// Creates the relay from these settings.
pub async fn relay(mut settings: Settings) -> Result<PostgresRelay, lambda_runtime::Error> {
    let pool = settings.required("DATABASE_URL", "database of the events", pool)?;
    let config = settings.config().await;
    let store = PostgresStore::new(pool)
        .password(move |options| rds_iam::with_token(config.clone(), options));
    Ok(PostgresRelay::new(
        Relay::from_settings(settings).await?,
        store,
    ))
}

#[tokio::main]
async fn main() -> Result<(), lambda_runtime::Error> {
    telemetry::init();
    sqs_once_outbox::run(relay(Settings::from_env()).await?).await
}

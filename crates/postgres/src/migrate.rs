//! The migration that creates the tables for records and events.

use sqlx::{Error, PgPool};

const MIGRATION: &str = include_str!("../migrations/1_sqs_once.sql");

/// Creates the tables for records, `sqs_once_records`, and for published events, `sqs_once_outbox`, unless they exist. Call
/// it in your application's migrations, before the first message. A consumer never creates a table. With an empty one in
/// place of a table that it can't find, it would run every message again.
///
/// The function runs this crate's `migrations/1_sqs_once.sql` in one transaction. You can also run a copy of that file with
/// `psql` or `sqlx migrate`.
///
/// The user needs `CREATE` on the first schema of the search path, and then owns the tables. A consumer's user
/// needs `SELECT`, `INSERT`, `UPDATE` and `DELETE` on the table of records and, to publish, `INSERT` on the
/// table of events. A relay's user needs `SELECT`, `UPDATE` and `DELETE` on the table of events.
///
/// # Errors
///
/// Returns an error if the connection fails or a privilege is missing.
///
/// ```no_run
/// # async fn main_() -> Result<(), sqlx::Error> {
/// let pool = sqlx::PgPool::connect("postgres://admin@127.0.0.1/orders").await?;
/// sqs_once_postgres::migrate(&pool).await?;
/// # Ok(()) }
/// ```
pub async fn migrate(pool: &PgPool) -> Result<(), Error> {
    sqlx::raw_sql(MIGRATION).execute(pool).await?;
    Ok(())
}

//! The migration that creates the tables of records and of events.

use sqlx::{Error, PgPool};

const MIGRATION: &str = include_str!("../migrations/1_sqs_once.sql");

/// Creates the tables of records, `sqs_once_records`, and of published events, `sqs_once_outbox`, unless they
/// exist. Call it in the migrations of your application, before the first message: a consumer never creates
/// a table, because an empty one in place of a table that it doesn't find would run each message again.
///
/// It runs `migrations/1_sqs_once.sql` of this crate in one transaction. You can also run a copy of that file
/// with `psql` or `sqlx migrate`.
///
/// The user needs `CREATE` on the first schema of the search path, and then owns the tables. The user of a
/// consumer needs `SELECT`, `INSERT`, `UPDATE` and `DELETE` on the table of records and, to publish, `INSERT`
/// on the table of events. The user of a relay needs `SELECT`, `UPDATE` and `DELETE` on the table of events.
///
/// # Errors
///
/// Errors of the connection, and a missing privilege.
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

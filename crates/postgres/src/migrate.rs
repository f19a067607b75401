//! The tables of records and of events.

use sqlx::{Error, PgConnection, PgPool};

use super::{connections::Connections, transaction_connection::TransactionConnection};

/// Comment of the current tables, on that of the records. Later tables have another number.
const CURRENT: &str = "sqs-once 3";

/// Creates the table of records, `sqs_once_records`, and that of published events,
/// `sqs_once_outbox`, in the first schema of the search path. Adds the second to the first, and the
/// columns that an older version did not have. Does nothing if the tables are current, and may run in
/// several processes at a time. Waits at most a second for a table.
///
/// Consumers of the older version go on beside the new columns. The new version needs the columns:
/// where its database user does not own the table, the owner adds them before the deployment.
///
/// Current tables need no privilege to be recognized. To create them, the database user needs `CREATE`
/// on the schema. It then owns them. The user of a consumer needs `SELECT`, `INSERT`, `UPDATE` and
/// `DELETE` on the table of records. To publish, it needs `INSERT` on that of events. The user of a
/// relay needs `SELECT`, `UPDATE` and `DELETE` there.
///
/// # Errors
///
/// Errors of the connection, and a missing privilege.
///
/// ```no_run
/// # async fn main_() -> Result<(), Box<dyn std::error::Error>> {
/// let pool = sqs_once_postgres::pool("postgres://admin@127.0.0.1/orders".parse()?, 1);
/// sqs_once_postgres::migrate(&pool).await?;
/// # Ok(()) }
/// ```
pub async fn migrate(pool: &PgPool) -> Result<(), Error> {
    TransactionConnection::run(&Connections::new(pool.clone()), None, create_tables).await
}

/// The database has tables of this library which the search path does not find, or under other names.
#[derive(Clone, Debug, thiserror::Error)]
#[error(
    "the search path finds no table sqs_once_records, but this database has {found}: correct the search \
     path or the name, because new tables would know of no earlier message; or, for new tables, run \
     `sqs_once_postgres::migrate`"
)]
pub(crate) struct TablesElsewhere {
    found: String,
}

/// Creates the tables on this connection as [`migrate`] does, unless the database has such tables
/// elsewhere: empty ones in their place would run every redelivered message again.
pub(crate) async fn create_first_tables(connection: &mut PgConnection) -> Result<(), Error> {
    // The comment stays with a table that was renamed.
    const ELSEWHERE: &str = "\
        SELECT string_agg(oid::regclass::text, ', ') FROM pg_class \
        WHERE to_regclass('sqs_once_records') IS NULL AND relkind IN ('r', 'p', 'v', 'f') \
        AND (relname = 'sqs_once_records' OR obj_description(oid, 'pg_class') LIKE 'sqs-once %')";
    let found: Option<String> = sqlx::query_scalar(ELSEWHERE)
        .fetch_one(&mut *connection)
        .await?;
    match found {
        Some(found) => Err(Error::Configuration(TablesElsewhere { found }.into())),
        None => create_tables(connection).await,
    }
}

/// Creates the tables on this connection: see [`migrate`].
async fn create_tables(connection: &mut PgConnection) -> Result<(), Error> {
    let version = "SELECT obj_description(to_regclass('sqs_once_records'), 'pg_class')";
    let version: Option<String> = sqlx::query_scalar(version)
        .fetch_one(&mut *connection)
        .await?;
    if version.as_deref() != Some(CURRENT) {
        sqlx::raw_sql(include_str!("tables.sql"))
            .execute(connection)
            .await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comment_marks_the_tables_as_current() {
        let comment = format!("COMMENT ON TABLE sqs_once_records IS '{CURRENT}';");
        assert!(include_str!("tables.sql").contains(&comment));
    }
}

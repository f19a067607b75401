//! The tables of records and of events.

use sqlx::{Error, PgConnection, PgPool};

use super::{connections::Connections, transaction_connection::TransactionConnection};

/// Comment on the table of records that marks the current tables. Later versions of the tables have a
/// different number.
const CURRENT: &str = "sqs-once 3";

/// Creates the table of records, `sqs_once_records`, and that of published events, `sqs_once_outbox`, in the
/// first schema of the search path. If only the table of records exists, adds the other one, and the columns
/// that an older version lacks. Does nothing if the tables are current. May run in several processes at a
/// time. Waits at most a second for a table.
///
/// Consumers of the older version keep working with the new columns. The new version needs the columns, so if
/// its database user does not own the table, let the owner add them before the deployment.
///
/// To recognize current tables, the database user needs no privilege. To create them, it needs `CREATE` on
/// the schema, and then owns them. The user of a consumer needs `SELECT`, `INSERT`, `UPDATE` and `DELETE` on
/// the table of records and, to publish, `INSERT` on the table of events. The user of a relay needs `SELECT`,
/// `UPDATE` and `DELETE` on the table of events.
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

/// The error if the database has tables of this library that the search path does not find, or that have
/// other names.
#[derive(Clone, Debug, thiserror::Error)]
#[error(
    "the search path finds no table sqs_once_records, but this database has {found}: correct the search \
     path or the name, because new tables would know of no earlier message; or, for new tables, run \
     `sqs_once_postgres::migrate`"
)]
pub(crate) struct TablesElsewhere {
    found: String,
}

/// Creates the tables on this connection as [`migrate`] does, unless the database has such tables elsewhere.
/// With empty tables in place of those, every redelivered message would run again.
pub(crate) async fn create_first_tables(connection: &mut PgConnection) -> Result<(), Error> {
    // A table keeps its comment when it is renamed.
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

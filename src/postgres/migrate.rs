//! The table of records.

use sqlx::{Error, PgPool};

use super::{connections::Connections, lent::Lent};

/// Comment of the current table. A later version of the table has another number.
const CURRENT: &str = "sqs-once 1";

/// Creates the table of records, `sqs_once_records`, in the first schema of the search path. Does
/// nothing if the table is current, and may run in several processes at a time.
///
/// The current table needs no privilege to be recognized. To create it, the role needs `CREATE` on
/// the schema. A consumer needs `SELECT`, `INSERT`, `UPDATE` and `DELETE` on the table.
///
/// # Errors
///
/// Errors of the connection, and a missing privilege.
///
/// ```no_run
/// # async fn main_() -> Result<(), Box<dyn std::error::Error>> {
/// let pool = sqs_once::postgres::pool("postgres://admin@127.0.0.1/orders".parse()?, 1);
/// sqs_once::postgres::migrate(&pool).await?;
/// # Ok(()) }
/// ```
pub async fn migrate(pool: &PgPool) -> Result<(), Error> {
    create_table(&Connections::new(pool.clone())).await
}

pub(crate) async fn create_table(connections: &Connections) -> Result<(), Error> {
    Lent::run(connections, async |connection| {
        let version = "SELECT obj_description(to_regclass('sqs_once_records'), 'pg_class')";
        let version: Option<String> = sqlx::query_scalar(version)
            .fetch_one(&mut *connection)
            .await?;
        if version.as_deref() != Some(CURRENT) {
            sqlx::raw_sql(include_str!("records.sql"))
                .execute(connection)
                .await?;
        }
        Ok(())
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_has_comment_that_marks_it_current() {
        let comment = format!("COMMENT ON TABLE sqs_once_records IS '{CURRENT}';");
        assert!(include_str!("records.sql").contains(&comment));
    }
}

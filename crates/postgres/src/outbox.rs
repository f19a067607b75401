//! The table of published events, `sqs_once_outbox`.
//!
//! A group's rows are in commit order. A transaction locks the groups of its events before their rows get numbers, and
//! PostgreSQL releases the locks after the commit. So no new row of a group can appear before a row that was already read.
//! An event without a group has no order and takes no lock.

use sqlx::{AssertSqlSafe, Error, PgConnection};

use sqs_once::{internal::Published, protocol::Timestamp};

/// Locks the groups, and inserts the events in order.
///
/// All transactions lock groups in the same order, so that no two of them deadlock. The join needs the number of locks,
/// which is known only when the last lock is taken. So no row gets its number earlier.
///
/// Groups share 256 locks, because a server's lock table has room for only a few thousand across all sessions.
/// The number of the first lock keeps them apart from the application's own locks.
const INSERT: &str = "\
    INSERT INTO sqs_once_outbox (id, group_id, name, body, published_at) \
    SELECT id, group_id, name, body, $5 \
    FROM (SELECT count(pg_advisory_xact_lock(lock)) AS locked FROM \
            (SELECT DISTINCT 8390891638214062000 + (hashtextextended(name, 0) & 255) AS lock \
             FROM unnest($1::text[], $2::text[]) AS event (id, name) WHERE id <> name \
             ORDER BY lock) AS locks) AS groups \
    JOIN unnest($1::text[], $2::text[], $3::text[], $4::text[]) WITH ORDINALITY \
        AS event (id, group_id, name, body, place) ON locked >= 0 \
    ORDER BY place";

/// Inserts an operation's events in the open transaction. The commit publishes them.
pub(crate) async fn insert(
    connection: &mut PgConnection,
    events: &[Published],
    published_at: Timestamp,
) -> Result<(), Error> {
    // PostgreSQL rejects U+0000, but no text in an event contains it.
    let column = |of: fn(&Published) -> &String| -> Vec<String> {
        events.iter().map(|event| of(event).clone()).collect()
    };
    let insert = sqlx::query(INSERT)
        .bind(column(|event| &event.id))
        .bind(column(|event| &event.group))
        .bind(column(|event| &event.name))
        .bind(column(|event| &event.body))
        .bind(i64::try_from(published_at.as_millis()).unwrap_or(i64::MAX));
    insert.execute(connection).await?;
    Ok(())
}

/// A row of the table `sqs_once_outbox`.
#[derive(Debug)]
pub struct Row {
    /// The row's number, which follows the commit order of its group.
    pub sequence: i64,
    /// The event.
    pub event: Published,
    /// When the operation that published the event was recorded.
    pub published_at: Timestamp,
}

/// Maximum number of groups in one request.
pub const MAX_GROUPS: usize = 100;

/// A request reads at least this many rows of each group.
pub const MIN_ROWS_OF_GROUP: usize = 10;

/// Maximum bytes of bodies in one request. A row is left out if the bodies before it already have that many.
pub const MAX_BYTES: usize = 8 * 1024 * 1024;

/// Returns when the oldest event was published, even if another relay has locked it or its next attempt is not
/// due. Finds it by row number, which has an index.
///
/// # Errors
///
/// Returns an error if PostgreSQL fails.
pub async fn oldest(connection: &mut PgConnection) -> Result<Option<Timestamp>, Error> {
    const OLDEST: &str = "SELECT published_at FROM sqs_once_outbox ORDER BY sequence LIMIT 1";
    let oldest: Option<i64> = sqlx::query_scalar(OLDEST)
        .fetch_optional(connection)
        .await?;
    Ok(oldest.map(published_at))
}

/// Converts a value of the column `published_at`.
fn published_at(millis: i64) -> Timestamp {
    Timestamp::from_millis(u64::try_from(millis).unwrap_or_default())
}

/// Locks the first row of each group whose next attempt is due. Returns the first rows of these groups, in
/// order. The groups share `max_rows`, but each gets at least [`MIN_ROWS_OF_GROUP`].
///
/// The lock on a group's first row locks the group. The result leaves out groups that another relay has locked.
/// It also leaves out groups whose first row was sent since the statement began, because in the statement's
/// snapshot the next row isn't the first.
///
/// With `None`, looks at all groups. The server then reads every row of the table if fewer than [`MAX_GROUPS`] groups are due.
///
/// # Errors
///
/// Returns an error if PostgreSQL fails.
pub async fn lock_due(
    connection: &mut PgConnection,
    groups: Option<&[String]>,
    max_rows: usize,
) -> Result<Vec<Row>, Error> {
    use sqlx::Row as _;

    // One index lookup per row of the table. The `ORDER BY` prevents other plans, even with old statistics.
    // `NOT EXISTS` would compare a group's rows with each other.
    const OF_ALL: &str = "sequence = (\
        SELECT sequence FROM sqs_once_outbox AS first WHERE first.group_id >= head.group_id \
        ORDER BY first.group_id, first.sequence LIMIT 1)";
    // Two index lookups per group, however many rows the group has.
    const OF_GROUPS: &str = "sequence IN (\
        SELECT first.sequence FROM unnest($1::text[]) AS wanted CROSS JOIN LATERAL (\
            SELECT group_id, sequence FROM sqs_once_outbox WHERE group_id >= wanted \
            ORDER BY group_id, sequence LIMIT 1) AS first \
        WHERE first.group_id = wanted)";
    let is_first_of_its_group = groups.map_or(OF_ALL, |_| OF_GROUPS);
    // The columns are in the order of `Row`.
    let select = format!(
        "WITH heads AS MATERIALIZED (\
            SELECT group_id FROM sqs_once_outbox AS head \
            WHERE next_attempt_at <= extract(epoch FROM clock_timestamp()) * 1000 \
            AND {is_first_of_its_group} \
            ORDER BY sequence LIMIT {MAX_GROUPS} FOR UPDATE OF head SKIP LOCKED), \
         waiting AS (\
            SELECT event.*, sum(octet_length(body)) OVER (ORDER BY place, sequence) AS bytes \
            FROM heads CROSS JOIN LATERAL (\
                SELECT *, row_number() OVER (ORDER BY sequence) AS place FROM sqs_once_outbox \
                WHERE sqs_once_outbox.group_id = heads.group_id ORDER BY sequence \
                LIMIT (SELECT greatest({MIN_ROWS_OF_GROUP}, {max_rows} / count(*)) FROM heads)\
            ) AS event) \
         SELECT sequence, id, group_id, name, body, published_at FROM waiting \
         WHERE bytes - octet_length(body) < {MAX_BYTES} ORDER BY sequence"
    );
    let mut select = sqlx::query(AssertSqlSafe(select));
    if let Some(groups) = groups {
        select = select.bind(groups);
    }
    let rows = select.fetch_all(connection).await?;
    let row = |row: sqlx::postgres::PgRow| {
        Ok(Row {
            sequence: row.try_get(0)?,
            event: Published {
                id: row.try_get(1)?,
                group: row.try_get(2)?,
                name: row.try_get(3)?,
                body: row.try_get(4)?,
            },
            published_at: published_at(row.try_get(5)?),
        })
    };
    rows.into_iter().map(row).collect()
}

/// Deletes the rows that are `done`. Postpones the rows that `failed` by 5 seconds, doubling each time, up to 5 minutes.
///
/// # Errors
///
/// Returns an error if PostgreSQL fails.
pub async fn settle(
    connection: &mut PgConnection,
    done: &[i64],
    failed: &[i64],
) -> Result<(), Error> {
    const SETTLE: &str = "\
        WITH done AS (DELETE FROM sqs_once_outbox WHERE sequence = ANY($1)) \
        UPDATE sqs_once_outbox SET attempts = attempts + 1, next_attempt_at = \
            extract(epoch FROM clock_timestamp()) * 1000 + least(300000, 5000 * 2 ^ least(attempts, 6)) \
        WHERE sequence = ANY($2)";
    let settle = sqlx::query(SETTLE).bind(done).bind(failed);
    settle.execute(connection).await?;
    Ok(())
}

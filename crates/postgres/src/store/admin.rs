//! Records in PostgreSQL as an operator reads and changes them, with the command-line tool
//! `sqs-once`.

use std::sync::Arc;
use std::time::Duration;

use sqlx::{Error, PgConnection, Row as _, postgres::PgRow};
use tokio::time::{Instant, timeout};

use super::{
    PostgresStore, STORE,
    row::{self, columns, from_text, int, millis, text},
    store_error,
};
use crate::{
    explain::{explain, is_lock_timeout, is_table_missing},
    transaction_connection::{Limits, TransactionConnection},
};
use sqs_once_core::{
    protocol::{Key, Record, State, Timestamp},
    store::{
        StoreError,
        admin::{RecordFilter, RecordPage, RecordStatus, StoredRecord},
    },
};

/// The transaction that wrote a row, as the row's version.
struct Version(String);

/// Maximum time of a request.
const MAX_TIME: Duration = Duration::from_secs(30);

/// Longest wait for the lock of a record. A claim with a lease holds the lock for one statement.
const MAX_LOCK_WAIT: Duration = Duration::from_millis(200);

/// The columns of a record, and the session whose open transaction locks or replaces the row. Each open
/// transaction that writes holds the lock of its own id.
macro_rules! select {
    ($result:literal) => {
        concat!(
            "SELECT id, ",
            columns!($result),
            ", r.xmin::text AS version, pid FROM sqs_once_records AS r LEFT JOIN (SELECT pid, \
             transactionid FROM pg_locks WHERE locktype = 'transactionid' AND mode = 'ExclusiveLock' \
             AND granted) AS open ON transactionid = r.xmax WHERE "
        )
    };
}

const FIND: &str = concat!(select!("result"), "id = $1");

/// Number and last key of the rows of a page. The filter then reads these rows, so a page takes a bounded
/// time even if few of its records pass the filter.
const PAGE: &str = "SELECT count(*) AS read, max(id) AS last FROM (SELECT id FROM sqs_once_records \
    WHERE id > $1 AND id >= $2 AND starts_with(id, $2) ORDER BY id LIMIT $3) AS page";
const LIST: &str = concat!(
    select!("NULL::text AS result"),
    "id > $1 AND id <= $3 AND starts_with(id, $2) AND expires_at >= $4 \
     AND ($5::text IS NULL OR status = $5) AND (NOT $6 OR lease_until < $7) ORDER BY id"
);

const RELEASE: &str = "UPDATE sqs_once_records SET lease_until = $3, updated_at = $3, exclusive_attempts = NULL \
    WHERE id = $1 AND xmin::text = $2";

/// Reads the tables of this library, how many connections the server accepts from ordinary users, and the
/// privileges of the database user $1. The columns of the last migration show whether the records are
/// current.
const EXAMINE: &str = "\
    WITH tables AS (\
        SELECT kind, to_regclass(name) AS found, (\
            SELECT string_agg(oid::regclass::text, ', ') FROM pg_class \
            WHERE relname = name AND relkind IN ('r', 'p')) AS elsewhere \
        FROM (VALUES ('records', 'sqs_once_records'), ('outbox', 'sqs_once_outbox')) AS t (kind, name)), \
    facts AS (\
        SELECT kind, json_build_object(\
            'name', found::text, \
            'elsewhere', elsewhere, \
            'is_current', CASE WHEN found IS NOT NULL THEN kind = 'outbox' OR (\
                SELECT count(*) = 2 FROM pg_attribute WHERE attrelid = found AND NOT attisdropped \
                AND attname IN ('fingerprint_scheme', 'exclusive_attempts')) END, \
            'privileges', ARRAY(\
                SELECT privilege FROM unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) AS privilege, \
                    pg_roles \
                WHERE rolname = $1 AND has_table_privilege(pg_roles.oid, found, privilege))) AS fact \
        FROM tables) \
    SELECT json_build_object(\
        'database', current_database(), \
        'connections', (\
            SELECT least(\
                current_setting('max_connections')::int \
                    - current_setting('superuser_reserved_connections')::int \
                    - coalesce(current_setting('reserved_connections', true)::int, 0), \
                nullif(datconnlimit, -1)) \
            FROM pg_database WHERE datname = current_database()), \
        'has_user', EXISTS (SELECT FROM pg_roles WHERE rolname = $1), \
        'records', (SELECT fact FROM facts WHERE kind = 'records'), \
        'outbox', (SELECT fact FROM facts WHERE kind = 'outbox'))::text";

impl PostgresStore {
    /// Reads a record.
    ///
    /// # Errors
    ///
    /// [`StoreError`] if the table could not be read.
    pub async fn get(&self, key: &str) -> Result<Option<StoredRecord>, StoreError> {
        let find = sqlx::query(FIND).bind(text(key));
        let found = self.run(None, async |connection| {
            let row = find.fetch_optional(connection).await?;
            row.as_ref().map(stored).transpose()
        });
        within("read", &Key::from_stored(key), found).await
    }

    /// Returns whether an open transaction claims this key, which has no record. PostgreSQL does not show
    /// rows before their transaction commits, so the store tries an insert and rolls it back.
    ///
    /// # Errors
    ///
    /// [`StoreError`] if the table could not be written.
    pub async fn has_open_claim(&self, key: &str) -> Result<bool, StoreError> {
        let key = Key::from_stored(key);
        let tried = async {
            let mut tx = self.begin().await?;
            let inserted = row::insert(&mut tx, &key, &Record::new(State::Failed, 0)).await;
            tx.roll_back().await?;
            match inserted {
                Ok(_) => Ok(false),
                Err(error) if is_lock_timeout(&error) => Ok(true),
                Err(error) => Err(error),
            }
        };
        within("look for a claim of", &key, tried).await
    }

    /// Reads at most `limit` rows in the order of their keys and returns the records among them that pass the
    /// filter. Does not read the results of records.
    ///
    /// # Errors
    ///
    /// [`StoreError`] if the table could not be read.
    pub async fn list(
        &self,
        filter: &RecordFilter,
        after: Option<&str>,
        limit: i32,
        now: Timestamp,
    ) -> Result<RecordPage, StoreError> {
        let after = text(after.unwrap_or_default());
        let prefix = text(filter.prefix.as_deref().unwrap_or_default());
        let status = filter.status.map(|status| match status {
            RecordStatus::InProgress => "IN_PROGRESS",
            RecordStatus::Completed => "COMPLETED",
            RecordStatus::Failed => "FAILED",
        });
        // Planned for each page, because a plan for any prefix would read the whole table.
        let query = sqlx::query(PAGE)
            .persistent(false)
            .bind(&after)
            .bind(&prefix)
            .bind(limit);
        let listed = self.run(None, async |connection: &mut PgConnection| {
            let page = query.fetch_one(&mut *connection).await?;
            let (read, last): (i64, Option<String>) =
                (page.try_get("read")?, page.try_get("last")?);
            let list = sqlx::query(LIST)
                .persistent(false)
                .bind(&after)
                .bind(&prefix)
                .bind(&last)
                .bind(int(now.as_secs()))
                .bind(status)
                .bind(filter.expired_lease)
                .bind(millis(now));
            let rows = list.fetch_all(connection).await?;
            Ok(RecordPage {
                records: rows.iter().map(stored).collect::<Result<_, _>>()?,
                read: usize::try_from(read).unwrap_or(0),
                units: None,
                next: last.filter(|_| read >= limit.into()).map(from_text),
            })
        });
        let keys = Key::from_stored(filter.prefix.as_deref().unwrap_or("*"));
        within("list", &keys, listed).await
    }

    /// Ends the lease of a record in progress, so that the next delivery takes over. If the record is locked
    /// or has changed since it was read, changes nothing and returns false.
    ///
    /// # Errors
    ///
    /// [`StoreError`]. The lease may have been ended nevertheless.
    pub async fn release(&self, shown: &StoredRecord, now: Timestamp) -> Result<bool, StoreError> {
        let write = async |connection: &mut PgConnection, key: &Key, version: &str| {
            let release = sqlx::query(RELEASE)
                .bind(text(key.as_str()))
                .bind(version)
                .bind(millis(now));
            Ok(release.execute(connection).await?.rows_affected() == 1)
        };
        self.change("release", shown, write).await
    }

    /// Deletes a record. If the record is locked or has changed since it was read, changes nothing and
    /// returns false.
    ///
    /// # Errors
    ///
    /// [`StoreError`]. The record may have been deleted nevertheless.
    pub async fn delete_record(&self, shown: &StoredRecord) -> Result<bool, StoreError> {
        self.change("delete", shown, row::delete).await
    }

    /// Reads tables, limits and the privileges of a database user, as JSON, for `sqs-once doctor`.
    ///
    /// # Errors
    ///
    /// A text that explains what failed.
    pub async fn examine(&self, user: &str) -> Result<serde_json::Value, String> {
        let examine = sqlx::query_scalar(EXAMINE).bind(user);
        let examined = self.run(None, async |connection| examine.fetch_one(connection).await);
        let text: String = explained(examined).await?;
        serde_json::from_str(&text).map_err(|error| error.to_string())
    }

    /// Returns the age of the oldest event in the outbox, by the server's clock. `None` if it is empty, or
    /// there is no such table.
    ///
    /// # Errors
    ///
    /// A text that explains what failed.
    pub async fn oldest_event_age(&self) -> Result<Option<Duration>, String> {
        const OLDEST: &str = "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint \
            - published_at FROM sqs_once_outbox ORDER BY sequence LIMIT 1";
        let oldest = self.run(
            None,
            async |connection: &mut PgConnection| match sqlx::query_scalar(OLDEST)
                .fetch_optional(connection)
                .await
            {
                Err(error) if is_table_missing(&error) => Ok(None),
                read => read,
            },
        );
        let oldest: Option<i64> = explained(oldest).await?;
        let millis = oldest.map(|millis| u64::try_from(millis).unwrap_or(0));
        Ok(millis.map(Duration::from_millis))
    }

    async fn change(
        &self,
        action: &'static str,
        shown: &StoredRecord,
        write: impl AsyncFnOnce(&mut PgConnection, &Key, &str) -> Result<bool, Error>,
    ) -> Result<bool, StoreError> {
        let Some(Version(version)) = shown.version() else {
            return Ok(false);
        };
        let key = Key::from_stored(&shown.key);
        let changed = async {
            let mut tx = self.begin().await?;
            match write(&mut tx, &key, version).await {
                Ok(applied) => {
                    tx.commit().await?;
                    Ok(applied)
                }
                Err(error) if is_lock_timeout(&error) => Ok(false),
                Err(error) => Err(error),
            }
        };
        within(action, &key, changed).await
    }

    async fn begin(&self) -> Result<TransactionConnection, Error> {
        let now = Instant::now();
        let limits = Limits {
            lock_until: now + MAX_LOCK_WAIT,
            end: now + MAX_TIME,
            is_read_committed: false,
        };
        TransactionConnection::begin(self.connections(), limits, limits.end).await
    }
}

async fn within<T>(
    action: &'static str,
    key: &Key,
    requests: impl Future<Output = Result<T, Error>>,
) -> Result<T, StoreError> {
    match timeout(MAX_TIME, requests).await {
        Ok(answer) => answer.map_err(|error| store_error(action, key, &error)),
        Err(_elapsed) => Err(StoreError::unanswered(
            action,
            key,
            STORE,
            "no answer in time",
        )),
    }
}

async fn explained<T>(requests: impl Future<Output = Result<T, Error>>) -> Result<T, String> {
    match timeout(MAX_TIME, requests).await {
        Ok(answer) => answer.map_err(|error| explain(&error)),
        Err(_elapsed) => Err("no answer in time".to_owned()),
    }
}

fn stored(row: &PgRow) -> Result<StoredRecord, Error> {
    let record = match row::record(row) {
        Ok(record) => Ok(record),
        Err(Error::Decode(why)) => Err(why.to_string()),
        Err(error) => return Err(error),
    };
    Ok(StoredRecord {
        key: from_text(row.try_get("id")?),
        record,
        locked_by: row.try_get("pid")?,
        version: Arc::new(Version(row.try_get("version")?)),
    })
}

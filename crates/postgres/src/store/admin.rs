//! Records in PostgreSQL as an operator reads and changes them, with the command-line tool
//! `sqs-once`.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use sqlx::{Error, PgConnection, Row as _, postgres::PgRow};

use super::{
    PostgresStore, STORE,
    row::{self, bind_stamp, columns, from_text, int, millis, text},
    store_error,
};
use crate::{
    explain::is_lock_timeout,
    transaction_connection::{Limits, TransactionConnection},
};
use sqs_once::{
    internal::{
        RecordFilter, RecordPage, RecordStatus, StoredRecord, UnreadableRecord,
        system::{self, timeout},
    },
    protocol::{Expect, Key, Owner, Record, Stamp, State, Swap, Timestamp},
    store::StoreError,
};

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
            ", pid FROM sqs_once_records AS r LEFT JOIN (SELECT pid, \
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

/// Is rolled back.
const TRY_INSERT: &str = "INSERT INTO sqs_once_records (id, status, owner, version, expires_at, attributes) \
    VALUES ($1, 'FAILED', '', 0, 0, '{}') ON CONFLICT (id) DO NOTHING";

const DELETE: &str = "DELETE FROM sqs_once_records WHERE id = $1 AND owner = $2 AND version = $3";

impl PostgresStore {
    /// Reads a record.
    ///
    /// # Errors
    ///
    /// [`StoreError`] if the table could not be read.
    pub async fn show(&self, key: &str) -> Result<Option<StoredRecord>, StoreError> {
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
            let insert = sqlx::query(TRY_INSERT).bind(text(key.as_str()));
            let inserted = insert.execute(&mut *tx).await;
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

    /// Replaces a record that is not completed. If it is locked or has changed since it was read, changes nothing and
    /// returns false.
    ///
    /// # Errors
    ///
    /// [`StoreError`]. The record may have been replaced nevertheless.
    pub async fn replace(&self, shown: &StoredRecord, to: Record) -> Result<bool, StoreError> {
        // A page of records has no results, so a completed one would lose its result.
        let record = shown.record.as_ref().ok();
        let is_kept = |record: &&Record| !matches!(record.state, State::Completed { .. });
        let Some(record) = record.filter(is_kept) else {
            return Ok(false);
        };
        let swap = Swap {
            key: Key::from_stored(&shown.key),
            expect: Expect::Unchanged(record.clone()),
            to,
        };
        let write = async |connection: &mut PgConnection| row::swap(connection, &swap).await;
        self.change(swap.to.action(), &swap.key, write).await
    }

    /// Deletes a record. If the record is locked or has changed since it was read, changes nothing and
    /// returns false.
    ///
    /// # Errors
    ///
    /// [`StoreError`]. The record may have been deleted nevertheless.
    pub async fn delete_record(&self, shown: &StoredRecord) -> Result<bool, StoreError> {
        let Some(stamp) = shown.version::<Stamp>() else {
            return Ok(false);
        };
        let key = Key::from_stored(&shown.key);
        let write = async |connection: &mut PgConnection| {
            let delete = bind_stamp(sqlx::query(DELETE).bind(text(key.as_str())), stamp);
            Ok(delete.execute(connection).await?.rows_affected() == 1)
        };
        self.change("delete", &key, write).await
    }

    async fn change(
        &self,
        action: &'static str,
        key: &Key,
        write: impl AsyncFnOnce(&mut PgConnection) -> Result<bool, Error>,
    ) -> Result<bool, StoreError> {
        let changed = async {
            let mut tx = self.begin().await?;
            match write(&mut tx).await {
                Ok(applied) => {
                    tx.commit().await?;
                    Ok(applied)
                }
                Err(error) if is_lock_timeout(&error) => Ok(false),
                Err(error) => Err(error),
            }
        };
        within(action, key, changed).await
    }

    async fn begin(&self) -> Result<TransactionConnection, Error> {
        let now = system::instant();
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

fn stored(row: &PgRow) -> Result<StoredRecord, Error> {
    let record = match row::record(row) {
        Ok(record) => Ok(record),
        Err(Error::Decode(why)) => Err(UnreadableRecord {
            reason: why.to_string(),
            raw: row::attributes(row).map_or_else(
                |_| row.try_get("attributes").unwrap_or_default(),
                |attributes| Value::Object(attributes).to_string(),
            ),
        }),
        Err(error) => return Err(error),
    };
    let version: i64 = row.try_get("version")?;
    let stamp = Stamp {
        owner: Owner::from_stored(from_text(row.try_get("owner")?)),
        version: u64::try_from(version).unwrap_or_default(),
    };
    Ok(StoredRecord {
        key: from_text(row.try_get("id")?),
        record,
        locked_by: row.try_get("pid")?,
        version: Arc::new(stamp),
    })
}

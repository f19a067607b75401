//! Records as rows, and the statements on them.

use std::time::Duration;

use sqlx::{
    Error, PgConnection, Postgres, Row as _,
    postgres::{PgArguments, PgRow},
    query::Query,
};

use sqs_once::protocol::{
    AttemptEnd, Fingerprint, Key, Owner, Record, State, StoredResult, Timestamp,
};

/// Every column but the key, in the order of the parameters from `$2` on.
macro_rules! columns {
    () => {
        columns!("result")
    };
    ($result:literal) => {
        concat!(
            "status, owner, lease_until, expires_at, fingerprint, message_id, attempts, \
             first_claimed_at, last_end, error, failed_message_ids, ",
            $result,
            ", result_omitted, result_in_s3, created_at, updated_at, fingerprint_scheme, \
             exclusive_attempts"
        )
    };
}
pub(super) use columns;

macro_rules! insert {
    () => {
        concat!(
            "INSERT INTO sqs_once_records AS r (id, ",
            columns!(),
            ") VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19)"
        )
    };
}

macro_rules! update {
    () => {
        concat!(
            "UPDATE sqs_once_records SET (",
            columns!(),
            ") = ($2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19) \
             WHERE id = $1"
        )
    };
}

const READ: &str = concat!(
    "SELECT ",
    columns!(),
    ", xmin::text AS version FROM sqs_once_records WHERE id = $1"
);
const INSERT_ABSENT: &str = concat!(insert!(), " ON CONFLICT (id) DO NOTHING");
/// A single statement that always returns the record, and locks it until the transaction ends. It waits for a
/// concurrent transaction with the same key. The statements after it may wait longer for a lock.
const INSERT_OR_LOCK: &str = concat!(
    insert!(),
    " ON CONFLICT (id) DO UPDATE SET id = r.id RETURNING ",
    columns!(),
    ", pg_current_xact_id()::text AS version, set_config('lock_timeout', $20, true)"
);
const REPLACE: &str = concat!(update!(), " AND xmin::text = $20");
const SETTLE: &str = concat!(update!(), " AND pg_current_xact_id()::text = $20");
const DELETE: &str = "DELETE FROM sqs_once_records WHERE id = $1 AND xmin::text = $2";

/// A record that was read.
#[derive(Clone, Debug)]
pub(crate) struct StoredRow {
    pub(crate) record: Record,
    /// The transaction that wrote this version of the row. For [`insert_or_lock`], the transaction that locks
    /// it.
    pub(crate) version: String,
}

/// Reads a record.
pub(crate) async fn read(
    connection: &mut PgConnection,
    key: &Key,
) -> Result<Option<StoredRow>, Error> {
    let read = sqlx::query(READ).bind(text(key.as_str()));
    let row = read.fetch_optional(connection).await?;
    row.as_ref().map(kept).transpose()
}

/// Inserts a record. Returns false if the key already has one.
pub(crate) async fn insert(
    connection: &mut PgConnection,
    key: &Key,
    record: &Record,
) -> Result<bool, Error> {
    let insert = bind(INSERT_ABSENT, key, record);
    Ok(insert.execute(connection).await?.rows_affected() == 1)
}

/// Inserts a record, or locks the key's record. Returns the record in the table, with the id of this
/// transaction. Later statements wait at most `lock_timeout` for a lock.
///
/// If the returned record has the owner of `record`, which is random, it is new.
pub(crate) async fn insert_or_lock(
    connection: &mut PgConnection,
    key: &Key,
    record: &Record,
    lock_timeout: Duration,
) -> Result<StoredRow, Error> {
    let millis = lock_timeout.as_millis().clamp(1, i32::MAX as u128);
    let insert = bind(INSERT_OR_LOCK, key, record).bind(millis.to_string());
    kept(&insert.fetch_one(connection).await?)
}

/// Replaces a record. Returns false if the row is no longer this version.
pub(crate) async fn replace(
    connection: &mut PgConnection,
    key: &Key,
    record: &Record,
    version: &str,
) -> Result<bool, Error> {
    let replace = bind(REPLACE, key, record).bind(version.to_owned());
    Ok(replace.execute(connection).await?.rows_affected() == 1)
}

/// Replaces a record in the transaction that locked it. Returns false if that
/// transaction has ended.
pub(crate) async fn settle(
    connection: &mut PgConnection,
    key: &Key,
    record: &Record,
    transaction: &str,
) -> Result<bool, Error> {
    let settle = bind(SETTLE, key, record).bind(transaction.to_owned());
    Ok(settle.execute(connection).await?.rows_affected() == 1)
}

/// Deletes a record. Returns false if the row is no longer this version.
pub(crate) async fn delete(
    connection: &mut PgConnection,
    key: &Key,
    version: &str,
) -> Result<bool, Error> {
    let delete = sqlx::query(DELETE).bind(text(key.as_str())).bind(version);
    Ok(delete.execute(connection).await?.rows_affected() == 1)
}

fn bind(sql: &'static str, key: &Key, record: &Record) -> Query<'static, Postgres, PgArguments> {
    let lease_until = match &record.state {
        State::InProgress { lease_until } => Some(millis(*lease_until)),
        State::Completed { .. } | State::Failed => None,
    };
    let (mut json, mut omitted, mut in_s3) = (None, None, None);
    if let State::Completed { result } = &record.state {
        match result {
            StoredResult::Json(output) => json = Some(text(output)),
            StoredResult::Omitted(why) => omitted = Some(text(why)),
            StoredResult::InS3(pointer) => in_s3 = Some(text(&pointer.to_json())),
        }
    }
    let some_text = |value: Option<&str>| value.map(text);
    let failed = record.failed_message_ids.iter().map(|id| text(id));
    sqlx::query(sql)
        .bind(text(key.as_str()))
        .bind(record.state.name())
        .bind(some_text(record.owner.as_ref().map(Owner::as_str)))
        .bind(lease_until)
        .bind(int(record.expires_at))
        .bind(some_text(
            record.fingerprint.as_ref().map(Fingerprint::as_str),
        ))
        .bind(some_text(record.message_id.as_deref()))
        .bind(int(record.attempts))
        .bind(record.first_claimed_at.map(millis))
        .bind(record.last_end.map(AttemptEnd::name))
        .bind(some_text(record.error.as_deref()))
        .bind(failed.collect::<Vec<_>>())
        .bind(json)
        .bind(omitted)
        .bind(in_s3)
        .bind(record.created_at.map(millis))
        .bind(record.updated_at.map(millis))
        .bind(some_text(
            record.fingerprint.as_ref().and_then(Fingerprint::scheme),
        ))
        .bind(int(record.exclusive_attempts))
}

fn kept(row: &PgRow) -> Result<StoredRow, Error> {
    Ok(StoredRow {
        record: record(row)?,
        version: row.try_get("version")?,
    })
}

/// Returns the record in a row. [`Error::Decode`] if the row is not a valid record.
pub(super) fn record(row: &PgRow) -> Result<Record, Error> {
    let number = |column| Ok::<_, Error>(row.try_get::<Option<i64>, _>(column)?.map(from_int));
    let time = |column| Ok::<_, Error>(number(column)?.map(Timestamp::from_millis));
    let string = |column| Ok::<_, Error>(row.try_get::<Option<String>, _>(column)?.map(from_text));
    let status: String = row.try_get("status")?;
    let state = match status.as_str() {
        "IN_PROGRESS" => State::InProgress {
            lease_until: time("lease_until")?.unwrap_or_default(),
        },
        "COMPLETED" => State::Completed {
            result: match (string("result")?, string("result_in_s3")?) {
                (Some(json), _) => StoredResult::Json(json),
                (None, Some(pointer)) => serde_json::from_str(&pointer)
                    .map(StoredResult::InS3)
                    .map_err(|_| Error::Decode("column `result_in_s3` has no pointer".into()))?,
                (None, None) => {
                    StoredResult::Omitted(string("result_omitted")?.unwrap_or_default())
                }
            },
        },
        "FAILED" => State::Failed,
        _ => return Err(Error::Decode("column `status` has an unknown value".into())),
    };
    let mut record = Record::new(state, number("expires_at")?.unwrap_or_default());
    record.owner = string("owner")?.map(Owner::from_stored);
    let scheme = string("fingerprint_scheme")?;
    record.fingerprint =
        string("fingerprint")?.map(|hex| Fingerprint::from_stored(hex).with_scheme(scheme));
    record.message_id = string("message_id")?;
    record.attempts = number("attempts")?.unwrap_or_default();
    record.first_claimed_at = time("first_claimed_at")?;
    record.last_end = (string("last_end")?.as_deref()).and_then(AttemptEnd::from_name);
    record.exclusive_attempts = number("exclusive_attempts")?.unwrap_or_default();
    record.error = string("error")?;
    let failed: Vec<String> = row.try_get("failed_message_ids")?;
    record.failed_message_ids = failed.into_iter().map(from_text).collect();
    record.created_at = time("created_at")?;
    record.updated_at = time("updated_at")?;
    Ok(record)
}

pub(super) fn int(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn from_int(number: i64) -> u64 {
    u64::try_from(number).unwrap_or_default()
}

pub(super) fn millis(at: Timestamp) -> i64 {
    int(at.as_millis())
}

/// PostgreSQL's text cannot contain U+0000. This control character precedes the escaped ones.
const ESCAPE: char = '\u{1}';

/// Returns the text as it is stored: unchanged, unless it contains U+0000 or [`ESCAPE`].
pub(super) fn text(plain: &str) -> String {
    if !plain.contains(['\0', ESCAPE]) {
        return plain.to_owned();
    }
    let mut stored = String::with_capacity(plain.len() + 1);
    for character in plain.chars() {
        match character {
            '\0' => stored.extend([ESCAPE, '0']),
            ESCAPE => stored.extend([ESCAPE, '1']),
            other => stored.push(other),
        }
    }
    stored
}

pub(super) fn from_text(stored: String) -> String {
    if !stored.contains(ESCAPE) {
        return stored;
    }
    let mut plain = String::with_capacity(stored.len());
    let mut characters = stored.chars();
    while let Some(character) = characters.next() {
        plain.push(match (character, character == ESCAPE) {
            (other, false) => other,
            (_, true) => match characters.next() {
                Some('0') => '\0',
                _ => ESCAPE,
            },
        });
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_with_control_characters_is_restored() {
        for plain in [
            "",
            "order-1",
            "\0",
            "\u{1}",
            "a\0b\u{1}0",
            "\u{1}\u{1}\0\0",
            "\u{1}1",
        ] {
            let stored = text(plain);
            assert!(!stored.contains('\0'));
            assert_eq!(from_text(stored), plain);
        }
        assert_ne!(text("\0"), text("\u{1}0"));
        assert_eq!(text("C:\\orders"), "C:\\orders");
    }
}

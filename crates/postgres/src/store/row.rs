//! Records as rows, and the statements on them.

use std::time::Duration;

use serde_json::{Map, Value};
use sqlx::{
    Error, PgConnection, Postgres, Row as _,
    postgres::{PgArguments, PgRow},
    query::Query,
};

use sqs_once::protocol::{Expect, Key, Record, Stamp, Swap};

/// A record's attributes that are text columns.
const TEXTS: [&str; 4] = ["status", "owner", "failures", "result"];

/// A record's attributes that are integer columns.
const NUMBERS: [&str; 3] = ["version", "lease_until", "expires_at"];

/// Every column except the key: [`TEXTS`], [`NUMBERS`], and the other attributes as JSON.
macro_rules! columns {
    () => {
        "status, owner, failures, result, version, lease_until, expires_at, attributes"
    };
}

macro_rules! insert {
    () => {
        concat!(
            "INSERT INTO sqs_once_records AS r (id, ",
            columns!(),
            ") VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)"
        )
    };
}

macro_rules! update {
    () => {
        concat!(
            "UPDATE sqs_once_records SET (",
            columns!(),
            ") = ($2, $3, $4, $5, $6, $7, $8, $9) WHERE id = $1"
        )
    };
}

const READ: &str = concat!(
    "SELECT ",
    columns!(),
    " FROM sqs_once_records WHERE id = $1"
);
const INSERT_ABSENT: &str = concat!(insert!(), " ON CONFLICT (id) DO NOTHING");
const UPDATE_UNCHANGED: &str = concat!(update!(), " AND owner = $10 AND version = $11");
/// A single statement that always returns the record, and locks it until the transaction ends. The statement waits for a
/// concurrent transaction with the same key, and lets later statements wait longer for a lock.
const INSERT_OR_LOCK: &str = concat!(
    insert!(),
    " ON CONFLICT (id) DO UPDATE SET id = r.id RETURNING ",
    columns!(),
    ", pg_current_xact_id()::text AS transaction, set_config('lock_timeout', $10, true)"
);
const UPDATE_LOCKED: &str = concat!(update!(), " AND pg_current_xact_id()::text = $10");

pub(super) async fn read(
    connection: &mut PgConnection,
    key: &Key,
) -> Result<Option<Record>, Error> {
    let read = sqlx::query(READ).bind(text(key.as_str()));
    let row = read.fetch_optional(connection).await?;
    row.as_ref().map(record).transpose()
}

/// Writes a record if the row is as expected. Returns false if it isn't.
pub(super) async fn swap(connection: &mut PgConnection, swap: &Swap) -> Result<bool, Error> {
    let write = match &swap.expect {
        Expect::Absent => bind(INSERT_ABSENT, &swap.key, &swap.to),
        Expect::Unchanged(Record { stamp, .. }) => {
            let update = bind(UPDATE_UNCHANGED, &swap.key, &swap.to);
            bind_stamp(update, stamp)
        }
    };
    Ok(write.execute(connection).await?.rows_affected() == 1)
}

/// Inserts a record, or locks the key's record. Returns the record in the table and this transaction's id.
/// Later statements wait at most `lock_timeout` for a lock.
///
/// Owners are random, so a record with `first`'s owner is the one that we just inserted.
pub(crate) async fn insert_or_lock(
    connection: &mut PgConnection,
    key: &Key,
    first: &Record,
    lock_timeout: Duration,
) -> Result<(Record, String), Error> {
    let millis = lock_timeout.as_millis().clamp(1, i32::MAX as u128);
    let insert = bind(INSERT_OR_LOCK, key, first).bind(millis.to_string());
    let row = insert.fetch_one(connection).await?;
    Ok((record(&row)?, row.try_get("transaction")?))
}

/// Replaces a record in the transaction that locked it. Returns false if that transaction has ended.
pub(crate) async fn replace_locked(
    connection: &mut PgConnection,
    key: &Key,
    record: &Record,
    transaction: &str,
) -> Result<bool, Error> {
    let replace = bind(UPDATE_LOCKED, key, record).bind(transaction.to_owned());
    Ok(replace.execute(connection).await?.rows_affected() == 1)
}

type Statement<'a> = Query<'a, Postgres, PgArguments>;

/// Binds the key as `$1`, and the columns from `$2` on.
fn bind(sql: &'static str, key: &Key, record: &Record) -> Statement<'static> {
    #[expect(clippy::expect_used, reason = "a record has text and numbers only")]
    let attributes = serde_json::to_value(record).expect("a record is a JSON object");
    let mut attributes = match attributes {
        Value::Object(attributes) => attributes,
        _ => Map::new(),
    };
    let mut query = sqlx::query(sql).bind(text(key.as_str()));
    for name in TEXTS {
        let value = attributes.remove(name);
        query = query.bind(value.as_ref().and_then(Value::as_str).map(text));
    }
    for name in NUMBERS {
        let value = attributes.remove(name);
        query = query.bind(value.as_ref().and_then(Value::as_u64).map(int));
    }
    query.bind(Value::Object(attributes).to_string())
}

fn bind_stamp<'a>(query: Statement<'a>, stamp: &Stamp) -> Statement<'a> {
    let owner = text(stamp.owner.as_str());
    query.bind(owner).bind(int(stamp.version))
}

/// Returns the record in a row, or [`Error::Decode`] if the row is not a valid record. The error's text names
/// an attribute, never its value.
pub(super) fn record(row: &PgRow) -> Result<Record, Error> {
    serde_json::from_value(Value::Object(attributes(row)?)).map_err(|error| {
        let why = error.to_string();
        // serde quotes a value of the wrong type.
        let is_quoting = why.starts_with("invalid ");
        Error::Decode(if is_quoting {
            "an attribute has a value of the wrong type".into()
        } else {
            why.into()
        })
    })
}

/// Returns the columns and the JSON of a row as one object.
fn attributes(row: &PgRow) -> Result<Map<String, Value>, Error> {
    let json: String = row.try_get("attributes")?;
    let mut attributes: Map<String, Value> = serde_json::from_str(&json)
        .map_err(|_| Error::Decode("column `attributes` must be a JSON object".into()))?;
    for name in TEXTS {
        if let Some(stored) = row.try_get::<Option<String>, _>(name)? {
            attributes.insert(name.to_owned(), from_text(stored).into());
        }
    }
    for name in NUMBERS {
        if let Some(number) = row.try_get::<Option<i64>, _>(name)? {
            attributes.insert(name.to_owned(), number.into());
        }
    }
    Ok(attributes)
}

pub(super) fn int(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// PostgreSQL's text can't contain U+0000. This control character marks an escaped one.
const ESCAPE: char = '\u{1}';

/// Returns a text as we store it: unchanged, unless it contains U+0000 or [`ESCAPE`].
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

fn from_text(stored: String) -> String {
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

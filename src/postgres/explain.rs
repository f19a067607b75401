//! Explanations of sqlx's errors, for logs and errors, without payload.

use std::error::Error as StdError;

use sqlx::{
    Error,
    postgres::{PgDatabaseError, PgSeverity},
};

use super::secret::NoPassword;
use crate::protocol::Unavailability;

/// The wait for a lock reached `lock_timeout`.
const LOCK_NOT_AVAILABLE: &str = "55P03";

/// Adds the columns that the records of older versions do not have.
const ADD_COLUMNS: &str = "ALTER TABLE sqs_once_records ADD COLUMN IF NOT EXISTS fingerprint_scheme \
    text, ADD COLUMN IF NOT EXISTS exclusive_attempts bigint";

/// Returns whether the connection has no known state after this error.
pub(crate) fn is_connection_lost(error: &Error) -> bool {
    match database_error(error) {
        Some(error) => matches!(error.severity(), PgSeverity::Fatal | PgSeverity::Panic),
        None => !matches!(
            error,
            Error::RowNotFound | Error::ColumnDecode { .. } | Error::Decode(_)
        ),
    }
}

/// Returns whether the wait for a lock took too long.
pub(crate) fn is_lock_timeout(error: &Error) -> bool {
    code(error) == Some(LOCK_NOT_AVAILABLE)
}

/// Returns whether PostgreSQL rolled the transaction back because of another transaction: after a
/// serialization failure or a deadlock. The same transaction can succeed when it runs again.
pub(crate) fn is_contended(error: &Error) -> bool {
    matches!(code(error), Some("40001" | "40P01"))
}

/// Returns whether an error in this chain is a serialization failure or a deadlock.
pub(crate) fn is_caused_by_contention(error: &(dyn StdError + 'static)) -> bool {
    std::iter::successors(Some(error), |&error| error.source())
        .filter_map(|error| error.downcast_ref::<Error>())
        .any(is_contended)
}

/// Returns whether the server refused user or password of a new connection.
pub(crate) fn is_login_refused(error: &Error) -> bool {
    matches!(code(error), Some("28P01" | "28000"))
}

/// Returns whether a table does not exist.
pub(crate) fn is_table_missing(error: &Error) -> bool {
    code(error) == Some("42P01")
}

/// Returns whether the transaction was rolled back, because one of its statements had failed.
pub(crate) fn is_aborted(error: &Error) -> bool {
    code(error) == Some("25P02")
}

/// Returns whether the answer to `COMMIT` proves that nothing was committed.
pub(crate) fn is_not_committed(error: &Error) -> bool {
    match code(error) {
        // "Statement completion unknown", and errors of the connection, the system or a shutdown.
        Some("40003") | None => false,
        Some(code) => !["08", "53", "57", "58", "XX"].contains(&&code[..2]),
    }
}

/// Classifies a failed request outside of a transaction.
pub(crate) fn kind(error: &Error) -> Unavailability {
    if let Error::Configuration(error) = error {
        let no_password = error.downcast_ref::<NoPassword>();
        return match no_password {
            // As tokens of IAM: a settlement is repeated until there is a password.
            Some(why) if !why.is_permanent => Unavailability::Unanswered,
            _ => Unavailability::Denied,
        };
    }
    // A rotation changes the password in the database before the secret, or after.
    if is_login_refused(error) {
        return Unavailability::Unanswered;
    }
    match code(error) {
        Some("40001" | "40P01" | "57014" | "53300" | LOCK_NOT_AVAILABLE) => {
            Unavailability::Contended
        }
        // No such database, schema, table or column, or no permission for it.
        Some(code) if ["28", "3D", "3F", "42"].contains(&&code[..2]) => Unavailability::Denied,
        Some(code) if ["22", "23", "54"].contains(&&code[..2]) => Unavailability::Invalid,
        _ => Unavailability::Unanswered,
    }
}

/// Explains a failed request and its remedy. Messages of PostgreSQL may quote values, so a message
/// is named only where it has none.
pub(crate) fn explain(error: &Error) -> String {
    let Some(database) = database_error(error) else {
        return match error {
            Error::PoolTimedOut => {
                "no connection in time; check the address, the network and the size of the pool"
                    .into()
            }
            Error::PoolClosed => "the pool is closed".into(),
            Error::Io(error) => format!("the connection failed ({error})"),
            Error::Tls(error) => format!(
                "TLS failed ({error}); for RDS, name its certificate authority with sslrootcert"
            ),
            Error::Configuration(error) if error.is::<NoPassword>() => error.to_string(),
            Error::Configuration(error) => format!("the connection options are invalid ({error})"),
            _ => "the answer could not be read".into(),
        };
    };
    let (code, message) = (database.code(), database.message());
    let advice = match code {
        "42P01" => format!("{message}; create the table with `sqs_once::postgres::migrate`"),
        "42703" => format!(
            "{message}; if this version of sqs-once is newer than its table, run \
             `sqs_once::postgres::migrate`, or as the owner of the table: {ADD_COLUMNS}"
        ),
        // A user who is not the table's owner.
        "42501" if message.contains("sqs_once_records") => {
            format!("{message}; as the owner of the table, run: {ADD_COLUMNS}")
        }
        "25P02" => "an earlier statement of the transaction failed".into(),
        "25P03" | "25P04" => "the transaction was open for too long, and was rolled back".into(),
        "40001" | "40P01" | "57014" | LOCK_NOT_AVAILABLE => message.into(),
        // Authorization, unknown database, permissions, limits and shutdown: no values.
        _ if ["28", "3D", "53", "57"].contains(&&code[..2]) || code == "42501" => message.into(),
        _ => database.constraint().map_or_else(
            || "the statement failed".into(),
            |constraint| format!("a write violates the constraint `{constraint}`"),
        ),
    };
    format!("SQLSTATE {code}: {advice}")
}

fn code(error: &Error) -> Option<&str> {
    // A SQLSTATE has five characters. Another server may send anything.
    let code = database_error(error)?.code();
    (code.len() == 5 && code.is_ascii()).then_some(code)
}

fn database_error(error: &Error) -> Option<&PgDatabaseError> {
    error.as_database_error()?.try_downcast_ref()
}

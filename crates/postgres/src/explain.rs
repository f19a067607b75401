//! The table of SQLSTATEs, and explanations of sqlx's errors, without payload.

use std::error::Error as StdError;

use sqlx::{
    Error,
    postgres::{PgDatabaseError, PgSeverity},
};

use super::connections::DIRECT;
use sqs_once::internal::RequestErrorKind;

/// One row of [`STATES`]: what an error from the server means.
#[derive(Clone, Copy, Debug)]
struct SqlState {
    /// A SQLSTATE of five characters, or a class of two.
    code: &'static str,
    connection: ConnectionState,
    /// The kind of error, for a request outside a transaction.
    kind: RequestErrorKind,
    /// True if this error, in response to `COMMIT`, proves that nothing was committed.
    is_rolled_back: bool,
    /// True if PostgreSQL's message quotes no values.
    is_plain: bool,
}

/// The state of the connection after an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ConnectionState {
    /// The connection goes back to the pool.
    Kept,
    /// The connection is closed. The server did nothing, so the request is retried on another one, where it may succeed.
    Useless,
    /// The connection is closed, and the request may have been executed.
    Lost,
}

const fn state(
    code: &'static str,
    connection: ConnectionState,
    kind: RequestErrorKind,
    is_rolled_back: bool,
    is_plain: bool,
) -> SqlState {
    SqlState {
        code,
        connection,
        kind,
        is_rolled_back,
        is_plain,
    }
}

/// The consequences of each SQLSTATE. A code comes before its class. The page docs/effects-in-postgresql.md
/// has the same table. After an error of severity FATAL or PANIC, the connection is lost. All other codes are
/// [`OTHER`].
const STATES: &[SqlState] = {
    use ConnectionState::{Kept, Lost, Useless};
    use RequestErrorKind::{Contended, Denied, Invalid, Unanswered};
    &[
        // code, connection, kind, rolled back, plain message
        state("08", Lost, Unanswered, false, false),
        state("22", Kept, Invalid, true, false),
        state("23", Kept, Invalid, true, false),
        // Read-only transaction: a failover demoted the server.
        state("25006", Useless, Unanswered, true, true),
        // The prepared statement doesn't exist, or its name is already taken. Something like DISCARD ALL has changed the
        // session behind sqlx's back.
        state("26000", Useless, Unanswered, true, true),
        state("42P05", Useless, Unanswered, true, true),
        // Login rejected. A rotation may change the password in the database before it changes the secret.
        state("28000", Lost, Unanswered, true, true),
        state("28P01", Lost, Unanswered, true, true),
        state("28", Kept, Denied, true, true),
        state("3D", Kept, Denied, true, true),
        state("3F", Kept, Denied, true, false),
        state("40003", Kept, Unanswered, false, false),
        state(SERIALIZATION_FAILURE, Kept, Contended, true, true),
        state(DEADLOCK, Kept, Contended, true, true),
        state("42501", Kept, Denied, true, true),
        state("42", Kept, Denied, true, false),
        state("53300", Kept, Contended, false, true),
        state("53", Kept, Unanswered, false, true),
        state("54", Kept, Invalid, true, false),
        state(LOCK_NOT_AVAILABLE, Kept, Contended, true, true),
        state("57014", Kept, Contended, false, true),
        state("57", Kept, Unanswered, false, true),
        state("58", Kept, Unanswered, false, false),
        state("XX", Kept, Unanswered, false, false),
    ]
};

const OTHER: SqlState = state(
    "",
    ConnectionState::Kept,
    RequestErrorKind::Unanswered,
    true,
    false,
);
const UNKNOWN: SqlState = state(
    "",
    ConnectionState::Kept,
    RequestErrorKind::Unanswered,
    false,
    false,
);
const SERIALIZATION_FAILURE: &str = "40001";
const DEADLOCK: &str = "40P01";
/// Waiting for a lock took longer than `lock_timeout`.
const LOCK_NOT_AVAILABLE: &str = "55P03";

const POOLER: &str = "a pooler such as PgBouncer or RDS Proxy could give the session to other clients too, so use the \
    server's own address and port; if that opens too many connections, lower the function's maximum concurrency \
    or the pool's `max_connections`";

/// The server function that reports a prepared statement whose columns have changed: "cached plan must not change result type". We
/// recognize it by its name, because its code, 0A000, stands for all unsupported features. sqlx prepares a statement once per
/// connection.
const STALE_PLAN: &str = "RevalidateCachedQuery";

fn state_of(error: &PgDatabaseError) -> SqlState {
    // A SQLSTATE has five characters. A server that is not PostgreSQL may send anything.
    let code = error.code();
    let row = STATES.iter().find(|row| code.starts_with(row.code));
    let mut state = match row {
        _ if code.len() != 5 => UNKNOWN,
        Some(row) => *row,
        None => OTHER,
    };
    if code == "0A000" && error.routine() == Some(STALE_PLAN) {
        (state.connection, state.is_plain) = (ConnectionState::Useless, true);
    }
    if matches!(error.severity(), PgSeverity::Fatal | PgSeverity::Panic) {
        state.connection = ConnectionState::Lost;
    }
    state
}

/// Returns whether there is a pooler in front of the server. A pooler either rejects the login because of a parameter that
/// PostgreSQL accepts, or opens the session without [`DIRECT`].
fn is_from_pooler(error: &PgDatabaseError) -> bool {
    let says = |words: &str| error.message().contains(words);
    match error.severity() {
        // These are the words of PgBouncer and RDS Proxy.
        PgSeverity::Fatal => says("startup parameter") || says("command-line options"),
        _ => error.code() == "42704" && says(DIRECT),
    }
}

fn connection_state(error: &Error) -> ConnectionState {
    match (database_error(error), error) {
        (Some(error), _) => state_of(error).connection,
        (None, Error::RowNotFound | Error::ColumnDecode { .. } | Error::Decode(_)) => {
            ConnectionState::Kept
        }
        (None, _) => ConnectionState::Lost,
    }
}

/// Returns whether the connection must be closed, because it is useless or its state is unknown.
pub(crate) fn is_connection_lost(error: &Error) -> bool {
    connection_state(error) != ConnectionState::Kept
}

/// Returns whether the server rejected the request because of the connection, and did nothing. On another
/// connection it may succeed.
fn is_connection_useless(error: &Error) -> bool {
    connection_state(error) == ConnectionState::Useless
}

/// Returns whether waiting for a lock took too long.
pub(crate) fn is_lock_timeout(error: &Error) -> bool {
    code(error) == Some(LOCK_NOT_AVAILABLE)
}

/// Returns whether PostgreSQL rolled the transaction back because of a concurrent one, with a serialization
/// failure or a deadlock. The same transaction can succeed when it runs again.
pub(crate) fn is_contended(error: &Error) -> bool {
    matches!(code(error), Some(SERIALIZATION_FAILURE | DEADLOCK))
}

/// Returns whether the transaction can succeed if it runs again at once, because only contention or the connection made it fail.
pub(crate) fn can_run_again(error: &Error) -> bool {
    is_contended(error) || is_connection_useless(error)
}

/// Returns the sqlx errors in this chain.
fn causes<'a>(error: &'a (dyn StdError + 'static)) -> impl Iterator<Item = &'a Error> {
    std::iter::successors(Some(error), |&error| error.source())
        .filter_map(|error| error.downcast_ref::<Error>())
}

/// Returns whether an error in this chain says that the transaction can run again at once.
pub(crate) fn is_caused_by_contention(error: &(dyn StdError + 'static)) -> bool {
    causes(error).any(can_run_again)
}

/// Returns whether an error in this chain makes the connection useless.
pub(crate) fn is_caused_by_connection(error: &(dyn StdError + 'static)) -> bool {
    causes(error).any(is_connection_useless)
}

/// Returns whether the server rejected a new connection's user or password.
pub(crate) fn is_login_refused(error: &Error) -> bool {
    matches!(code(error), Some("28P01" | "28000"))
}

/// Returns whether the transaction is aborted because one of its statements has failed.
pub(crate) fn is_aborted(error: &Error) -> bool {
    code(error) == Some("25P02")
}

/// Returns whether the response to `COMMIT` proves that nothing was committed.
pub(crate) fn is_not_committed(error: &Error) -> bool {
    database_error(error).is_some_and(|error| state_of(error).is_rolled_back)
}

/// Classifies a failed request outside a transaction.
pub(crate) fn kind(error: &Error) -> RequestErrorKind {
    let database = database_error(error);
    if matches!(error, Error::Configuration(_)) || database.is_some_and(is_from_pooler) {
        return RequestErrorKind::Denied;
    }
    database.map_or(RequestErrorKind::Unanswered, |error| state_of(error).kind)
}

/// Explains a failed request, and says what to do. PostgreSQL's messages may quote values, so the text contains
/// only messages that don't.
#[must_use]
pub fn explain(error: &Error) -> String {
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
            Error::Configuration(error) => format!("the connection options are invalid ({error})"),
            _ => "the answer could not be read".into(),
        };
    };
    let (code, message) = (database.code(), database.message());
    let advice = match code {
        "42P01" if message.contains("sqs_once_") => format!(
            "{message}; run the migration crates/postgres/migrations/1_sqs_once.sql \
             (`sqs_once_postgres::migrate`), or correct the search path"
        ),
        "25P02" => "an earlier statement of the transaction failed".into(),
        "25P03" | "25P04" => "the transaction was open for too long, and was rolled back".into(),
        "25006" => format!("{message}: the server is a replica, perhaps since a failover"),
        _ if is_from_pooler(database) => format!("{message}; {POOLER}"),
        _ if state_of(database).is_plain => message.into(),
        _ => database.constraint().map_or_else(
            || "the statement failed".into(),
            |constraint| format!("a write violates the constraint `{constraint}`"),
        ),
    };
    format!("SQLSTATE {code}: {advice}")
}

fn code(error: &Error) -> Option<&str> {
    let code = database_error(error)?.code();
    (code.len() == 5 && code.is_ascii()).then_some(code)
}

fn database_error(error: &Error) -> Option<&PgDatabaseError> {
    error.as_database_error()?.try_downcast_ref()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documented_table_has_every_state() {
        let page = include_str!("../../../docs/effects-in-postgresql.md");
        let (_, table) = page.split_once("### Errors of the server").unwrap();
        let (table, _) = table.split_once("### Poolers").unwrap();
        for SqlState { code, .. } in STATES {
            assert!(table.contains(&format!("`{code}`")), "{code}");
        }
    }

    #[test]
    fn code_comes_before_its_class() {
        for (number, row) in STATES.iter().enumerate() {
            let earlier = &STATES[..number];
            let hides = |other: &SqlState| row.code.starts_with(other.code);
            assert!(!earlier.iter().any(hides), "{} is never found", row.code);
        }
    }
}

//! [`Limits`]: the time limits of a transaction and its isolation, and the statements that set them.

use std::{fmt::Write as _, time::Duration};

use sqlx::{AssertSqlSafe, SqlSafeStr as _, SqlStr};
use tokio::time::Instant;

use sqs_once_core::deadline::Deadline;

/// How long after the deadline the server ends the transaction of a frozen worker.
const MARGIN: Duration = Duration::from_secs(1);

/// Isolation of a transaction, and its time limits, which the server keeps even if this process is frozen.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Longest wait for a lock.
    pub lock: Duration,
    /// Time until the server ends an open transaction.
    pub transaction: Duration,
    /// True for `READ COMMITTED`, false for the default of the database.
    pub is_read_committed: bool,
}

impl Limits {
    /// Creates a worker's limits. A wait for a lock ends at `lock_until`, and the transaction of a frozen
    /// worker one second after the deadline.
    #[must_use]
    pub fn until(deadline: Deadline, lock_until: Instant) -> Self {
        let left = |end: Instant| end.saturating_duration_since(Instant::now());
        Self {
            lock: left(lock_until),
            transaction: left(deadline.write_until()) + MARGIN,
            is_read_committed: false,
        }
    }

    /// Creates the limits of a request that has this much time.
    pub(super) fn of_request(time: Duration) -> Self {
        Self {
            lock: time,
            transaction: time + MARGIN,
            is_read_committed: true,
        }
    }

    /// Returns the statements that open a transaction with these limits, as one request. The transaction
    /// begins with the statements in `first`.
    pub(super) fn begin(self, first: &str, version: Option<u32>) -> SqlStr {
        let millis = |time: Duration| time.as_millis().clamp(1, i32::MAX as u128);
        let (lock, transaction) = (millis(self.lock), millis(self.transaction));
        let isolation = if self.is_read_committed {
            " ISOLATION LEVEL READ COMMITTED"
        } else {
            ""
        };
        let mut sql = format!(
            "BEGIN{isolation}; {first}; SET LOCAL lock_timeout = {lock}; SET LOCAL statement_timeout = {transaction}; \
             SET LOCAL idle_in_transaction_session_timeout = {transaction}; \
             SET LOCAL tcp_user_timeout = {transaction}; SET LOCAL client_min_messages = error"
        );
        let version = version.unwrap_or_default();
        if version >= 140_000 {
            // Only this check lets a statement that waits for a lock notice a closed connection. A server on
            // Windows rejects the setting, and so does PostgreSQL 14 on every system but Linux.
            sql.push_str(
                "; SELECT set_config('client_connection_check_interval', '1000', true) \
                 WHERE version() LIKE '%linux%'",
            );
        }
        if version >= 170_000 {
            let _infallible = write!(sql, "; SET LOCAL transaction_timeout = {transaction}");
        }
        AssertSqlSafe(sql).into_sql_str()
    }
}

//! [`Limits`]: a transaction's time limits and isolation, and the statements that set them.

use std::{fmt::Write as _, time::Duration};

use sqlx::{AssertSqlSafe, SqlSafeStr as _, SqlStr};

use sqs_once::{
    Deadline,
    internal::system::{self, Instant},
};

/// How long after the deadline the server ends the transaction of a frozen worker.
const MARGIN: Duration = Duration::from_secs(1);

/// A transaction's isolation and time limits. The server enforces the limits even if this process is frozen.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// When a statement stops waiting for a lock.
    pub lock_until: Instant,
    /// When the server ends an open transaction.
    pub end: Instant,
    /// True for `READ COMMITTED`, false for the database's default.
    pub is_read_committed: bool,
}

impl Limits {
    /// Creates a worker's limits. Statements stop waiting for a lock at `lock_until`, and a frozen worker's
    /// transaction ends one second after the deadline.
    #[must_use]
    pub fn until(deadline: Deadline, lock_until: Instant) -> Self {
        Self {
            lock_until,
            end: deadline.write_until() + MARGIN,
            is_read_committed: false,
        }
    }

    /// Returns the statements that open a transaction with these limits, as one request. Send it at once,
    /// because PostgreSQL counts the time from when it arrives.
    pub(super) fn begin(self, version: Option<u32>) -> SqlStr {
        let now = system::instant();
        let left = |end: Instant| {
            let millis = end.saturating_duration_since(now).as_millis();
            millis.clamp(1, i32::MAX as u128)
        };
        let (lock, transaction) = (left(self.lock_until), left(self.end));
        let isolation = if self.is_read_committed {
            " ISOLATION LEVEL READ COMMITTED"
        } else {
            ""
        };
        let mut sql = format!(
            "BEGIN{isolation}; SET LOCAL lock_timeout = {lock}; SET LOCAL statement_timeout = {transaction}; \
             SET LOCAL idle_in_transaction_session_timeout = {transaction}; \
             SET LOCAL tcp_user_timeout = {transaction}; SET LOCAL client_min_messages = error"
        );
        let version = version.unwrap_or_default();
        if version >= 140_000 {
            // Without this check, a statement that waits for a lock would not notice a closed connection. A
            // server on Windows rejects the setting, and so does PostgreSQL 14 on any system but Linux.
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

#[cfg(test)]
mod tests {
    use super::*;

    /// A transaction may have to wait for a connection, but its deadline does not move.
    #[tokio::test(start_paused = true)]
    async fn wait_for_a_connection_shortens_the_limits() {
        let second = Duration::from_secs(1);
        let now = Instant::now();
        let limits = Limits {
            lock_until: now + 5 * second,
            end: now + 7 * second,
            is_read_committed: false,
        };
        tokio::time::advance(3 * second).await;
        let begin = limits.begin(None);
        let sql = begin.as_str();
        for limit in [
            "lock_timeout = 2000;",
            "statement_timeout = 4000;",
            "idle_in_transaction_session_timeout = 4000;",
        ] {
            assert!(sql.contains(limit), "{sql}");
        }
        tokio::time::advance(60 * second).await;
        let over = limits.begin(None);
        assert!(over.as_str().contains("lock_timeout = 1;"), "0 is no limit");
    }
}

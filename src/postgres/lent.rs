//! [`Lent`]: a connection that goes back to its pool only in a known state.

use std::{
    fmt::Write as _,
    ops::{Deref, DerefMut},
    time::Duration,
};

use sqlx::{
    AssertSqlSafe, Error, PgConnection, Postgres, SqlSafeStr as _, SqlStr, pool::PoolConnection,
    postgres::PgTransactionManager,
};
use sqlx_core::transaction::TransactionManager as _;
use tokio::time::{Instant, timeout, timeout_at};

use super::{connections::Connections, explain::is_connection_lost};
use crate::deadline::Deadline;

/// A connection of a pool, closed when dropped unless the server answered the last request.
///
/// A dropped future may leave a request on the wire. sqlx then keeps the connection, also after a
/// cancelled `begin()`, whose transaction stays open (sqlx issues 4385 and 4393). Here such a
/// connection is closed, which ends its transaction.
#[derive(Debug)]
pub(crate) struct Lent {
    connection: PoolConnection<Postgres>,
    is_idle: bool,
}

/// Longest time that the server takes to answer `BEGIN` on a connection that still exists. Lambda
/// may have frozen the process for longer than the network keeps a silent connection.
const MAX_BEGIN_TIME: Duration = Duration::from_secs(2);

/// Time from the deadline until the server ends the transaction of a frozen worker.
const MARGIN: Duration = Duration::from_secs(1);

/// Time limits of a transaction, which the server keeps even if this process is frozen, and its
/// isolation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Maximum wait for a lock.
    pub(crate) lock: Duration,
    /// Time until the server ends an open transaction.
    pub(crate) transaction: Duration,
    /// `READ COMMITTED`, in place of the default of the database.
    pub(crate) is_read_committed: bool,
}

impl Limits {
    /// Limits of a worker: a wait for a lock ends at `lock_until`, and the transaction of a frozen
    /// worker [`MARGIN`] after the deadline.
    pub(crate) fn until(deadline: Deadline, lock_until: Instant) -> Self {
        let left = |end: Instant| end.saturating_duration_since(Instant::now());
        Self {
            lock: left(lock_until),
            transaction: left(deadline.end()) + MARGIN,
            is_read_committed: false,
        }
    }

    /// The statements that open a transaction with these limits, as one request.
    fn begin(self, version: Option<u32>) -> SqlStr {
        let millis = |time: Duration| time.as_millis().clamp(1, i32::MAX as u128);
        let (lock, transaction) = (millis(self.lock), millis(self.transaction));
        let isolation = if self.is_read_committed {
            " ISOLATION LEVEL READ COMMITTED"
        } else {
            ""
        };
        let mut sql = format!(
            "BEGIN{isolation}; SET LOCAL lock_timeout = {lock}; SET LOCAL statement_timeout = {transaction}; \
             SET LOCAL idle_in_transaction_session_timeout = {transaction}; \
             SET LOCAL tcp_user_timeout = {transaction}"
        );
        let version = version.unwrap_or_default();
        if version >= 140_000 {
            // A statement that waits for a lock notices a closed connection only by this check.
            sql.push_str("; SET LOCAL client_connection_check_interval = 1000");
        }
        if version >= 170_000 {
            let _infallible = write!(sql, "; SET LOCAL transaction_timeout = {transaction}");
        }
        AssertSqlSafe(sql).into_sql_str()
    }
}

impl Lent {
    /// Takes a connection from the pool, for requests without a transaction.
    pub(crate) async fn acquire(connections: &Connections) -> Result<Self, Error> {
        Ok(Self {
            connection: connections.acquire().await?,
            is_idle: true,
        })
    }

    /// Takes a connection from the pool, and opens a transaction. Tries the next connection if the
    /// server has closed this one: nothing was sent before `BEGIN`.
    pub(crate) async fn begin(
        connections: &Connections,
        limits: Limits,
        until: Instant,
    ) -> Result<Self, Error> {
        loop {
            let lent = timeout_at(until, Self::acquire(connections)).await;
            let mut lent = lent.map_err(|_elapsed| connections.out_of_time())??;
            let left = until.saturating_duration_since(Instant::now());
            let error = match timeout(MAX_BEGIN_TIME.min(left / 2), lent.open(limits)).await {
                Ok(Ok(())) => return Ok(lent),
                Ok(Err(error)) if is_connection_lost(&error) => error,
                Ok(Err(error)) => return Err(error),
                Err(_elapsed) => Error::Io(std::io::ErrorKind::TimedOut.into()),
            };
            if Instant::now() >= until {
                return Err(error);
            }
            tracing::debug!("a pooled connection to PostgreSQL was lost; trying the next");
        }
    }

    /// Opens a transaction. sqlx counts it, so that a handler's `begin()` makes a savepoint.
    pub(crate) async fn open(&mut self, limits: Limits) -> Result<(), Error> {
        self.is_idle = false;
        let begin = limits.begin(self.connection.server_version_num());
        PgTransactionManager::begin(&mut self.connection, Some(begin)).await
    }

    /// Commits the transaction. If the answer is lost, the transaction may be committed.
    pub(crate) async fn commit(&mut self) -> Result<(), Error> {
        PgTransactionManager::commit(&mut self.connection).await?;
        self.is_idle = true;
        Ok(())
    }

    /// Rolls the transaction back, with its savepoints.
    pub(crate) async fn roll_back(&mut self) -> Result<(), Error> {
        while self.depth() > 0 {
            PgTransactionManager::rollback(&mut self.connection).await?;
        }
        self.is_idle = true;
        Ok(())
    }

    /// Number of transactions: the transaction itself, and its savepoints.
    pub(crate) fn depth(&self) -> usize {
        PgTransactionManager::get_transaction_depth(&self.connection)
    }

    /// Runs requests that are no transaction. The connection is kept if the server answered.
    pub(crate) async fn run<T>(
        connections: &Connections,
        requests: impl AsyncFnOnce(&mut PgConnection) -> Result<T, Error>,
    ) -> Result<T, Error> {
        Self::acquire(connections).await?.request(requests).await
    }

    /// Runs requests that are no transaction on this connection.
    pub(crate) async fn request<T>(
        &mut self,
        requests: impl AsyncFnOnce(&mut PgConnection) -> Result<T, Error>,
    ) -> Result<T, Error> {
        self.is_idle = false;
        let answer = requests(&mut self.connection).await;
        self.is_idle = !answer.as_ref().is_err_and(is_connection_lost);
        answer
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        if !self.is_idle {
            self.connection.close_on_drop();
        }
    }
}

impl Deref for Lent {
    type Target = PgConnection;

    fn deref(&self) -> &PgConnection {
        &self.connection
    }
}

impl DerefMut for Lent {
    fn deref_mut(&mut self) -> &mut PgConnection {
        &mut self.connection
    }
}

//! [`TransactionConnection`]: a connection that goes back to its pool only in a known state.

mod limits;
mod tries;

use std::{
    ops::{Deref, DerefMut},
    time::Duration,
};

use sqlx::{
    Connection as _, Error, PgConnection, Postgres, pool::PoolConnection,
    postgres::PgTransactionManager,
};
use sqlx_core::transaction::TransactionManager as _;
use sqs_once::internal::system::{self, Instant, timeout, timeout_at};

use super::{connections::Connections, explain::is_connection_lost};

pub use limits::Limits;
pub(crate) use tries::Tries;

/// A connection from a pool. Dropping it closes the connection, unless the server has responded to the last request.
///
/// A dropped future may leave a request on the wire. sqlx would keep that connection, even after a cancelled
/// `begin()` whose transaction is still open (sqlx issues 4385 and 4393). We close it, which ends the
/// transaction.
#[derive(Debug)]
pub struct TransactionConnection {
    connection: PoolConnection<Postgres>,
    connections: Connections,
    is_idle: bool,
    is_lost: bool,
}

/// How long a request without a time limit waits for a connection.
const ACQUIRE_TIME: Duration = Duration::from_secs(10);

/// How long a request on a used connection may take. After that we replace the connection, because it may have gone silent
/// in a freeze. A new connection has no prepared statements yet, and needs two round trips for each.
const MAX_SILENCE: Duration = Duration::from_secs(5);

impl TransactionConnection {
    /// Takes a connection from the pool. Until its first response, the connection may be dead.
    async fn acquire(connections: &Connections, until: Instant) -> Result<Self, Error> {
        loop {
            let connection = match timeout_at(until, connections.acquire()).await {
                Ok(Ok(connection)) => connection,
                // The pool's own limit may be shorter.
                Ok(Err(Error::PoolTimedOut)) if system::instant() < until => continue,
                Ok(Err(error)) => return Err(error),
                Err(_elapsed) => return Err(Error::PoolTimedOut),
            };
            return Ok(Self {
                connection,
                connections: connections.clone(),
                is_idle: true,
                is_lost: false,
            });
        }
    }

    /// Takes a connection from the pool and opens a transaction. If the server has closed this connection, tries the next
    /// one. This is safe, because nothing was sent before `BEGIN`.
    pub(crate) async fn begin(
        connections: &Connections,
        limits: Limits,
        until: Instant,
    ) -> Result<Self, Error> {
        Tries::new(connections, until).begin(limits).await
    }

    /// Gives up the connection, so that dropping it closes it. Also closes the connections that are idle now.
    pub(crate) fn close(&mut self) {
        (self.is_idle, self.is_lost) = (false, true);
        self.connections.close_idle();
    }

    /// Opens a transaction in a way that sqlx counts, so that a handler's `begin()` makes a savepoint.
    ///
    /// # Errors
    ///
    /// Returns an error if PostgreSQL fails.
    pub async fn open(&mut self, limits: Limits) -> Result<(), Error> {
        self.is_idle = false;
        let begin = limits.begin(self.connection.server_version_num());
        PgTransactionManager::begin(&mut self.connection, Some(begin)).await
    }

    /// Commits the transaction. If the response is lost, the transaction may have been committed.
    ///
    /// # Errors
    ///
    /// Returns an error if PostgreSQL fails.
    pub async fn commit(&mut self) -> Result<(), Error> {
        PgTransactionManager::commit(&mut self.connection).await?;
        self.is_idle = true;
        Ok(())
    }

    /// Rolls back the transaction with its savepoints.
    ///
    /// # Errors
    ///
    /// Returns an error if PostgreSQL fails.
    pub async fn roll_back(&mut self) -> Result<(), Error> {
        if self.depth() == 0 && !self.is_lost {
            // If a savepoint could not begin, sqlx sends a `ROLLBACK` with the next request.
            self.connection.ping().await?;
        }
        while self.depth() > 0 {
            PgTransactionManager::rollback(&mut self.connection).await?;
        }
        self.is_idle = !self.is_lost;
        Ok(())
    }

    /// Returns the number of open levels: the transaction itself plus its savepoints.
    pub(crate) fn depth(&self) -> usize {
        PgTransactionManager::get_transaction_depth(&self.connection)
    }

    /// Runs requests that need no transaction. Keeps the connection if the server responded. Without
    /// `time_left`, the requests may take any amount of time once there is a connection.
    pub(crate) async fn run<T>(
        connections: &Connections,
        time_left: Option<Duration>,
        requests: impl AsyncFnOnce(&mut PgConnection) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let left = time_left.unwrap_or(ACQUIRE_TIME);
        let until = system::instant() + left;
        let mut tx = Self::acquire(connections, until).await?;
        if time_left.is_none() {
            return tx.request(requests).await;
        }
        // The caller retries the request on another connection.
        let half = until.saturating_duration_since(system::instant()) / 2;
        let is_new = tx.connection.cached_statements_size() == 0;
        let limit = if is_new { half } else { half.min(MAX_SILENCE) };
        let answer = timeout(limit, tx.request(requests)).await;
        answer.unwrap_or_else(|_elapsed| {
            tx.close();
            Err(Error::Io(std::io::ErrorKind::TimedOut.into()))
        })
    }

    /// Runs requests that need no transaction on this connection.
    async fn request<T>(
        &mut self,
        requests: impl AsyncFnOnce(&mut PgConnection) -> Result<T, Error>,
    ) -> Result<T, Error> {
        self.is_idle = false;
        let answer = requests(&mut self.connection).await;
        if answer.as_ref().is_err_and(is_connection_lost) {
            self.close();
        } else {
            self.is_idle = true;
        }
        answer
    }
}

/// Time limit of the ping that sqlx sends before it returns a connection to its pool.
const RETURN_TIME: Duration = Duration::from_secs(1);

impl Drop for TransactionConnection {
    fn drop(&mut self) {
        // Dropping this future closes the socket at once and frees the slot in the pool. `close_on_drop`
        // would keep the slot until the server has responded, for 5 seconds behind TLS.
        let returned = self.connection.return_to_pool();
        if self.is_idle {
            system::spawn(async move {
                let _in_time = timeout(RETURN_TIME, returned).await;
            });
        }
    }
}

impl Deref for TransactionConnection {
    type Target = PgConnection;

    fn deref(&self) -> &PgConnection {
        &self.connection
    }
}

impl DerefMut for TransactionConnection {
    fn deref_mut(&mut self) -> &mut PgConnection {
        &mut self.connection
    }
}

//! [`PostgresStore`]: records in a PostgreSQL table.

pub(crate) mod row;

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use sqlx::{Error, Executor as _, PgConnection, PgPool, postgres::PgConnectOptions};

use super::{
    connections::Connections,
    explain::{explain, kind},
    store::row::int,
    transaction_connection::{Limits, TransactionConnection},
};
use sqs_once::{
    internal::{
        RequestErrorKind,
        system::{Instant, timeout},
    },
    protocol::{Key, Record, State, Swap, Timestamp},
    store::{RequestContext, Store, StoreError, Swapped},
};

/// Records in a PostgreSQL table, for effects outside the database. Clones share the pool and the state.
///
/// For business writes in the same database, use [`PostgresMode`](crate::PostgresMode). Both can share a table,
/// which [`migrate`](crate::migrate) creates.
///
/// ```no_run
/// use sqs_once::Once;
/// use sqs_once_postgres::PostgresStore;
///
/// # async fn main_() -> Result<(), sqlx::Error> {
/// let pool = sqlx::PgPool::connect_lazy("postgres://orders@db.example/orders?sslmode=verify-full")?;
/// let once = Once::new(PostgresStore::new(pool));
/// # Ok(()) }
/// ```
///
/// # Statements
///
/// A swap that expects no record is `INSERT ... ON CONFLICT DO NOTHING`. A swap that expects a record is an `UPDATE` with
/// the condition that owner and version are as expected. If a swap wrote no row, a `SELECT` reads the current record.
///
/// # Retention
///
/// After its first completion, and after every 50 more, a process deletes at most 100 expired records. Claims treat an
/// expired record as absent, whether or not it is deleted.
#[derive(Clone, Debug)]
pub struct PostgresStore {
    connections: Connections,
    /// How many operations this process has completed.
    completions: Arc<AtomicU64>,
}

/// How many completions there are between two deletions.
const DELETION_PERIOD: u64 = 50;
/// How many records are deleted at a time. Each completion creates one record that will expire, so with twice
/// as many deletions the table stops growing under steady load.
const MAX_DELETED: u64 = 2 * DELETION_PERIOD;
/// How many seconds after its expiry a record may be deleted. We wait because another worker's clock may be behind.
const DELETED_AFTER: u64 = 60;
const MAX_DELETION_TIME: Duration = Duration::from_secs(1);

/// How long the read at start may take. Lambda's init phase ends after 10 seconds.
const MAX_WARM_UP_TIME: Duration = Duration::from_secs(2);

impl PostgresStore {
    /// Creates a store for records in the table `sqs_once_records`, which the search path must find.
    #[must_use]
    pub fn new(pool: PgPool) -> Self {
        Self {
            connections: Connections::new(pool),
            completions: Arc::default(),
        }
    }

    /// Sets a function that returns short-lived passwords, such as IAM tokens or a secret that is rotated. When the server
    /// rejects a login (28P01 or 28000), the store calls `password` with the pool's options. It gives the pool the options
    /// that `password` returns, and tries once more. Open connections stay open.
    ///
    /// If `password` returns an error, the message goes back to the queue, and the error's text is logged.
    ///
    /// ```no_run
    /// use sqlx::postgres::PgConnectOptions;
    /// use sqs_once_postgres::PostgresStore;
    ///
    /// # fn main_(pool: sqlx::PgPool) {
    /// let store = PostgresStore::new(pool).password(async |options: PgConnectOptions| {
    ///     let password = tokio::fs::read_to_string("/run/secrets/password").await?;
    ///     Ok::<_, std::io::Error>(options.password(&password))
    /// });
    /// # }
    /// ```
    #[must_use]
    pub fn password<F, E>(
        self,
        password: impl Fn(PgConnectOptions) -> F + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = Result<PgConnectOptions, E>> + Send + 'static,
        E: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        Self {
            connections: self.connections.password(password),
            ..self
        }
    }

    /// Reads the table, so that the log shows at start whether messages will fail.
    pub(crate) async fn warm_up(&self) {
        const READ: &str = "SELECT FROM sqs_once_records LIMIT 0";
        let read = self.run(None, async |connection| {
            connection.execute(READ).await.map(|_| ())
        });
        let error = match timeout(MAX_WARM_UP_TIME, read).await {
            Ok(Ok(())) => return,
            Ok(Err(error)) => explain(&error),
            Err(_elapsed) => "no answer in time".to_owned(),
        };
        tracing::warn!(
            error,
            "could not read the table sqs_once_records at start: messages fail until it can be read"
        );
    }

    /// Takes a connection and opens a transaction on it, for a relay. `until` is when to give up.
    ///
    /// # Errors
    ///
    /// Returns an error if no server opens a transaction in time.
    pub async fn begin_until(
        &self,
        limits: Limits,
        until: Instant,
    ) -> Result<TransactionConnection, Error> {
        TransactionConnection::begin(&self.connections, limits, until).await
    }

    pub(crate) const fn connections(&self) -> &Connections {
        &self.connections
    }

    /// Runs requests outside a transaction.
    async fn run<T>(
        &self,
        time_left: Option<Duration>,
        requests: impl AsyncFnOnce(&mut PgConnection) -> Result<T, Error>,
    ) -> Result<T, Error> {
        TransactionConnection::run(&self.connections, time_left, requests).await
    }

    /// Counts a completion. After every [`DELETION_PERIOD`] completions, deletes expired records. The deletion may take up
    /// to a second, or a quarter of `time_left` if that is less. Logs failures.
    pub(crate) async fn completed(&self, now: Timestamp, time_left: Duration) {
        let completed = self.completions.fetch_add(1, Relaxed);
        if !completed.is_multiple_of(DELETION_PERIOD) {
            return;
        }
        let time = MAX_DELETION_TIME.min(time_left / 4);
        match timeout(time, self.delete_expired(now)).await {
            Ok(Ok(0)) => {}
            Ok(Ok(records)) => tracing::debug!(records, "deleted expired records"),
            Ok(Err(error)) => {
                tracing::warn!(error = explain(&error), "could not delete expired records");
            }
            Err(_elapsed) => tracing::warn!("could not delete expired records in time"),
        }
    }

    /// Deletes at most [`MAX_DELETED`] expired records, in one short transaction.
    async fn delete_expired(&self, now: Timestamp) -> Result<u64, Error> {
        const DELETE: &str = "DELETE FROM sqs_once_records WHERE id IN (\
            SELECT id FROM sqs_once_records WHERE expires_at < $1 \
            ORDER BY expires_at LIMIT $2 FOR UPDATE SKIP LOCKED)";
        let delete = sqlx::query(DELETE)
            .bind(int(now.as_secs().saturating_sub(DELETED_AFTER)))
            .bind(int(MAX_DELETED));
        let deleted = self.run(None, async |connection| delete.execute(connection).await);
        Ok(deleted.await?.rows_affected())
    }
}

impl Store for PostgresStore {
    type With = ();

    async fn get(&self, key: &Key, context: &RequestContext) -> Result<Option<Record>, StoreError> {
        let read = async |connection: &mut PgConnection| row::read(connection, key).await;
        let found = self.run(context.time_left(), read).await;
        found.map_err(|error| store_error("read", key, &error))
    }

    async fn swap(
        &self,
        swap: &Swap,
        (): &(),
        context: &RequestContext,
    ) -> Result<Swapped, StoreError> {
        let write = async |connection: &mut PgConnection| {
            if row::swap(connection, swap).await? {
                return Ok(Swapped::Applied);
            }
            Ok(Swapped::Found(row::read(connection, &swap.key).await?))
        };
        let swapped = self
            .run(context.time_left(), write)
            .await
            .map_err(|error| store_error(swap.to.action(), &swap.key, &error))?;
        if swapped == Swapped::Applied && matches!(swap.to.state, State::Completed { .. }) {
            let time_left = context.time_left().unwrap_or(MAX_DELETION_TIME);
            self.completed(swap.to.updated_at, time_left).await;
        }
        Ok(swapped)
    }
}

const STORE: &str = "PostgreSQL";

/// Creates the error of a request outside a transaction.
fn store_error(action: &'static str, key: &Key, error: &Error) -> StoreError {
    failed(kind(error), action, key, error)
}

/// Creates the error of a request in a transaction that wasn't committed.
pub(crate) fn not_applied(action: &'static str, key: &Key, error: &Error) -> StoreError {
    let kind = match kind(error) {
        RequestErrorKind::Unanswered => RequestErrorKind::Denied,
        answered => answered,
    };
    failed(kind, action, key, error)
}

/// Creates the error of a `COMMIT` that got no response.
pub(crate) fn unanswered_commit(key: &Key, error: &Error) -> StoreError {
    failed(RequestErrorKind::Unanswered, "commit", key, error)
}

fn failed(kind: RequestErrorKind, action: &'static str, key: &Key, error: &Error) -> StoreError {
    if let Error::Decode(why) = error {
        return StoreError::Unreadable {
            key: key.to_string(),
            store: STORE.into(),
            reason: why.to_string(),
        };
    }
    let why = explain(error);
    match kind {
        RequestErrorKind::Unanswered => StoreError::unanswered(action, key, STORE, why),
        RequestErrorKind::Contended => StoreError::contended(action, key, STORE, why),
        RequestErrorKind::Denied => StoreError::denied(action, key, STORE, why),
        RequestErrorKind::Invalid => StoreError::invalid(action, key, STORE, why),
    }
}

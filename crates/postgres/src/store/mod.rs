//! [`PostgresStore`]: records in a PostgreSQL table.

mod admin;
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
    store::row::{delete, insert, int, read, replace},
    transaction_connection::{Limits, TransactionConnection},
};
use sqs_once::{
    internal::{
        RequestErrorKind,
        system::{Instant, timeout},
    },
    protocol::{
        ClaimRequest, FencingToken, Key, Settlement, Timestamp,
        decision::{may_claim, may_settle},
    },
    store::{ClaimResponse, RequestContext, SettleResponse, Store, StoreError},
};

/// Records in a PostgreSQL table, for effects outside the database. Clones share pool and state.
///
/// For business writes in the same database, use [`PostgresMode`](crate::PostgresMode). Both modes can share
/// a table. [`migrate`](crate::migrate) creates it.
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
/// # Protocol
///
/// 1. A claim is one `INSERT ... ON CONFLICT DO NOTHING`: one round trip for a new key.
/// 2. If the key has a record, the store reads it, and
///    [`may_claim`](sqs_once::protocol::decision::may_claim) decides. The `UPDATE` that follows has the
///    condition that the row is still as it was read. PostgreSQL's `xmin` identifies the version of a row.
/// 3. A settlement reads the record, and [`may_settle`](sqs_once::protocol::decision::may_settle)
///    decides. The write has the same condition.
/// 4. If a different write came in between, the store reads again.
///
/// # Retention
///
/// After its first completion and after each 50th, a process deletes at most 100 expired records, which is
/// twice as many as it has made. Claims treat a record past its end as absent, deleted or not.
#[derive(Clone, Debug)]
pub struct PostgresStore {
    connections: Connections,
    /// Completions of this process.
    completions: Arc<AtomicU64>,
}

/// How often one claim or settlement reads and writes. Each repetition means that a different write
/// succeeded.
const MAX_TRIES: usize = 10;

/// Completions between two deletions.
const DELETION_PERIOD: u64 = 50;
/// How many records are deleted at a time. Each completion creates one record that will expire, so with twice
/// as many deletions the table stops growing under a steady load.
const MAX_DELETED: u64 = 2 * DELETION_PERIOD;
/// Seconds from the end of a record until it is deleted, because another worker's clock may be behind.
const DELETED_AFTER: u64 = 60;
const MAX_DELETION_TIME: Duration = Duration::from_secs(1);

/// Longest read at start. Lambda's init phase ends after 10 seconds.
const MAX_WARM_UP_TIME: Duration = Duration::from_secs(2);

impl PostgresStore {
    /// Creates a store for records in the table `sqs_once_records`, which is found by the search path.
    #[must_use]
    pub fn new(pool: PgPool) -> Self {
        Self {
            connections: Connections::new(pool),
            completions: Arc::default(),
        }
    }

    /// Sets what to ask for short-lived passwords, such as tokens of IAM or a secret that is rotated. When the
    /// server rejects a login (28P01 or 28000), the store calls `password` with the options of the pool, gives
    /// the pool the options that it returns, and tries once more. Open connections stay open.
    ///
    /// An error makes the message return to the queue, and its text is logged.
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

    /// Reads the table, so that the log shows at start if messages will fail.
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

    /// Takes a connection and opens a transaction on it, for a relay. Gives up at this time.
    ///
    /// # Errors
    ///
    /// If no server opens a transaction in time.
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

    /// Counts a completion. After each [`DELETION_PERIOD`] of them, deletes expired records: for at most a
    /// second, and a quarter of `time_left`. Failures are logged.
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
    async fn claim(
        &self,
        request: &ClaimRequest,
        context: &RequestContext,
    ) -> Result<ClaimResponse, StoreError> {
        let key = &request.key;
        let answer = self.run(context.time_left(), async |connection| {
            for _ in 0..MAX_TRIES {
                if insert(connection, key, &request.record(None)).await? {
                    return Ok(Some(ClaimResponse::Applied { replaced: None }));
                }
                let Some(kept) = read(connection, key).await? else {
                    continue;
                };
                if !may_claim(Some(&kept.record), request) {
                    return Ok(Some(ClaimResponse::ConditionFailed(kept.record)));
                }
                let replaced = Some(kept.record).filter(|record| !record.is_expired(request.now));
                let claimed = request.record(replaced.as_ref());
                if replace(connection, key, &claimed, &kept.version).await? {
                    return Ok(Some(ClaimResponse::Applied { replaced }));
                }
            }
            Ok(None)
        });
        answered("claim", key, answer.await)
    }

    async fn settle(
        &self,
        fence: &FencingToken,
        settlement: &Settlement,
        now: Timestamp,
        context: &RequestContext,
    ) -> Result<SettleResponse, StoreError> {
        let key = &fence.key;
        let answer = self.run(context.time_left(), async |connection| {
            for _ in 0..MAX_TRIES {
                let Some(kept) = read(connection, key).await? else {
                    return Ok(Some(SettleResponse::ConditionFailed(None)));
                };
                if !may_settle(Some(&kept.record), fence) {
                    return Ok(Some(SettleResponse::ConditionFailed(Some(kept.record))));
                }
                let written = match settlement.apply(&kept.record, now) {
                    Some(settled) => replace(connection, key, &settled, &kept.version).await?,
                    None => delete(connection, key, &kept.version).await?,
                };
                if written {
                    return Ok(Some(SettleResponse::Applied));
                }
            }
            Ok(None)
        });
        let answer = answered(settlement.name(), key, answer.await)?;
        if matches!(
            (settlement, &answer),
            (Settlement::Complete { .. }, SettleResponse::Applied)
        ) {
            let time_left = context.time_left().unwrap_or(MAX_DELETION_TIME);
            self.completed(now, time_left).await;
        }
        Ok(answer)
    }
}

/// Returns the response after all tries. `None` means that each of them met contention.
fn answered<T>(
    action: &'static str,
    key: &Key,
    answer: Result<Option<T>, Error>,
) -> Result<T, StoreError> {
    match answer {
        Ok(Some(answer)) => Ok(answer),
        Ok(None) => Err(StoreError::contended(
            action,
            key,
            STORE,
            "other workers write this record",
        )),
        Err(error) => Err(store_error(action, key, &error)),
    }
}

const STORE: &str = "PostgreSQL";

/// Creates the error of a request outside a transaction.
fn store_error(action: &'static str, key: &Key, error: &Error) -> StoreError {
    failed(kind(error), action, key, error)
}

/// Creates the error of a request in a transaction that was not committed.
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

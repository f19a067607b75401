//! [`PostgresMode`]: the mode whose records and business writes commit in one PostgreSQL transaction.

use std::{error::Error, sync::Arc, time::Duration};

use serde::Serialize;
use sqlx::{PgPool, postgres::PgConnectOptions};
use sqs_once::{
    Attempt, Failure, Mode, Once, Operation, Outcome,
    internal::{
        History, ModeOptions, ModeSettings, Published, Records, first_fault, guard, to_output,
    },
    protocol::{AfterFailure, Timestamp},
    store::Results,
};
use tokio::sync::Mutex;

use crate::{
    run::Run,
    store::PostgresStore,
    transaction::{InTransaction, OpenTransaction},
};

/// The PostgreSQL mode: runs operations whose only effect is writes to one PostgreSQL database.
///
/// The handler writes in a [`Transaction`](crate::Transaction) that the library commits together with the
/// record. So the writes happen once, even if workers crash or responses are lost.
///
/// ```text
/// attempt 1  BEGIN  claim ──── handler writes ──── complete  COMMIT
/// attempt 2         claim: waits for the lock of the record ........ duplicate
/// ```
///
/// ```no_run
/// use std::time::Duration;
/// use sqs_once::{Attempt, Consumer, Failure, handler_fn, protocol::Namespace};
/// use sqs_once_postgres::{PostgresMode, InTransaction, Transaction};
///
/// async fn register(user: String, attempt: Attempt) -> Result<InTransaction<()>, Failure> {
///     let mut tx = Transaction::of(&attempt)?;
///     sqlx::query("INSERT INTO users (id) VALUES ($1)").bind(user).execute(&mut *tx).await?;
///     Ok(tx.done(()))
/// }
///
/// # fn main_() -> Result<(), Box<dyn std::error::Error>> {
/// let pool = sqlx::PgPool::connect_lazy("postgres://app@db.example/app?sslmode=verify-full")?;
/// let mode = PostgresMode::new(pool).retention(Duration::from_secs(7 * 24 * 3600));
/// let consumer = Consumer::new(mode, Namespace::new("users")?, handler_fn(register));
/// # Ok(()) }
/// ```
///
/// # Ends of an attempt
///
/// | end | database | next attempt |
/// | --- | --- | --- |
/// | the handler returned [`InTransaction`] | commits writes, record and events | duplicate |
/// | permanent failure | rolls back, then records `FAILED` | this message: failed before |
/// | retryable failure, panic, cut-off, crash | rolls back | runs |
/// | serialization failure or deadlock | rolls back | runs at once, while there is time |
/// | no response to `COMMIT` | unknown | shows whether the writes were applied |
///
/// A handler may run again, so it must have no effect other than its writes in the transaction.
///
/// # Locks
///
/// There is no lease, because an open transaction locks its record. A second delivery waits for the end of
/// that transaction. If its time runs out first, the outcome is a [conflict](Outcome::Conflict).
///
/// The server ends the transaction of a frozen worker. From PostgreSQL 17 on it does so one second after the
/// deadline. Older versions may end a transaction that is between two statements later, because their idle
/// limit starts at the end of the last statement.
#[derive(Clone, Debug)]
pub struct PostgresMode {
    records: Records<PostgresStore>,
}

impl PostgresMode {
    /// Creates the mode on this database, with a retention of 20 days. Each running handler needs a connection
    /// of the pool.
    ///
    /// [`migrate`](crate::migrate) creates the table of the records, before the first message.
    #[must_use]
    pub fn new(pool: PgPool) -> Self {
        Self {
            records: Once::new(PostgresStore::new(pool)).records,
        }
    }

    /// Sets the retention of records: see [`Once::retention`].
    #[must_use]
    pub fn retention(mut self, retention: Duration) -> Self {
        self.records.retention = retention;
        self
    }

    /// Sets how a `FAILED` record affects other messages with the same key.
    #[must_use]
    pub fn after_failure(mut self, after_failure: AfterFailure) -> Self {
        self.records.after_failure = after_failure;
        self
    }

    /// Sets what to ask for short-lived passwords: see [`PostgresStore::password`].
    #[must_use]
    pub fn password<F, E>(
        mut self,
        password: impl Fn(PgConnectOptions) -> F + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = Result<PgConnectOptions, E>> + Send + 'static,
        E: Into<Box<dyn Error + Send + Sync>>,
    {
        self.records.store = self.records.store.password(password);
        self
    }

    /// Sets where outputs are stored, by default in the record: see [`Once::results`].
    ///
    /// With outputs in S3, the transaction stays open while the output is stored, for at most 2 seconds.
    #[must_use]
    pub fn results(mut self, results: Results) -> Self {
        self.records.results = results;
        self
    }

    /// Replaces the system's wall clock, for tests.
    #[must_use]
    pub fn clock(mut self, clock: fn() -> Timestamp) -> Self {
        self.records.clock = clock;
        self
    }

    /// Runs one operation: see [`Mode::run`].
    pub async fn run<W, F, O>(&self, operation: Operation, work: W) -> Outcome
    where
        W: FnOnce(Attempt) -> F,
        F: Future<Output = Result<InTransaction<O>, Failure>>,
        O: Serialize + Send + 'static,
    {
        let Operation {
            key,
            fingerprint,
            delivery,
            deadline,
            gate,
            meter,
            ..
        } = operation;
        if !deadline.may_start() {
            return Outcome::NotStarted;
        }
        // The lock of the record replaces a lease.
        let (now, message_id) = (self.records.now(), delivery.message_id());
        let run = Run {
            records: &self.records,
            request: (self.records).request(&key, fingerprint, message_id, now, Duration::ZERO),
            deadline,
            meter,
        };
        let (mut tx, claim) = match run.begin().await {
            Ok(begun) => begun,
            Err(outcome) => return outcome,
        };
        // The claim may have waited for a lock.
        if !deadline.may_start() {
            run.roll_back(&mut tx).await;
            return Outcome::NotStarted;
        }
        let history = History::from(&claim.claimed);
        let tx = Arc::new(Mutex::new(tx));
        let attempt =
            Attempt::new(key, delivery, history, deadline).with_extension(OpenTransaction::of(&tx));
        if gate.is_none() {
            attempt.log_history();
        }
        let answer = guard(deadline, async {
            let InTransaction {
                output,
                events,
                transaction,
            } = work(attempt).await?;
            if let Some(fault) = first_fault(&events) {
                return Err(Failure::permanent(fault));
            }
            let publish = |(index, event)| Published::new(&run.request.key, index, event);
            let published = events.into_iter().enumerate().map(publish);
            Ok((to_output(&output), published.collect(), transaction))
        });
        match answer.await {
            Ok((output, events, transaction)) => {
                // Dropping the transaction returns the connection to the pool.
                drop(tx);
                run.complete(&claim, output, events, transaction).await
            }
            Err(end) => run.end_without_output(tx, end).await,
        }
    }
}

impl sqs_once::internal::Sealed for PostgresMode {}

impl ModeSettings for PostgresMode {
    async fn with_settings(self, options: ModeOptions) -> Self {
        if options.warm_up {
            self.records.store.warm_up().await;
        }
        self.after_failure(options.after_failure)
            .results(options.results)
            .retention(options.retention)
    }
}

sqs_once::explain_wrong_output!([] PostgresMode);

#[diagnostic::do_not_recommend]
impl<O: Serialize + Send + 'static> Mode<InTransaction<O>> for PostgresMode {
    fn run<W, F>(&self, operation: Operation, work: W) -> impl Future<Output = Outcome> + Send
    where
        W: FnOnce(Attempt) -> F + Send,
        F: Future<Output = Result<InTransaction<O>, Failure>> + Send,
    {
        Self::run(self, operation, work)
    }

    fn now(&self) -> Timestamp {
        self.records.now()
    }

    fn results(&self) -> Results {
        self.records.results.clone()
    }
}

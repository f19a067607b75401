//! [`PostgresMode`]: commits records and business writes in one PostgreSQL transaction.

use std::{error::Error, sync::Arc, time::Duration};

use serde::Serialize;
use sqlx::{PgPool, postgres::PgConnectOptions};
use sqs_once::{
    Attempt, Failure, Mode, Once, Operation, Outcome,
    internal::{
        Claimed, HandlerEnd, History, ModeOptions, ModeSettings, Published, Records, Start,
        first_fault, guard_now, run_here, to_output,
    },
    protocol::{Claim, Key, StoredResult, Timestamp},
    store::Results,
};
use tokio::sync::Mutex;

use crate::{
    run::{Locked, PostgresRun},
    store::PostgresStore,
    transaction::{InTransaction, OpenTransaction, Transaction},
    transaction_connection::TransactionConnection,
};

/// The PostgreSQL mode: for operations whose only effects are writes to one PostgreSQL database.
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
/// use sqs_once::{Attempt, Failure, Settings, handler_fn};
/// use sqs_once_postgres::{PostgresMode, InTransaction, Transaction};
///
/// async fn register(user: String, attempt: Attempt) -> Result<InTransaction<()>, Failure> {
///     let mut tx = Transaction::of(&attempt)?;
///     sqlx::query("INSERT INTO users (id) VALUES ($1)").bind(user).execute(&mut *tx).await?;
///     Ok(tx.done(()))
/// }
///
/// # async fn main_() -> Result<(), Box<dyn std::error::Error>> {
/// let pool = sqlx::PgPool::connect_lazy("postgres://app@db.example/app?sslmode=verify-full")?;
/// let mode = PostgresMode::new(pool);
/// let consumer = Settings::from_env().consumer(mode, Ok(handler_fn(register))).await?;
/// # Ok(()) }
/// ```
///
/// # How an attempt ends
///
/// | end | database | next attempt |
/// | --- | --- | --- |
/// | the handler returned [`InTransaction`] | commits writes, record and events | duplicate |
/// | permanent failure | rolls back, then records `FAILED` | for a message sent before the failure: failed before; for one sent later: runs |
/// | retryable failure, panic, cut-off, crash | rolls back | runs |
/// | serialization failure or deadlock | rolls back | runs at once, while there is time |
/// | no response to `COMMIT` | unknown | shows whether the writes were applied |
///
/// A handler may run again, so it must have no effect other than its writes in the transaction.
///
/// # Locks
///
/// There is no lease, because an open transaction locks its record. A second delivery waits until that
/// transaction ends. If its time runs out first, the outcome is a [conflict](Outcome::Conflict).
///
/// The server ends the transaction of a frozen worker. PostgreSQL 17 and later do so one second after the
/// deadline. Older versions may do so later if the transaction is between two statements, because their idle
/// limit starts at the end of the last statement.
#[derive(Clone, Debug)]
pub struct PostgresMode {
    records: Records<PostgresStore>,
}

impl PostgresMode {
    /// Creates the mode for this database, with a retention of 20 days. Each running handler needs a connection from the pool.
    ///
    /// Create the tables with [`migrate`](crate::migrate) before the first message.
    #[must_use]
    pub fn new(pool: PgPool) -> Self {
        Self {
            records: Once::new(PostgresStore::new(pool)).records,
        }
    }

    /// Sets how long records are kept: see [`Once::retention`].
    #[must_use]
    pub fn retention(mut self, retention: Duration) -> Self {
        self.records.retention = retention;
        self
    }

    /// Sets a function that returns short-lived passwords: see [`PostgresStore::password`].
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

    /// Sets where outputs are stored (by default in the record): see [`Once::results`].
    ///
    /// With outputs in S3, the transaction stays open while an output is being stored, for at most 2 seconds.
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

    /// Runs one operation: begins a transaction, lends it to `work`, and commits it with the record. See
    /// [`Once::run`].
    pub async fn run<W, F, O>(&self, operation: Operation, work: W) -> Outcome
    where
        W: FnOnce(Attempt) -> F,
        F: Future<Output = Result<InTransaction<O>, Failure>>,
        O: Serialize + Send + 'static,
    {
        run_here(self, operation, work).await
    }

    fn attempt<'a>(&'a self, operation: &'a Operation, claim: Claim) -> PostgresRun<'a> {
        PostgresRun {
            records: &self.records,
            operation,
            claim,
        }
    }
}

/// A claim with its open transaction, which locks the record.
#[derive(Debug)]
pub struct OpenClaim {
    claim: Claim,
    locked: Locked,
    tx: Arc<Mutex<TransactionConnection>>,
}

impl sqs_once::internal::Sealed for PostgresMode {}

impl ModeSettings for PostgresMode {
    async fn with_settings(self, options: ModeOptions) -> Self {
        if options.warm_up {
            self.records.store.warm_up().await;
        }
        self.results(options.results).retention(options.retention)
    }
}

sqs_once::explain_wrong_output!([] PostgresMode);

#[diagnostic::do_not_recommend]
impl<O: Serialize + Send + 'static> Mode<InTransaction<O>> for PostgresMode {
    type Claim = OpenClaim;

    async fn claim(&self, operation: &Operation, _: Start) -> Claimed<OpenClaim> {
        if !operation.deadline.may_start() {
            return Claimed::Ended(Outcome::NotStarted);
        }
        // The record's lock replaces a lease.
        let claim = (self.records).claim(operation, self.records.now(), None);
        let run = self.attempt(operation, claim);
        match run.begin().await {
            Ok((tx, locked)) => {
                let history = History::of(locked.replaced.as_ref(), &locked.record);
                let open = OpenClaim {
                    claim: run.claim,
                    locked,
                    tx: Arc::new(Mutex::new(tx)),
                };
                Claimed::run(open, history)
            }
            Err(outcome) => Claimed::Ended(outcome),
        }
    }

    fn lend(&self, claim: &OpenClaim, attempt: Attempt) -> Attempt {
        attempt.with_extension(OpenTransaction::of(&claim.tx))
    }

    async fn finish(
        &self,
        operation: &Operation,
        open: OpenClaim,
        end: HandlerEnd<InTransaction<O>>,
    ) -> Outcome {
        let OpenClaim { claim, locked, tx } = open;
        let run = self.attempt(operation, claim);
        let answer = match end.answer() {
            Ok(answer) => answer.and_then(|answer| guard_now(|| prepared(&operation.key, answer))),
            Err(outcome) => return run.not_started(tx, outcome).await,
        };
        match answer {
            Ok((output, events, transaction)) => {
                // Dropping the transaction returns the connection to the pool.
                drop(tx);
                run.complete(&locked, output, events, transaction).await
            }
            Err(end) => run.end_without_output(tx, end).await,
        }
    }

    async fn without_body(&self, operation: &Operation) -> Option<Outcome> {
        self.records.without_body(operation).await
    }

    fn now(&self) -> Timestamp {
        self.records.now()
    }

    fn results(&self) -> Results {
        self.records.results.clone()
    }
}

/// Prepares what the handler returned, so that it can be committed.
fn prepared<O: Serialize + Send>(
    key: &Key,
    answer: InTransaction<O>,
) -> Result<(StoredResult, Vec<Published>, Transaction), Failure> {
    let InTransaction {
        output,
        events,
        transaction,
    } = answer;
    if let Some(fault) = first_fault(&events) {
        return Err(Failure::permanent(fault));
    }
    let publish = |(index, event)| Published::new(key, index, event);
    let published = events.into_iter().enumerate().map(publish).collect();
    Ok((to_output(&output), published, transaction))
}

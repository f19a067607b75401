//! [`Transaction`]: the handle that a handler gets on a transaction, which the library commits.

use std::{
    ops::{Deref, DerefMut},
    sync::{Arc, Weak},
};

use serde::Serialize;
use sqlx::PgConnection;
use tokio::sync::{Mutex, OwnedMutexGuard};

use super::transaction_connection::TransactionConnection;
use sqs_once_core::{
    event::Event,
    handler::{Answer, Attempt, Failure},
};

/// The transaction of an attempt. Only the library commits it, together with the record.
///
/// It dereferences to a [`PgConnection`]: pass `&mut *tx` to sqlx. `tx.begin()` of
/// [`sqlx::Connection`] makes a savepoint.
///
/// [`done`](Self::done) sends the transaction back with the handler's output. If the handler fails,
/// panics or is cut off, the transaction is rolled back.
///
/// Do not run `COMMIT` or `ROLLBACK` as a statement. The library detects it, and records a permanent
/// failure: writes after such a statement are no part of the transaction.
#[derive(Debug)]
pub struct Transaction {
    tx: OwnedMutexGuard<TransactionConnection>,
}

impl Transaction {
    /// The transaction of an attempt, for business writes that commit together with the record: see
    /// [`InPostgres`](crate::InPostgres). A transaction that was dropped can be taken again.
    ///
    /// # Errors
    ///
    /// A permanent failure if the attempt runs in another mode, or if the transaction is in use. A
    /// retryable one if the attempt has ended.
    pub fn of(attempt: &Attempt) -> Result<Self, Failure> {
        let taken = match attempt.extension::<OpenTransaction>() {
            Some(open) => open.take(),
            None => Err(NoTransaction::OtherMode),
        };
        taken.map_err(|error| match error {
            NoTransaction::Ended => Failure::retryable(error),
            NoTransaction::OtherMode | NoTransaction::InUse => Failure::permanent(error),
        })
    }

    /// The handler's output, and the transaction to commit with it.
    pub fn done<O>(self, output: O) -> InTransaction<O> {
        InTransaction {
            output,
            events: Vec::new(),
            transaction: self,
        }
    }

    pub(crate) fn tx(&mut self) -> &mut TransactionConnection {
        &mut self.tx
    }
}

impl Deref for Transaction {
    type Target = PgConnection;

    fn deref(&self) -> &PgConnection {
        &self.tx
    }
}

impl DerefMut for Transaction {
    fn deref_mut(&mut self) -> &mut PgConnection {
        &mut self.tx
    }
}

/// An output, and the transaction that commits with its record: the answer of a handler in
/// [`InPostgres`](crate::InPostgres). [`Transaction::done`] creates it.
#[derive(Debug)]
#[must_use = "the transaction is committed only if the handler returns this"]
pub struct InTransaction<O> {
    pub(crate) output: O,
    pub(crate) events: Vec<Event>,
    pub(crate) transaction: Transaction,
}

#[diagnostic::do_not_recommend]
impl<O: Serialize + Send> Answer for InTransaction<O> {
    type Result = O;
}

impl<O> InTransaction<O> {
    /// Publishes an event once the operation is recorded. The event is one more row of the same
    /// transaction, in the table `sqs_once_outbox`. A relay sends it at least once: `docs/outbox.md`.
    ///
    /// Events of one group are sent in the order of the commits, and those of one answer in this order.
    /// So commits with events of one group wait for each other, each for two round trips. So do those of
    /// any two groups that share one of 256 locks.
    ///
    /// An answer has at most 1,000 events.
    /// More events are a permanent failure of the operation, as an event beyond the limits of [`Event`]
    /// is.
    ///
    /// ```
    /// use sqs_once::{Attempt, Event, Failure};
    /// use sqs_once_postgres::{InTransaction, Transaction};
    ///
    /// async fn place(order: String, attempt: Attempt) -> Result<InTransaction<()>, Failure> {
    ///     let tx = Transaction::of(&attempt)?;
    ///     Ok(tx.done(()).publish(Event::new("order-placed", &order).group("customer-7")))
    /// }
    /// ```
    pub fn publish(mut self, event: Event) -> Self {
        self.events.push(event);
        self
    }
}

/// The reason why a handler gets no transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
enum NoTransaction {
    #[error("this attempt has no transaction: run the handler in `InPostgres`")]
    OtherMode,
    #[error("the transaction of this attempt is in use: call `Transaction::of` once")]
    InUse,
    #[error("the attempt has ended, and its transaction too")]
    Ended,
}

/// An attempt's way to its transaction. The mode owns the transaction, and ends it with the attempt.
#[derive(Clone, Debug)]
pub(crate) struct OpenTransaction(Weak<Mutex<TransactionConnection>>);

impl OpenTransaction {
    pub(crate) fn of(tx: &Arc<Mutex<TransactionConnection>>) -> Self {
        Self(Arc::downgrade(tx))
    }

    fn take(&self) -> Result<Transaction, NoTransaction> {
        let open = self.0.upgrade().ok_or(NoTransaction::Ended)?;
        let tx = open.try_lock_owned().map_err(|_| NoTransaction::InUse)?;
        Ok(Transaction { tx })
    }
}

//! [`Transaction`]: the handler's handle to a transaction that the library commits.

use std::{
    ops::{Deref, DerefMut},
    sync::{Arc, Weak},
};

use serde::Serialize;
use sqlx::PgConnection;
use tokio::sync::{Mutex, OwnedMutexGuard};

use super::transaction_connection::TransactionConnection;
use sqs_once::{Attempt, Event, Failure, internal::HandlerOutput};

/// The transaction of an attempt. Only the library commits it, together with the record.
///
/// A `Transaction` dereferences to a [`PgConnection`]: pass `&mut *tx` to sqlx. `tx.begin()` of [`sqlx::Connection`] makes
/// a savepoint. If that fails, or if you drop its future, as a timeout does, sqlx also rolls back the enclosing savepoint.
/// Without one, it rolls back the whole transaction, and a later statement would run outside of it. So return an error
/// whenever it happens.
///
/// [`done`](Self::done) returns the transaction together with the handler's output. If the handler fails,
/// panics or is cut off, the transaction is rolled back.
///
/// Do not run `COMMIT` or `ROLLBACK` as a statement. Writes after it would not be part of the transaction, so
/// the library detects this and records a permanent failure.
///
/// # Panics
///
/// If a `begin()` has ended the transaction, the next use panics, so that the attempt fails without having written anything.
/// Code that already holds a `&mut PgConnection` doesn't panic.
#[derive(Debug)]
pub struct Transaction {
    tx: OwnedMutexGuard<TransactionConnection>,
}

impl Transaction {
    /// Returns the transaction of an attempt, for business writes that commit together with the record: see
    /// [`PostgresMode`](crate::PostgresMode). If you drop it, you can get it again.
    ///
    /// # Errors
    ///
    /// Returns a permanent failure if the attempt runs in another mode, or if the transaction is in use. Returns a retryable
    /// failure if the attempt has ended.
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

    /// Returns the handler's output together with the transaction to commit.
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
        assert!(
            self.tx.depth() > 0,
            "a savepoint could not begin, so the transaction was rolled back: return the error of `begin()`"
        );
        &mut self.tx
    }
}

/// An output, and the transaction that commits together with its record. A handler returns this in
/// [`PostgresMode`](crate::PostgresMode). [`Transaction::done`] creates it.
#[derive(Debug)]
#[must_use = "the transaction is committed only if the handler returns this"]
pub struct InTransaction<O> {
    pub(crate) output: O,
    pub(crate) events: Vec<Event>,
    pub(crate) transaction: Transaction,
}

#[diagnostic::do_not_recommend]
impl<O: Serialize + Send> HandlerOutput for InTransaction<O> {
    type Result = O;
}

impl<O> InTransaction<O> {
    /// Publishes an event when the operation is recorded. The event is one more row in the same transaction,
    /// in the table `sqs_once_outbox`. A relay sends it at least once: see `docs/outbox.md`.
    ///
    /// The relay sends a group's events in commit order, and within a commit in the order in which you publish
    /// them. So commits with events of the same group wait for each other, each for two round trips. Groups
    /// share 256 locks, so the same can happen to two different groups.
    ///
    /// An operation can publish at most 1,000 events. If there are more, or one exceeds the limits of
    /// [`Event`], the operation fails permanently.
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

/// Why a handler gets no transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
enum NoTransaction {
    #[error("this attempt has no transaction: run the handler in `PostgresMode`")]
    OtherMode,
    #[error("the transaction of this attempt is in use: call `Transaction::of` once")]
    InUse,
    #[error("the attempt has ended, and its transaction too")]
    Ended,
}

/// Leads from an attempt to its transaction. The mode owns the transaction, and ends it with the attempt.
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

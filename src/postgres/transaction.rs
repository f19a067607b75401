//! [`Transaction`]: the handle that a handler gets on a transaction, which the library commits.

use std::{
    ops::{Deref, DerefMut},
    sync::{Arc, Weak},
};

use sqlx::PgConnection;
use tokio::sync::{Mutex, OwnedMutexGuard};

use super::lent::Lent;
use crate::event::Event;

/// The transaction of an attempt, from [`Attempt::transaction`](crate::Attempt::transaction). Only
/// the library commits it, together with the record.
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
    lent: OwnedMutexGuard<Lent>,
}

impl Transaction {
    /// The handler's output, and the transaction to commit with it.
    pub fn done<O>(self, output: O) -> InTransaction<O> {
        InTransaction {
            output,
            events: Vec::new(),
            transaction: self,
        }
    }

    pub(crate) fn lent(&mut self) -> &mut Lent {
        &mut self.lent
    }
}

impl Deref for Transaction {
    type Target = PgConnection;

    fn deref(&self) -> &PgConnection {
        &self.lent
    }
}

impl DerefMut for Transaction {
    fn deref_mut(&mut self) -> &mut PgConnection {
        &mut self.lent
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
    /// use sqs_once::{Attempt, Event, Failure, InTransaction};
    ///
    /// async fn place(order: String, attempt: Attempt) -> Result<InTransaction<()>, Failure> {
    ///     let tx = attempt.transaction()?;
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
pub(crate) enum NoTransaction {
    #[error("this attempt has no transaction: run the handler in `Once::in_postgres`")]
    OtherMode,
    #[error("the transaction of this attempt is in use: call `Attempt::transaction` once")]
    InUse,
    #[error("the attempt has ended, and its transaction too")]
    Ended,
}

/// An attempt's way to its transaction. The mode owns the transaction, and ends it with the attempt.
#[derive(Clone, Debug, Default)]
pub(crate) struct OpenTransaction(Option<Weak<Mutex<Lent>>>);

impl OpenTransaction {
    pub(crate) fn of(lent: &Arc<Mutex<Lent>>) -> Self {
        Self(Some(Arc::downgrade(lent)))
    }

    pub(crate) fn take(&self) -> Result<Transaction, NoTransaction> {
        let open = self.0.as_ref().ok_or(NoTransaction::OtherMode)?;
        let open = open.upgrade().ok_or(NoTransaction::Ended)?;
        let lent = open.try_lock_owned().map_err(|_| NoTransaction::InUse)?;
        Ok(Transaction { lent })
    }
}

//! One attempt at an operation, from the claim to the end of its transaction.

mod claim;
mod failure;

use std::sync::Arc;

use sqlx::Error;
use sqs_once::{
    Operation, Outcome,
    internal::{Published, Records, system::timeout_at},
    protocol::{Claim, Effect, End, Key, StoredResult},
    store::StoreError,
};

use tokio::sync::Mutex;

use crate::{
    explain::{
        can_run_again, explain, is_aborted, is_connection_lost, is_contended, is_not_committed,
    },
    outbox,
    store::{PostgresStore, not_applied, row::replace_locked, unanswered_commit},
    transaction::Transaction,
    transaction_connection::TransactionConnection,
};
pub(crate) use claim::Locked;

const ENDED_BY_HANDLER: &str = "the handler ended the transaction itself (COMMIT or ROLLBACK, or a savepoint \
    that could not begin), so its writes are not part of the record's transaction: return `tx.done(output)`, or \
    the error of `begin()`";

pub(crate) struct PostgresRun<'a> {
    pub(crate) records: &'a Records<PostgresStore>,
    pub(crate) operation: &'a Operation,
    pub(crate) claim: Claim,
}

impl PostgresRun<'_> {
    /// Records the completion and the events, and commits.
    pub(crate) async fn complete(
        &self,
        locked: &Locked,
        output: StoredResult,
        events: Vec<Published>,
        mut transaction: Transaction,
    ) -> Outcome {
        let (key, owner, deadline) = (self.key(), &self.claim.owner, self.operation.deadline);
        let result = self.records.store(key, owner, output, deadline).await;
        let tx = transaction.tx();
        let completion = self.records.completion(&result);
        let recorded = async {
            let settled = self.settle(tx, locked, &completion).await?;
            // `settle` proves that the handler did not end the transaction. Outside a transaction, the events
            // would be published at once.
            if settled && !events.is_empty() {
                outbox::insert(tx, &events, self.records.now()).await?;
            }
            Ok::<_, Error>(settled)
        };
        match self.in_time(recorded).await {
            Some(Ok(true)) => {}
            Some(Ok(false)) => {
                // Whatever the handler committed itself stays.
                let error = ENDED_BY_HANDLER.into();
                return self.fail(tx, error, Effect::Possible).await;
            }
            Some(Err(error)) => {
                self.roll_back_after(tx, &error).await;
                return if is_aborted(&error) {
                    Outcome::RetryableFailure(
                        "a statement of the handler failed, and the handler returned no failure: \
                         return the error, or run the statement in a savepoint (`tx.begin()`)"
                            .into(),
                    )
                } else if can_run_again(&error) {
                    Outcome::Contended(explain(&error))
                } else {
                    self.not_applied("complete", &error)
                };
            }
            None => return Outcome::store_unavailable(self.out_of_time("complete")),
        }
        if let Err(outcome) = self.commit(tx).await {
            return outcome;
        }
        drop(transaction);
        let (store, now) = (&self.records.store, self.records.now());
        store.completed(now, deadline.time_left()).await;
        Outcome::Completed(result)
    }

    /// Writes how the attempt ended, in the transaction that locks the record. Returns false if that transaction has ended.
    async fn settle(
        &self,
        tx: &mut TransactionConnection,
        locked: &Locked,
        end: &End,
    ) -> Result<bool, Error> {
        // If the handler leaked a savepoint, our commit would only release that savepoint.
        if tx.depth() != 1 {
            return Ok(false);
        }
        let Locked {
            record,
            replaced,
            transaction,
        } = locked;
        let now = self.records.now().max(record.updated_at);
        let ended = record.ended(replaced.as_ref(), end, record.stamp.version, now);
        replace_locked(tx, self.key(), &ended, transaction).await
    }

    async fn commit(&self, tx: &mut TransactionConnection) -> Result<(), Outcome> {
        let error = match self.in_time(tx.commit()).await {
            Some(Ok(())) => return Ok(()),
            Some(Err(error)) => error,
            None => return Err(Outcome::commit_unknown(self.out_of_time("commit"))),
        };
        if !is_not_committed(&error) {
            let unknown = unanswered_commit(self.key(), &error);
            return Err(Outcome::commit_unknown(unknown));
        }
        self.roll_back(tx).await;
        Err(if is_contended(&error) {
            Outcome::Contended(explain(&error))
        } else {
            // A deferred constraint of the handler's tables failed.
            Outcome::RetryableFailure(explain(&error).into())
        })
    }

    /// Rolls back, because the handler was not called.
    pub(crate) async fn not_started(
        &self,
        tx: Arc<Mutex<TransactionConnection>>,
        outcome: Outcome,
    ) -> Outcome {
        self.roll_back(&mut *tx.lock_owned().await).await;
        outcome
    }

    /// Rolls back after an error, or closes the connection if it is lost.
    async fn roll_back_after(&self, tx: &mut TransactionConnection, error: &Error) {
        if is_connection_lost(error) {
            tx.close();
        } else {
            self.roll_back(tx).await;
        }
    }

    /// Rolls back and waits for the response, so that the record is not locked when the message comes back. If
    /// there is no response, dropping the connection closes it.
    pub(crate) async fn roll_back(&self, tx: &mut TransactionConnection) {
        let answer = timeout_at(self.operation.deadline.write_until(), tx.roll_back()).await;
        if !matches!(answer, Ok(Ok(()))) {
            tracing::debug!(key = %self.key(), "no response to ROLLBACK; the connection is closed");
        }
    }

    fn key(&self) -> &Key {
        &self.operation.key
    }

    /// Returns the answer to requests, or `None` if it doesn't come while there is time for writes.
    async fn in_time<T>(&self, requests: impl Future<Output = T>) -> Option<T> {
        let Operation {
            deadline, meter, ..
        } = self.operation;
        let answer = timeout_at(deadline.write_until(), requests);
        meter.timed(answer).await.ok()
    }

    /// Returns the outcome of a request that failed before `COMMIT`.
    fn not_applied(&self, action: &'static str, error: &Error) -> Outcome {
        if is_contended(error) {
            return Outcome::Contended(explain(error));
        }
        Outcome::store_unavailable(not_applied(action, self.key(), error))
    }

    fn out_of_time(&self, action: &'static str) -> StoreError {
        StoreError::OutOfTime {
            action,
            key: self.key().to_string(),
        }
    }

    fn rejected(&self, action: &'static str, reason: &str) -> StoreError {
        StoreError::Rejected {
            action,
            key: self.key().to_string(),
            reason: reason.into(),
        }
    }
}

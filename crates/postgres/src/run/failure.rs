//! Ends an attempt whose handler did not succeed: rolls back, and records the failure if it is permanent.

use std::sync::Arc;

use sqs_once::{
    Outcome,
    internal::{NoOutput, rejected},
    protocol::Effect,
    store::StoreError,
};
use tokio::sync::Mutex;

use super::PostgresRun;
use crate::{
    explain::{can_run_again, explain, is_caused_by_connection, is_caused_by_contention},
    store::not_applied,
    transaction_connection::{Limits, TransactionConnection},
};

impl PostgresRun<'_> {
    /// Ends the attempt of a handler that did not succeed.
    pub(crate) async fn end_without_output(
        &self,
        tx: Arc<Mutex<TransactionConnection>>,
        end: NoOutput,
    ) -> Outcome {
        // A task that the handler spawned may still hold the transaction. The connection is then closed when the last
        // reference is dropped.
        let mut tx = tx.try_lock_owned().ok();
        if let (Some(tx), NoOutput::Failed(failure)) = (&mut tx, &end)
            && is_caused_by_connection(failure.error())
        {
            tx.close();
        }
        let outcome = match end {
            // Contention and a lost connection are never permanent.
            NoOutput::Failed(failure) if is_caused_by_contention(failure.error()) => {
                Outcome::Contended(failure.to_string())
            }
            NoOutput::Failed(failure) if failure.kind().is_permanent() => {
                let error = failure.to_string();
                return match &mut tx {
                    Some(tx) => self.fail(tx, error, Effect::None).await,
                    None => self.unrecorded(
                        error,
                        self.rejected("fail", "a task of the handler holds the transaction"),
                    ),
                };
            }
            end => end.into(),
        };
        if let Some(tx) = &mut tx {
            self.roll_back(tx).await;
        }
        outcome
    }

    /// Rolls back the handler's writes, and records a permanent failure.
    ///
    /// If another attempt has completed the operation, returns the outcome of its record.
    pub(super) async fn fail(
        &self,
        tx: &mut TransactionConnection,
        error: String,
        effect: Effect,
    ) -> Outcome {
        let deadline = self.operation.deadline;
        let recorded = async {
            // We use a new transaction instead of a savepoint before the claim, because every operation would
            // pay for the savepoint, and the handler may have ended the transaction.
            tx.roll_back().await?;
            tx.open(Limits::until(deadline, deadline.write_until()))
                .await?;
            let locked = match self.claim(tx).await? {
                Ok(locked) => locked,
                Err(rejection) => return Ok(Err(rejection)),
            };
            let failed = self.records.failure(self.operation, error.clone(), effect);
            self.settle(tx, &locked, &failed).await.map(Ok)
        };
        let Some(recorded) = self.in_time(recorded).await else {
            return self.unrecorded(error, self.out_of_time("fail"));
        };
        let outcome = match recorded {
            Ok(Ok(true)) => {
                return match self.commit(tx).await {
                    Ok(()) => Outcome::PermanentFailure(error),
                    Err(Outcome::CommitUnknown(cause)) => {
                        Outcome::FailureUnrecorded { error, cause }
                    }
                    Err(outcome) => outcome,
                };
            }
            Ok(Ok(false)) => {
                let cause = self.rejected("fail", "the transaction of the record has ended");
                self.unrecorded(error, cause)
            }
            Ok(Err(rejection)) => rejected(rejection, self.operation),
            Err(why) if can_run_again(&why) => {
                self.roll_back_after(tx, &why).await;
                return Outcome::Contended(explain(&why));
            }
            Err(why) => self.unrecorded(error, not_applied("fail", self.key(), &why)),
        };
        self.roll_back(tx).await;
        outcome
    }

    fn unrecorded(&self, error: String, cause: StoreError) -> Outcome {
        Outcome::FailureUnrecorded {
            error,
            cause: Arc::new(cause),
        }
    }
}

//! One attempt at an operation, from the claim to the end of its transaction.

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use sqlx::Error;
use sqs_once_core::{
    deadline::Deadline,
    event::Published,
    handler::Failure,
    meter::timed,
    once::{Outcome, records::Records, work::NoAnswer},
    protocol::{
        ClaimRequest, Claimed, Key, Record, Settlement, StoredResult,
        decision::{may_claim, refusal},
    },
    store::StoreError,
};
use tokio::{
    sync::Mutex,
    time::{Instant, timeout_at},
};

use crate::{
    explain::{
        can_run_again, explain, is_aborted, is_caused_by_connection, is_caused_by_contention,
        is_connection_lost, is_contended, is_lock_timeout, is_not_committed, is_table_missing,
    },
    migrate::create_first_tables,
    mode::AfterCommit,
    outbox,
    store::{
        PostgresStore, not_applied,
        row::{insert_or_lock, settle},
        unanswered_commit,
    },
    transaction::Transaction,
    transaction_connection::{Limits, TransactionConnection, Tries},
};

/// Longest time to send events right after their commit: this time or half of the time left, whichever
/// is shorter.
const MAX_TIME_AFTER_COMMIT: Duration = Duration::from_secs(2);

const ENDED_BY_HANDLER: &str = "the handler ended the transaction itself (COMMIT or ROLLBACK), so \
    its writes are not part of the record's transaction: return `tx.done(output)` instead";

/// One attempt at an operation.
pub(crate) struct Run<'a> {
    pub(crate) records: &'a Records<PostgresStore>,
    pub(crate) after_commit: Option<&'a dyn AfterCommit>,
    pub(crate) creates_tables: &'a AtomicBool,
    pub(crate) request: ClaimRequest,
    pub(crate) deadline: Deadline,
}

/// A claim whose transaction is open. The transaction locks the record.
pub(crate) struct Claim {
    /// The record in progress. Of a record that existed before, the table still has the old state.
    pub(crate) record: Record,
    pub(crate) claimed: Claimed,
    /// Id of the transaction.
    pub(crate) transaction: String,
}

impl Run<'_> {
    /// Opens a transaction, and claims the operation.
    pub(crate) async fn begin(&self) -> Result<(TransactionConnection, Claim), Outcome> {
        let stop = self.deadline.stop();
        let begun = async {
            let mut tries = Tries::new(self.records.store.connections(), stop);
            loop {
                let limits = Limits::until(self.deadline, self.deadline.latest_start());
                let mut tx = tries.begin(limits).await?;
                match self.claim(&mut tx).await {
                    // Nothing was committed.
                    Err(error) if is_connection_lost(&error) => tries.failed(tx, error).await?,
                    claim => return Ok((tx, claim)),
                }
            }
        };
        // The answer to a lock timeout comes after the last start.
        let (mut tx, claim) = match timed(timeout_at(self.deadline.end(), begun)).await {
            Ok(Ok(begun)) => begun,
            Ok(Err(error)) => return Err(self.not_applied("claim", &error)),
            Err(_elapsed) => return Err(Outcome::store_unavailable(self.out_of_time("claim"))),
        };
        if claim.is_ok() {
            self.creates_tables.store(false, Relaxed);
        }
        let outcome = match claim {
            Ok(Ok(claim)) => return Ok((tx, claim)),
            Ok(Err(refused_by)) => refusal(refused_by, &self.request).into(),
            // The rival's transaction is open. Its end is not known.
            Err(error) if is_lock_timeout(&error) => Outcome::Conflict {
                owner: None,
                lease_until: self.records.now(),
            },
            Err(error) if is_table_missing(&error) && self.creates_tables.load(Relaxed) => {
                self.roll_back(&mut tx).await;
                return Err(self.create_tables(&mut tx, &error).await);
            }
            Err(error) => self.not_applied("claim", &error),
        };
        self.roll_back(&mut tx).await;
        Err(outcome)
    }

    /// Creates the tables, which could not be created at start. The message then runs again.
    async fn create_tables(&self, tx: &mut TransactionConnection, missing: &Error) -> Outcome {
        let created = tx.request(create_first_tables);
        match timeout_at(self.deadline.stop(), created).await {
            Ok(Ok(())) => {
                Outcome::Contended("the tables did not exist, and were created".to_owned())
            }
            Ok(Err(error)) => self.not_applied("claim", &error),
            Err(_elapsed) => self.not_applied("claim", missing),
        }
    }

    /// Claims the operation in the open transaction. Returns the record that refuses the claim.
    async fn claim(&self, tx: &mut TransactionConnection) -> Result<Result<Claim, Record>, Error> {
        let request = &self.request;
        let new = request.record(None);
        let time_left = self
            .deadline
            .end()
            .saturating_duration_since(Instant::now());
        let kept = insert_or_lock(tx, &request.key, &new, time_left).await?;
        let is_new = kept.record.owner == new.owner;
        if !is_new && !may_claim(Some(&kept.record), request) {
            return Ok(Err(kept.record));
        }
        let replaced = Some(kept.record).filter(|old| !is_new && !old.is_expired(request.now));
        Ok(Ok(Claim {
            record: request.record(replaced.as_ref()),
            claimed: Claimed::over(replaced),
            transaction: kept.version,
        }))
    }

    /// Records the completion and the events, and commits.
    pub(crate) async fn complete(
        &self,
        claim: &Claim,
        output: StoredResult,
        events: Vec<Published>,
        mut transaction: Transaction,
    ) -> Outcome {
        let (key, owner) = (self.key(), &self.request.owner);
        let kept = self.records.keep(key, owner, output, self.deadline);
        let result = kept.await;
        let tx = transaction.tx();
        let completion = self.records.completion(&result);
        let recorded = async {
            let settled = self.settle(tx, claim, &completion).await?;
            // The settlement proves that the handler did not end the transaction: outside of it, the
            // events would be published at once.
            if settled && !events.is_empty() {
                outbox::insert(tx, &events, self.records.now()).await?;
            }
            Ok::<_, Error>(settled)
        };
        match timed(timeout_at(self.deadline.end(), recorded)).await {
            Ok(Ok(true)) => {}
            Ok(Ok(false)) => return self.fail(tx, ENDED_BY_HANDLER.into()).await,
            Ok(Err(error)) => {
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
            Err(_elapsed) => return Outcome::store_unavailable(self.out_of_time("complete")),
        }
        if let Err(outcome) = self.commit(tx).await {
            return outcome;
        }
        self.send_after_commit(tx, events).await;
        drop(transaction);
        let (store, now) = (&self.records.store, self.records.now());
        store.completed(now, self.deadline.time_left()).await;
        Outcome::Completed(result)
    }

    /// Sends committed events, if there is a relay and time for it.
    async fn send_after_commit(&self, tx: &mut TransactionConnection, events: Vec<Published>) {
        let Some(after_commit) = self.after_commit else {
            return;
        };
        let groups: BTreeSet<_> = events.into_iter().map(|event| event.group).collect();
        let time = MAX_TIME_AFTER_COMMIT.min(self.deadline.time_left() / 2);
        if !groups.is_empty() && !time.is_zero() {
            let groups = Vec::from_iter(groups);
            after_commit.send(tx, &groups, time).await;
        }
    }

    /// Ends the attempt of a handler that returned no answer.
    pub(crate) async fn end_without_answer(
        &self,
        tx: Arc<Mutex<TransactionConnection>>,
        end: NoAnswer,
    ) -> Outcome {
        // A task of the handler may still hold the transaction. Its connection is then closed with
        // the last reference to it.
        let mut tx = tx.try_lock_owned().ok();
        if let (Some(tx), NoAnswer::Failed(failure)) = (&mut tx, &end)
            && is_caused_by_connection(cause(failure))
        {
            tx.close();
        }
        let outcome = match end {
            NoAnswer::Failed(failure) if is_contended_failure(&failure) => {
                Outcome::Contended(failure.to_string())
            }
            NoAnswer::Failed(failure @ Failure::Permanent(_)) => {
                let error = failure.to_string();
                return match &mut tx {
                    Some(tx) => self.fail(tx, error).await,
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

    /// Rolls the handler's writes back, and records a permanent failure.
    ///
    /// If another attempt completed the operation meanwhile, returns the outcome of its record.
    async fn fail(&self, tx: &mut TransactionConnection, error: String) -> Outcome {
        let end = self.deadline.end();
        let recorded = async {
            // A new transaction, and not a savepoint before the claim: every operation would pay for
            // the savepoint, and the handler may have ended the transaction.
            tx.roll_back().await?;
            tx.open(Limits::until(self.deadline, end)).await?;
            let claim = match self.claim(tx).await? {
                Ok(claim) => claim,
                Err(refused_by) => return Ok(Err(refused_by)),
            };
            let (first_open, until) = (claim.claimed.is_first_open(), self.records.expires_at());
            let message_id = &self.request.message_id;
            let failure = Settlement::fail(error.clone(), message_id, first_open, until);
            self.settle(tx, &claim, &failure).await.map(Ok)
        };
        let answer = timed(timeout_at(end, recorded)).await;
        let outcome = match answer {
            Ok(Ok(Ok(true))) => {
                return match self.commit(tx).await {
                    Ok(()) => Outcome::PermanentFailure(error),
                    Err(Outcome::CommitUnknown(cause)) => {
                        Outcome::FailureUnrecorded { error, cause }
                    }
                    Err(outcome) => outcome,
                };
            }
            Ok(Ok(Ok(false))) => {
                let cause = self.rejected("fail", "the transaction of the record has ended");
                self.unrecorded(error, cause)
            }
            Ok(Ok(Err(refused_by))) => refusal(refused_by, &self.request).into(),
            Ok(Err(why)) if can_run_again(&why) => {
                self.roll_back_after(tx, &why).await;
                return Outcome::Contended(explain(&why));
            }
            Ok(Err(why)) => self.unrecorded(error, not_applied("fail", self.key(), &why)),
            Err(_elapsed) => return self.unrecorded(error, self.out_of_time("fail")),
        };
        self.roll_back(tx).await;
        outcome
    }

    /// Settles the record in its transaction. Returns false if that transaction has ended.
    async fn settle(
        &self,
        tx: &mut TransactionConnection,
        claim: &Claim,
        settlement: &Settlement,
    ) -> Result<bool, Error> {
        // A savepoint that the handler leaked would be committed without its transaction.
        if tx.depth() != 1 {
            return Ok(false);
        }
        match settlement.apply(&claim.record, self.records.now()) {
            Some(settled) => settle(tx, self.key(), &settled, &claim.transaction).await,
            None => Ok(false),
        }
    }

    /// Commits the transaction.
    async fn commit(&self, tx: &mut TransactionConnection) -> Result<(), Outcome> {
        let error = match timed(timeout_at(self.deadline.end(), tx.commit())).await {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(error)) => error,
            Err(_elapsed) => return Err(Outcome::commit_unknown(self.out_of_time("commit"))),
        };
        if !is_not_committed(&error) {
            let unknown = unanswered_commit(self.key(), &error);
            return Err(Outcome::commit_unknown(unknown));
        }
        self.roll_back(tx).await;
        Err(if is_contended(&error) {
            Outcome::Contended(explain(&error))
        } else {
            // A deferred constraint of the handler's tables.
            Outcome::RetryableFailure(explain(&error))
        })
    }

    /// Rolls back after an error, or closes a connection that is lost.
    async fn roll_back_after(&self, tx: &mut TransactionConnection, error: &Error) {
        if is_connection_lost(error) {
            tx.close();
        } else {
            self.roll_back(tx).await;
        }
    }

    /// Rolls back, and waits for the answer, so that the record is not locked when the message
    /// returns. Without an answer, the connection is closed when it is dropped.
    pub(crate) async fn roll_back(&self, tx: &mut TransactionConnection) {
        let answer = timeout_at(self.deadline.end(), tx.roll_back()).await;
        if !matches!(answer, Ok(Ok(()))) {
            tracing::debug!(key = %self.key(), "no answer to ROLLBACK; the connection is closed");
        }
    }

    fn key(&self) -> &Key {
        &self.request.key
    }

    /// The outcome of a request that failed before `COMMIT`.
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

    fn unrecorded(&self, error: String, cause: StoreError) -> Outcome {
        Outcome::FailureUnrecorded {
            error,
            cause: Arc::new(cause),
        }
    }
}

/// Returns whether the failure comes from contention or from the connection, and so is never permanent.
fn is_contended_failure(failure: &Failure) -> bool {
    is_caused_by_contention(cause(failure))
}

fn cause(failure: &Failure) -> &(dyn std::error::Error + 'static) {
    let (Failure::Retryable(error) | Failure::NoEffect(error) | Failure::Permanent(error)) =
        failure;
    &**error
}

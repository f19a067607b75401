//! [`Inbox`], the inbox mode: the handler plans writes, and one transaction commits the writes and the
//! record.

use std::sync::{
    Arc, Mutex, MutexGuard, PoisonError,
    atomic::{AtomicUsize, Ordering::Relaxed},
};

use serde::Serialize;

use crate::{
    dynamo::{
        done::{Done, ErasedDone, WriteSet},
        transactional::TransactionalStore,
    },
    flawed::flawed,
    handler::{Attempt, Failure, History},
    modes::{
        Mode, Once, Operation, Outcome,
        claim::MOST_SWAPS,
        commit::{Committed, commit},
        held::recorded,
        mode::{Claimed, Start},
        not_written::{NotWritten, UnwrittenOutput, write_until_accepted},
        records::Records,
        rejected::rejected,
        repeat::Effort,
        run::run_here,
        work::{HandlerEnd, NoOutput, guard_now},
    },
    protocol::{
        Claim, Decision, Effect, End, Expect, Record, RequestErrorKind, Swap, Timestamp, decide,
    },
    store::{Results, StoreError},
};

/// The inbox mode: runs operations whose only effect is DynamoDB writes.
///
/// The handler plans the writes. One transaction commits the writes and the record, without an earlier claim.
///
/// ```text
/// attempt 1  handler plans ──── commit: record COMPLETED + writes
/// attempt 2  handler plans ──────── commit: record's condition check fails: duplicate
/// ```
///
/// Two attempts may plan at the same time, and a handler may run again for a completed operation. So a
/// handler may read any data, but must have no effect other than its writes.
///
/// ```no_run
/// use sqs_once::{Attempt, Done, Failure, Settings, Write, handler_fn};
///
/// async fn register(user: String, _: Attempt) -> Result<Done<()>, Failure> {
///     Ok(Done::new(()).with(Write::put("users", serde_json::json!({ "id": user }))))
/// }
///
/// # async fn main_() -> Result<(), lambda_runtime::Error> {
/// let consumer = Settings::from_env().inbox(Ok(handler_fn(register))).await?;
/// sqs_once::run(consumer).await
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Inbox<S> {
    records: Records<S>,
}

impl<S> Inbox<S> {
    /// Creates an inbox with the store, retention, place of outputs and clock of `once`.
    #[must_use]
    pub fn new(once: Once<S>) -> Self {
        Self {
            records: once.records,
        }
    }
}

impl<S: TransactionalStore> Inbox<S> {
    /// Runs one operation: plans its writes by `work`, and commits them with the record. See [`Once::run`].
    pub async fn run<W, F, O>(&self, operation: Operation, work: W) -> Outcome
    where
        W: FnOnce(Attempt) -> F,
        F: Future<Output = Result<Done<O>, Failure>>,
        O: Serialize + Send + 'static,
    {
        run_here(self, operation, work).await
    }
}

/// What an inbox writes, and the record that it has seen.
#[derive(Debug)]
pub struct InboxClaim {
    claim: Claim,
    found: Option<Record>,
}

/// The insert of one operation's record.
struct Insert<'a, S> {
    records: &'a Records<S>,
    operation: &'a Operation,
    claim: Claim,
    /// The record that the commit replaces, as far as is known.
    found: Mutex<Option<Record>>,
    /// Number of contents that were sent.
    sent: AtomicUsize,
}

impl<S: TransactionalStore> Insert<'_, S> {
    async fn complete(&self, plan: ErasedDone) -> Result<Outcome, UnwrittenOutput<ErasedDone>> {
        let ErasedDone {
            output,
            effects,
            on_condition_failed,
        } = plan;
        let (key, deadline) = (&self.operation.key, self.operation.deadline);
        let result = (self.records)
            .store(key, &self.claim.owner, output, deadline)
            .await;
        let end = self.records.completion(&result);
        let inserted = self.insert(&end, effects, Outcome::Completed(result));
        inserted.await.map_err(|declined| UnwrittenOutput {
            declined,
            on_condition_failed,
        })
    }

    /// Records a permanent failure.
    ///
    /// If the operation is already completed, returns the outcome in the record: the handler of a duplicate
    /// may have failed only because of the first attempt's effect.
    async fn fail(&self, error: String) -> Outcome {
        let failed = Outcome::PermanentFailure(error.clone());
        // There was no claim, so no attempt is open.
        let end = (self.records).failure(self.operation, error.clone(), Effect::None);
        let unrecorded = |why: String| Outcome::FailureUnrecorded {
            error: error.clone(),
            cause: Arc::new(StoreError::Rejected {
                action: "fail",
                key: self.operation.key.to_string(),
                reason: why,
            }),
        };
        match self.insert(&end, WriteSet::default(), failed).await {
            // The commit has no other writes, so the record itself is invalid: the table has a different key
            // schema. That is not the message's fault.
            Err(NotWritten::Invalid(why)) => unrecorded(why),
            Ok(Outcome::RetryableFailure(error)) => unrecorded(error.text),
            Err(NotWritten::Conditions(refused)) => unrecorded(refused.to_string()),
            Ok(Outcome::CommitUnknown(cause) | Outcome::StoreUnavailable(cause)) => {
                Outcome::FailureUnrecorded { error, cause }
            }
            Ok(outcome) => outcome,
        }
    }

    async fn insert(
        &self,
        end: &End,
        effects: WriteSet,
        inserted: Outcome,
    ) -> Result<Outcome, NotWritten> {
        let operation = self.operation;
        let effort = Effort::commit(operation.deadline.write_until(), &operation.meter);
        for _ in 0..MOST_SWAPS {
            let found = self.found().clone();
            let replaced = match decide(found.as_ref(), &self.claim) {
                Decision::First => None,
                Decision::Over => found.clone(),
                Decision::Rejected(_) if flawed("an inbox commits over any record") => {
                    found.clone()
                }
                // An earlier copy was applied, and its answer was lost.
                Decision::Mine => return Ok(found.map_or(inserted, recorded)),
                Decision::Rejected(rejection) => return Ok(rejected(rejection, operation)),
            };
            let round = self.sent.fetch_add(1, Relaxed);
            let version = found.as_ref().map_or(0, |record| record.stamp.version);
            let version = version + 1 + u64::try_from(round).unwrap_or(u64::MAX);
            let claimed = Record::claimed(&self.claim, version, replaced.as_ref(), None);
            let swap = Swap {
                key: operation.key.clone(),
                to: claimed.ended(replaced.as_ref(), end, version, self.claim.now),
                expect: found.map_or(Expect::Absent, Expect::Unchanged),
            };
            let writes = effects.clone();
            return match commit(self.records, round, swap, writes, &effort).await {
                Committed::Applied => Ok(inserted),
                Committed::Found(found) => {
                    *self.found() = found;
                    continue;
                }
                Committed::NotWritten(declined) => Err(declined),
                Committed::Unknown(outcome) => Ok(outcome),
                Committed::Unwritten(StoreError::Unavailable {
                    kind: RequestErrorKind::Contended,
                    reason,
                    ..
                }) => Ok(Outcome::RetryableFailure(reason.into())),
                Committed::Unwritten(error) => Ok(Outcome::store_unavailable(error)),
            };
        }
        Ok(Outcome::RetryableFailure(
            "other workers changed the record before each commit".into(),
        ))
    }

    fn found(&self) -> MutexGuard<'_, Option<Record>> {
        self.found.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<S> crate::modes::mode::sealed::Sealed for Inbox<S> {}

crate::explain_wrong_output!([S: TransactionalStore] Inbox<S>);

#[diagnostic::do_not_recommend]
impl<S: TransactionalStore, O: Serialize + Send + 'static> Mode<Done<O>> for Inbox<S> {
    type Claim = InboxClaim;

    async fn claim(&self, operation: &Operation, _: Start) -> Claimed<InboxClaim> {
        if !operation.deadline.may_start() {
            return Claimed::Ended(Outcome::NotStarted);
        }
        // An inbox needs no lease, because it writes the record in its final state.
        let claim = self.records.claim(operation, self.records.now(), None);
        let mut found = None;
        // At its first receive, a message has no record.
        if operation.delivery.facts().expects_record() {
            found = match self.records.read(operation).await {
                Ok(found) => found,
                Err(outcome) => return Claimed::Ended(outcome),
            };
            if let Decision::Rejected(rejection) = decide(found.as_ref(), &claim) {
                return Claimed::Ended(rejected(rejection, operation));
            }
        }
        Claimed::run(InboxClaim { claim, found }, History::fresh())
    }

    async fn finish(
        &self,
        operation: &Operation,
        InboxClaim { claim, found }: InboxClaim,
        end: HandlerEnd<Done<O>>,
    ) -> Outcome {
        let plan = match end.answer() {
            Ok(answer) => answer.and_then(|done| guard_now(|| done.try_into())),
            Err(outcome) => return outcome,
        };
        let insert = Insert {
            records: &self.records,
            operation,
            claim: Claim {
                now: self.records.now(),
                ..claim
            },
            found: Mutex::new(found),
            sent: AtomicUsize::new(0),
        };
        let write = |_, plan| insert.complete(plan);
        match write_until_accepted(plan, write).await {
            Ok(outcome) => outcome,
            Err((_, NoOutput::Failed(failure))) if failure.kind().is_permanent() => {
                insert.fail(failure.to_string()).await
            }
            Err((_, end)) => end.into(),
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

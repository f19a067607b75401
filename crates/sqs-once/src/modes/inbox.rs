//! [`Inbox`], the inbox mode: the handler plans writes, and one transaction commits the writes and the
//! record.

use std::{sync::Arc, time::Duration};

use serde::Serialize;

use crate::{
    deadline::Deadline,
    dynamo::{
        done::{Done, ErasedDone, WriteSet},
        transactional::{RecordWrite, TransactionalStore},
    },
    handler::{Attempt, Failure},
    meter::Meter,
    modes::{
        Mode, Once, Operation, Outcome,
        commit::{Committed, commit},
        mode::Claimed,
        not_written::{NotWritten, UnwrittenOutput, write_until_accepted},
        records::Records,
        repeat::Effort,
        run::run_here,
        work::{HandlerEnd, NoOutput, guard_now},
    },
    protocol::{
        ClaimRequest, FailedClaim, RequestErrorKind, Settlement, Timestamp,
        decision::{failed_insert, may_claim},
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
/// ```
/// use aws_sdk_dynamodb::Client;
/// use sqs_once::{Attempt, Consumer, Done, Failure, Inbox, Once, Write, handler_fn};
/// use sqs_once::{protocol::Namespace, store::DynamoStore};
///
/// async fn register(user: String, _: Attempt) -> Result<Done<()>, Failure> {
///     Ok(Done::new(()).with(Write::put("users", serde_json::json!({ "id": user }))))
/// }
///
/// # fn consumer(client: Client) -> Result<(), Box<dyn std::error::Error>> {
/// let inbox = Inbox::new(Once::new(DynamoStore::new(client, "idempotency")));
/// let consumer = Consumer::new(inbox, Namespace::new("users")?, handler_fn(register));
/// # Ok(()) }
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

/// The insert of one operation's record.
struct Insert<'a, S> {
    records: &'a Records<S>,
    request: ClaimRequest,
    deadline: Deadline,
    meter: &'a Meter,
}

impl<S: TransactionalStore> Insert<'_, S> {
    async fn complete(
        &self,
        round: usize,
        plan: ErasedDone,
    ) -> Result<Outcome, UnwrittenOutput<ErasedDone>> {
        let ErasedDone {
            output,
            effects,
            on_condition_failed,
        } = plan;
        let ClaimRequest { key, owner, .. } = &self.request;
        let result = self.records.store(key, owner, output, self.deadline).await;
        let settlement = self.records.completion(&result);
        let inserted = self.insert(round, settlement, effects, Outcome::Completed(result));
        inserted.await.map_err(|declined| UnwrittenOutput {
            declined,
            on_condition_failed,
        })
    }

    /// Records a permanent failure.
    ///
    /// If the operation is already completed, returns the outcome in the record: the handler of a duplicate
    /// may have failed only because of the first attempt's effect.
    async fn fail(&self, round: usize, error: String) -> Outcome {
        let failed = Outcome::PermanentFailure(error.clone());
        let until = self.records.expires_at();
        let settlement = Settlement::fail(error.clone(), &self.request.message_id, true, until);
        let unrecorded = |why: String| Outcome::FailureUnrecorded {
            error: error.clone(),
            cause: Arc::new(StoreError::Rejected {
                action: "fail",
                key: self.request.key.to_string(),
                reason: why,
            }),
        };
        let effects = WriteSet::default();
        match self.insert(round, settlement, effects, failed).await {
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
        round: usize,
        settlement: Settlement,
        effects: WriteSet,
        inserted: Outcome,
    ) -> Result<Outcome, NotWritten> {
        let request = &self.request;
        let write = RecordWrite::Insert {
            request: request.clone(),
            settlement: settlement.clone(),
        };
        let owner = &request.owner;
        let effort = Effort::commit(self.deadline.write_until(), self.meter);
        match commit(self.records, owner, round, write, effects, &effort).await {
            Committed::Applied => Ok(inserted),
            // Another worker has replaced the record, and the new record admits the insert.
            Committed::ConditionFailed(Some(record)) if may_claim(Some(&record), request) => {
                Ok(Outcome::RetryableFailure(
                    "another worker changed the record before this commit".into(),
                ))
            }
            Committed::ConditionFailed(Some(refused_by)) => {
                Ok(match failed_insert(refused_by, request, &settlement) {
                    FailedClaim::Held(_) => inserted,
                    FailedClaim::Rejected(rejection) => rejection.into(),
                })
            }
            Committed::ConditionFailed(None) => Ok(Outcome::RetryableFailure(
                "the record's condition check failed, and DynamoDB did not return the record"
                    .into(),
            )),
            Committed::NotWritten(declined) => Err(declined),
            Committed::Unknown(outcome) => Ok(outcome),
            Committed::Unwritten(StoreError::Unavailable {
                kind: RequestErrorKind::Contended,
                reason,
                ..
            }) => Ok(Outcome::RetryableFailure(reason.into())),
            Committed::Unwritten(error) => Ok(Outcome::store_unavailable(error)),
        }
    }
}

impl<S> crate::modes::mode::sealed::Sealed for Inbox<S> {}

crate::explain_wrong_output!([S: TransactionalStore] Inbox<S>);

#[diagnostic::do_not_recommend]
impl<S: TransactionalStore, O: Serialize + Send + 'static> Mode<Done<O>> for Inbox<S> {
    type Claim = ();

    async fn claim(&self, operation: &Operation) -> Claimed<()> {
        Claimed::without_record(operation)
    }

    async fn finish(&self, operation: &Operation, (): (), end: HandlerEnd<Done<O>>) -> Outcome {
        let plan = match end.answer() {
            Ok(answer) => answer.and_then(|done| guard_now(|| done.try_into())),
            Err(outcome) => return outcome,
        };
        // An inbox needs no lease, because it writes the record in its final state.
        let (now, message_id) = (self.records.now(), operation.delivery.message_id());
        let (key, fingerprint) = (&operation.key, operation.fingerprint.clone());
        let insert = Insert {
            records: &self.records,
            request: (self.records).request(key, fingerprint, message_id, now, Duration::ZERO),
            deadline: operation.deadline,
            meter: &operation.meter,
        };
        let write = |round, plan| insert.complete(round, plan);
        match write_until_accepted(plan, write).await {
            Ok(outcome) => outcome,
            Err((round, NoOutput::Failed(failure))) if failure.kind().is_permanent() => {
                insert.fail(round, failure.to_string()).await
            }
            Err((_, end)) => end.into(),
        }
    }

    fn now(&self) -> Timestamp {
        self.records.now()
    }

    fn results(&self) -> Results {
        self.records.results.clone()
    }
}

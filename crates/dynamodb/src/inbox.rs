//! [`Inbox`], the inbox mode: the handler plans writes, and one transaction commits the writes and
//! the record.

use std::sync::Arc;

use serde::Serialize;
use tokio::time::timeout_at;

use super::{
    commit::{Committed, commit},
    declined::{Declined, DeclinedAnswer, write_until_accepted},
    done::{Done, Effects, Plan},
    transactional::{RecordWrite, TransactionalStore},
};
use sqs_once_core::{
    deadline::Deadline,
    handler::{Attempt, Failure, History},
    meter::Meter,
    once::{
        Mode, Once, Operation, Outcome,
        records::Records,
        repeat::Effort,
        work::{NoAnswer, guard},
    },
    protocol::{
        ClaimRefused, ClaimRequest, Settlement, Timestamp, Unavailability,
        decision::{insert_refused, may_claim, refusal},
    },
    store::{RequestContext, Results, StoreError},
};

/// Inbox mode: runs operations whose whole effect is DynamoDB writes.
///
/// The handler plans the writes. One transaction commits the writes and the record, without an
/// earlier claim.
///
/// ```text
/// attempt 1  handler plans ──── commit: record COMPLETED + writes
/// attempt 2  handler plans ──────── commit: record's condition check fails: duplicate
/// ```
///
/// Two attempts may plan at the same time, and a handler may run again for a completed operation.
/// So a handler may read any data, but must have no effect except its writes. If planning is costly
/// and duplicates are frequent, use [`first_look`](Self::first_look).
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
    first_look: bool,
}

impl<S> Inbox<S> {
    /// An inbox with the store, retention, place of outputs and clock of `once`.
    #[must_use]
    pub fn new(once: Once<S>) -> Self {
        Self {
            records: once.records,
            first_look: false,
        }
    }

    /// Reads the record before the handler runs.
    ///
    /// Skips handler and transaction for known duplicates. The commit catches duplicates that the
    /// read misses. The cost is one eventually consistent read for each message: half a read unit
    /// for each 4 KB of the record.
    #[must_use]
    pub fn first_look(self) -> Self {
        Self {
            first_look: true,
            ..self
        }
    }
}

impl<S: TransactionalStore> Inbox<S> {
    /// Runs one operation: see [`Mode::run`].
    pub async fn run<W, F, O>(&self, operation: Operation, work: W) -> Outcome
    where
        W: FnOnce(Attempt) -> F,
        F: Future<Output = Result<Done<O>, Failure>>,
        O: Serialize + Send + 'static,
    {
        let Operation {
            key,
            fingerprint,
            delivery,
            deadline,
            // Without a claim there is no isolation.
            gate: _,
            meter,
        } = operation;
        if !deadline.may_start() {
            return Outcome::NotStarted;
        }
        // An inbox needs no lease, because it writes the record in its final state.
        let (now, message_id) = (self.records.now(), delivery.message_id());
        let request = (self.records).request(&key, fingerprint, message_id, now);
        if self.first_look
            && let Some(outcome) = self.look(&request, deadline, &meter).await
        {
            return outcome;
        }
        // The read takes time.
        if !deadline.may_start() {
            return Outcome::NotStarted;
        }
        let insert = Insert {
            records: &self.records,
            request,
            deadline,
            meter,
        };
        let attempt = Attempt::new(key, delivery, History::fresh(), deadline);
        let plan = guard(deadline, async { work(attempt).await?.try_into() }).await;
        let write = |round, plan| insert.complete(round, plan);
        match write_until_accepted(plan, write).await {
            Ok(outcome) => outcome,
            Err((round, NoAnswer::Failed(failure @ Failure::Permanent(_)))) => {
                insert.fail(round, failure.to_string()).await
            }
            Err((_, end)) => end.into(),
        }
    }

    /// Reads the record. Returns an outcome if the handler must not run.
    async fn look(
        &self,
        request: &ClaimRequest,
        deadline: Deadline,
        meter: &Meter,
    ) -> Option<Outcome> {
        let context = RequestContext::until(deadline.stop(), meter);
        let look = self.records.store.look(&request.key, &context);
        match meter.timed(timeout_at(deadline.stop(), look)).await {
            Ok(Ok(Some(record))) if !may_claim(Some(&record), request) => {
                Some(refusal(record, request).into())
            }
            Ok(Ok(_)) => None,
            Ok(Err(error)) => Some(Outcome::store_unavailable(error)),
            Err(_elapsed) => Some(Outcome::store_unavailable(StoreError::OutOfTime {
                action: "read",
                key: request.key.to_string(),
            })),
        }
    }
}

/// Insert of one operation's record.
struct Insert<'a, S> {
    records: &'a Records<S>,
    request: ClaimRequest,
    deadline: Deadline,
    meter: Meter,
}

impl<S: TransactionalStore> Insert<'_, S> {
    async fn complete(&self, round: usize, plan: Plan) -> Result<Outcome, DeclinedAnswer<Plan>> {
        let Plan {
            output,
            effects,
            on_refused,
        } = plan;
        let ClaimRequest { key, owner, .. } = &self.request;
        let result = self.records.keep(key, owner, output, self.deadline).await;
        let settlement = self.records.completion(&result);
        let inserted = self.insert(round, settlement, effects, Outcome::Completed(result));
        inserted.await.map_err(|declined| DeclinedAnswer {
            declined,
            on_refused,
        })
    }

    /// Records a permanent failure.
    ///
    /// If the operation is completed already, returns the outcome of the record. The handler of a
    /// duplicate may fail because of the first attempt's effect.
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
        let effects = Effects::default();
        match self.insert(round, settlement, effects, failed).await {
            // The commit has no other writes, so the record is invalid: the table has another key
            // schema. The message is not the cause.
            Err(Declined::Invalid(why)) | Ok(Outcome::RetryableFailure(why)) => unrecorded(why),
            Err(Declined::Conditions(refused)) => unrecorded(refused.to_string()),
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
        effects: Effects,
        inserted: Outcome,
    ) -> Result<Outcome, Declined> {
        let request = &self.request;
        let write = RecordWrite::Insert {
            request: request.clone(),
            settlement: settlement.clone(),
        };
        let owner = &request.owner;
        let effort = Effort::commit(self.deadline.end(), &self.meter);
        match commit(self.records, owner, round, write, effects, &effort).await {
            Committed::Applied => Ok(inserted),
            // Another worker replaced the record meanwhile, and the new record admits the insert.
            Committed::Refused(Some(record)) if may_claim(Some(&record), request) => {
                Ok(Outcome::RetryableFailure(
                    "another worker changed the record before this commit".into(),
                ))
            }
            Committed::Refused(Some(refused_by)) => {
                Ok(match insert_refused(refused_by, request, &settlement) {
                    ClaimRefused::Held(_) => inserted,
                    ClaimRefused::Refused(refusal) => refusal.into(),
                })
            }
            Committed::Refused(None) => Ok(Outcome::RetryableFailure(
                "the record's condition check failed, and DynamoDB did not return the record"
                    .into(),
            )),
            Committed::Declined(declined) => Err(declined),
            Committed::Unknown(outcome) => Ok(outcome),
            Committed::Unwritten(StoreError::Unavailable {
                kind: Unavailability::Contended,
                reason,
                ..
            }) => Ok(Outcome::RetryableFailure(reason)),
            Committed::Unwritten(error) => Ok(Outcome::store_unavailable(error)),
        }
    }
}

impl<S> sqs_once_core::once::mode::sealed::Sealed for Inbox<S> {}

#[diagnostic::do_not_recommend]
impl<S: TransactionalStore, O: Serialize + Send + 'static> Mode<Done<O>> for Inbox<S> {
    fn run<W, F>(&self, operation: Operation, work: W) -> impl Future<Output = Outcome> + Send
    where
        W: FnOnce(Attempt) -> F + Send,
        F: Future<Output = Result<Done<O>, Failure>> + Send,
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

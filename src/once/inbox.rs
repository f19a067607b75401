//! Plan -> one transaction of record and writes: for effects that are DynamoDB writes alone.

use std::sync::Arc;

use aws_sdk_dynamodb::types::TransactWriteItem;
use serde::Serialize;
use tokio::time::timeout_at;

use super::{
    Mode, Once, Operation, Outcome,
    commit::{Committed, Declined, commit, decide, note_omitted},
    mode::{Ended, guard},
};
use crate::{
    deadline::Deadline,
    dynamodb::write::Write,
    handler::{Attempt, Done, Failure, History, Plan},
    protocol::{
        ClaimRefused, ClaimRequest, Settlement, Timestamp,
        decision::{insert_refused, may_claim, refusal},
    },
    store::{RecordWrite, StoreError, TransactionalStore},
};

/// Runs operations whose whole effect is DynamoDB writes: the handler plans them, and they
/// commit together with the record, in one transaction and without a claim before it.
///
/// Made by [`Once::inbox`].
///
/// ```text
/// attempt 1  handler plans ──── commit: record COMPLETED + writes
/// attempt 2  handler plans ──────── commit: refused by the record: a duplicate
/// ```
///
/// So two attempts may plan at the same time, and a handler may run again for an operation that
/// is done: it may read what it likes, and must have no effect of its own. Where planning is
/// costly and duplicates are many, [`first_look`](Self::first_look) spares most of it.
///
/// ```
/// use aws_sdk_dynamodb::Client;
/// use sqs_once::{Attempt, Consumer, Done, Failure, Once, Write, handler_fn};
/// use sqs_once::{protocol::Namespace, store::DynamoStore};
///
/// async fn register(user: String, _: Attempt) -> Result<Done<()>, Failure> {
///     Ok(Done::new(()).with(Write::put("users", serde_json::json!({ "id": user }))))
/// }
///
/// # fn consumer(client: Client) -> Result<(), Box<dyn std::error::Error>> {
/// let inbox = Once::new(DynamoStore::new(client, "idempotency")).inbox();
/// let consumer = Consumer::new(inbox, Namespace::new("users")?, handler_fn(register));
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Inbox<S> {
    once: Once<S>,
    first_look: bool,
}

impl<S> Inbox<S> {
    pub(super) fn new(once: Once<S>) -> Self {
        Self {
            once,
            first_look: false,
        }
    }

    /// Looks for the record before planning: one eventually consistent read a message, half a
    /// read unit. It spares a duplicate its plan and a refused transaction. What it does not see
    /// the commit does.
    #[must_use]
    pub fn first_look(self) -> Self {
        Self {
            first_look: true,
            ..self
        }
    }
}

impl<S: TransactionalStore> Inbox<S> {
    /// Runs one operation; see [`Mode::run`].
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
        } = operation;
        if !deadline.may_start() {
            return Outcome::NotStarted;
        }
        // There is no lease: the record is written as it is to stay.
        let now = self.once.now();
        let request = (self.once).request(&key, fingerprint, delivery.message_id(), now);
        if self.first_look
            && let Some(outcome) = self.look(&request, deadline).await
        {
            return outcome;
        }
        // A look takes its time too.
        if !deadline.may_start() {
            return Outcome::NotStarted;
        }
        let insert = Insert {
            once: &self.once,
            request,
            deadline,
        };
        let attempt = Attempt::new(key, delivery, History::fresh(), deadline);
        let mut planned = guard(deadline, async { work(attempt).await?.try_into() }).await;
        let mut round = 0;
        loop {
            let mut plan: Plan = match planned {
                Ended::Well(plan) => plan,
                Ended::Failed(failure @ Failure::Permanent(_)) => {
                    return insert.fail(round, failure.to_string()).await;
                }
                Ended::Failed(failure) => return failure.into(),
                Ended::Panicked => return Outcome::Panicked,
                Ended::OutOfTime => return Outcome::OutOfTime,
            };
            planned = match insert.complete(round, &mut plan).await {
                Ok(outcome) => return outcome,
                Err(declined) => decide(declined, plan.on_refused),
            };
            round += 1;
        }
    }

    /// The outcome, if the record tells it already.
    async fn look(&self, request: &ClaimRequest, deadline: Deadline) -> Option<Outcome> {
        match timeout_at(deadline.stop(), self.once.store.look(&request.key)).await {
            Ok(Ok(Some(record))) if !may_claim(Some(&record), request) => {
                Some(refusal(record, request).into())
            }
            Ok(Ok(_)) => None,
            Ok(Err(error)) => Some(Outcome::StoreUnavailable(Arc::new(error))),
            Err(_elapsed) => Some(Outcome::StoreUnavailable(Arc::new(StoreError::OutOfTime {
                action: "look for",
                key: request.key.to_string(),
            }))),
        }
    }
}

/// One operation's record, about to be written.
struct Insert<'a, S> {
    once: &'a Once<S>,
    request: ClaimRequest,
    deadline: Deadline,
}

impl<S: TransactionalStore> Insert<'_, S> {
    async fn complete(&self, round: usize, plan: &mut Plan) -> Result<Outcome, Declined> {
        let result = plan.result.clone();
        note_omitted(&self.request.key, &result);
        let writes = std::mem::take(&mut plan.writes);
        let settlement = Settlement::Complete {
            result: result.clone(),
            expires_at: self.once.remembered_until(),
        };
        self.insert(round, settlement, writes, Outcome::Done(result))
            .await
    }

    /// Records a permanent failure. If the operation is done already, the failed plan is the
    /// duplicate's, which found the effect of the first: the record tells.
    async fn fail(&self, round: usize, error: String) -> Outcome {
        let failed = Outcome::PermanentFailure(error.clone());
        let until = self.once.remembered_until();
        let settlement = Settlement::fail(error.clone(), &self.request.message_id, true, until);
        let unrecorded = |why: String| Outcome::FailureUnrecorded {
            error: error.clone(),
            cause: Arc::new(StoreError::Rejected {
                action: "fail",
                key: self.request.key.to_string(),
                reason: why,
            }),
        };
        match self.insert(round, settlement, Vec::new(), failed).await {
            // There are no writes, so it is the record that can't be written: a table with another
            // key schema. That is no fault of the message.
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
        writes: Vec<Write<TransactWriteItem>>,
        inserted: Outcome,
    ) -> Result<Outcome, Declined> {
        let (once, request) = (self.once, &self.request);
        let write = RecordWrite::Insert {
            request: request.clone(),
            settlement: settlement.clone(),
        };
        let owner = &request.owner;
        match commit(&once.store, owner, round, write, writes, self.deadline).await {
            Committed::Applied => Ok(inserted),
            // Another worker replaced the record meanwhile, and the new one admits the insert.
            Committed::Refused(Some(record)) if may_claim(Some(&record), request) => {
                Ok(Outcome::RetryableFailure(
                    "another worker changed the record before this commit was written".into(),
                ))
            }
            Committed::Refused(Some(refused_by)) => {
                Ok(match insert_refused(refused_by, request, &settlement) {
                    ClaimRefused::Mine(_) => inserted,
                    ClaimRefused::NotMine(refusal) => refusal.into(),
                })
            }
            Committed::Refused(None) => Ok(Outcome::RetryableFailure(
                "a record refused the commit, and the answer does not hold it".into(),
            )),
            Committed::Declined(declined) => Err(declined),
            Committed::Unknown(outcome) => Ok(outcome),
            Committed::Unwritten(StoreError::Rejected { reason, .. }) => {
                Ok(Outcome::RetryableFailure(reason))
            }
            Committed::Unwritten(error) => Ok(Outcome::StoreUnavailable(Arc::new(error))),
        }
    }
}

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
        self.once.now()
    }
}

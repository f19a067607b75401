//! Claim -> handler -> complete | fail | release | abandon: for effects outside DynamoDB, and for
//! those that commit together with the completion.

use std::{sync::Arc, time::Duration};

use serde::Serialize;
use tokio::time::timeout_at;

use super::{
    Inbox, Mode, Operation, Outcome,
    commit::{Committed, commit, decide, note_omitted},
    mode::{Ended, guard},
};
use crate::{
    Attempt, Deadline, Done, Failure, History,
    handler::{Answer, Plan, to_result},
    protocol::{
        AfterFailure, ClaimRefused, ClaimRequest, Fence, Fingerprint, Key, Owner, Record,
        Settlement, SettlementRefused, State, StoredResult, Timestamp,
        decision::{claim_refused, settlement_refused},
    },
    store::{ClaimAnswer, RecordWrite, SettleAnswer, Store, StoreError, TransactionalStore},
};

/// Runs operations once, remembering them in a [`Store`].
///
/// ```text
/// attempt 1  claim ──── handler ──────── cut off at `stop`, or crashed
///            |<────────────── lease ───────────────>|
/// attempt 2       claim: conflict                     claim: takeover, and is told
/// attempt 3                                                             claim: duplicate
/// ```
///
/// ```
/// use std::time::Duration;
/// use sqs_once::{Once, store::MemoryStore};
///
/// let once = Once::new(MemoryStore::default())
///     .retention(Duration::from_secs(7 * 24 * 3600))
///     .lease_margin(Duration::from_secs(2));
/// ```
///
/// See [`once`](crate::once) for a whole run.
#[derive(Clone, Debug)]
pub struct Once<S> {
    pub(super) store: S,
    retention: Duration,
    lease_margin: Duration,
    after_failure: AfterFailure,
    clock: fn() -> Timestamp,
}

impl<S: Store> Once<S> {
    /// Remembers outcomes in `store` for 24 hours, with a lease margin of one second.
    #[must_use]
    pub fn new(store: S) -> Self {
        Self {
            store,
            retention: Duration::from_secs(24 * 60 * 60),
            lease_margin: Duration::from_secs(1),
            after_failure: AfterFailure::default(),
            clock: Timestamp::now,
        }
    }

    /// How long an outcome is remembered: longer than the queue keeps a message and somebody
    /// might redrive it.
    #[must_use]
    pub fn retention(self, retention: Duration) -> Self {
        Self { retention, ..self }
    }

    /// What a lease lasts longer than the invocation: by how much two workers' clocks may
    /// differ.
    #[must_use]
    pub fn lease_margin(self, lease_margin: Duration) -> Self {
        Self {
            lease_margin,
            ..self
        }
    }

    /// What a FAILED record does to another message with its key.
    #[must_use]
    pub fn after_failure(self, after_failure: AfterFailure) -> Self {
        Self {
            after_failure,
            ..self
        }
    }

    /// Another wall clock than the system's, for tests.
    #[must_use]
    pub fn clock(self, clock: fn() -> Timestamp) -> Self {
        Self { clock, ..self }
    }

    /// The wall clock.
    pub(crate) fn now(&self) -> Timestamp {
        (self.clock)()
    }

    /// The same memory, for operations whose whole effect is DynamoDB writes: one transaction
    /// each, without a claim.
    #[must_use]
    pub fn inbox(self) -> Inbox<S>
    where
        S: TransactionalStore,
    {
        Inbox::new(self)
    }

    /// Runs one operation; see [`Mode::run`].
    ///
    /// If the future that this returns is dropped, that is a crash: the claim stays until its
    /// lease ends, and the next attempt is told.
    pub async fn run<W, F, A>(&self, operation: Operation, work: W) -> Outcome
    where
        Self: Mode<A>,
        W: FnOnce(Attempt) -> F + Send,
        F: Future<Output = Result<A, Failure>> + Send,
        A: Answer,
    {
        Mode::run(self, operation, work).await
    }

    /// Claims and runs `work`; an end that is not its answer is settled here.
    async fn claim_and_run<T>(
        &self,
        operation: Operation,
        work: impl AsyncFnOnce(Attempt) -> Result<T, Failure>,
    ) -> Result<(Claim<'_, S>, T), Outcome> {
        let Operation {
            key,
            fingerprint,
            delivery,
            deadline,
        } = operation;
        if !deadline.may_start() {
            return Err(Outcome::NotStarted);
        }
        let claim = self
            .claim(&key, fingerprint, delivery.message_id(), deadline)
            .await?;
        // A claim takes its time too, and a process that was frozen has outlived its lease.
        if !deadline.may_start() || self.now() > self.lease(deadline) {
            return Err(claim.release(Outcome::NotStarted).await);
        }
        if claim.history != History::Fresh {
            tracing::warn!(%key, history = ?claim.history, "an attempt before this one was cut off, or may have been; the handler is told");
        }
        let attempt = Attempt::new(key, delivery, claim.history.clone(), deadline);
        match guard(deadline, work(attempt)).await {
            Ended::Well(answer) => Ok((claim, answer)),
            ended => Err(claim.end_badly(ended).await),
        }
    }

    /// Until when a claim is exclusive.
    fn lease(&self, deadline: Deadline) -> Timestamp {
        deadline.at() + self.lease_margin
    }

    /// What a claim of this operation asks for, made now.
    pub(super) fn request(
        &self,
        key: &Key,
        fingerprint: Option<Fingerprint>,
        message_id: &str,
        lease_until: Timestamp,
    ) -> ClaimRequest {
        let now = self.now();
        ClaimRequest {
            key: key.clone(),
            owner: Owner::fresh(),
            fingerprint,
            message_id: message_id.to_owned(),
            now,
            lease_until,
            expires_at: (now + self.retention).max(lease_until).as_secs_ceil(),
            after_failure: self.after_failure,
        }
    }

    /// Seconds since the epoch until which an outcome of now is remembered.
    pub(super) fn remembered_until(&self) -> u64 {
        (self.now() + self.retention).as_secs_ceil()
    }

    async fn claim(
        &self,
        key: &Key,
        fingerprint: Option<Fingerprint>,
        message_id: &str,
        deadline: Deadline,
    ) -> Result<Claim<'_, S>, Outcome> {
        let request = self.request(key, fingerprint, message_id, self.lease(deadline));
        let held = |history| Claim {
            once: self,
            fence: request.fence(),
            history,
            deadline,
        };
        match timeout_at(deadline.stop(), self.store.claim(&request)).await {
            Ok(Ok(ClaimAnswer::Applied { replaced })) => Ok(held(history(replaced))),
            Ok(Ok(ClaimAnswer::Refused(record))) => match claim_refused(record, &request) {
                ClaimRefused::Mine => Ok(held(History::Unknown)),
                ClaimRefused::NotMine(refusal) => Err(refusal.into()),
            },
            Ok(Err(error)) => Err(self.unanswered(held(History::Unknown), error).await),
            Err(_elapsed) => {
                let error = StoreError::OutOfTime {
                    action: "claim",
                    key: key.to_string(),
                };
                Err(self.unanswered(held(History::Unknown), error).await)
            }
        }
    }

    /// A claim that was sent may have been applied, and is abandoned. Not deleted: it may have
    /// taken over from an attempt that the next one must still be told of.
    async fn unanswered(&self, claim: Claim<'_, S>, error: StoreError) -> Outcome {
        let sent = !matches!(error, StoreError::ItemTooLarge { .. });
        let outcome = Outcome::StoreUnavailable(Arc::new(error));
        if sent {
            claim.abandon(outcome).await
        } else {
            outcome
        }
    }
}

/// What the record that a claim replaced tells of the attempts before it.
fn history(replaced: Option<Record>) -> History {
    match replaced {
        Some(Record {
            state: State::InProgress { .. },
            owner,
            created_at,
            ..
        }) => History::Takeover {
            owner,
            claimed_at: created_at,
        },
        _ => History::Fresh,
    }
}

/// A claim that is held. Only a successful claim makes one, and each way to end it consumes it.
struct Claim<'a, S> {
    once: &'a Once<S>,
    fence: Fence,
    history: History,
    deadline: Deadline,
}

/// How far a settlement got.
enum Settled {
    AsWanted,
    LeaseLost,
    Unknown(StoreError),
}

impl<S: Store> Claim<'_, S> {
    async fn complete(self, result: StoredResult) -> Outcome {
        note_omitted(&self.fence.key, &result);
        let settlement = self.completion(&result);
        match self.settle(&settlement).await {
            Settled::AsWanted => Outcome::Done(result),
            Settled::LeaseLost => Outcome::LeaseLost,
            // The effect happened: letting go of the claim would invite a second one.
            Settled::Unknown(error) => Outcome::CompletionUnrecorded(Arc::new(error)),
        }
    }

    fn completion(&self, result: &StoredResult) -> Settlement {
        Settlement::Complete {
            result: result.clone(),
            expires_at: self.once.remembered_until(),
        }
    }

    /// The handler did not come to an answer.
    async fn end_badly<T>(self, ended: Ended<T>) -> Outcome {
        match ended {
            Ended::Failed(failure @ Failure::Permanent(_)) => self.fail(failure.to_string()).await,
            Ended::Failed(failure) => self.release(failure.into()).await,
            Ended::Panicked => self.abandon(Outcome::Panicked).await,
            Ended::Well(_) | Ended::OutOfTime => self.abandon(Outcome::OutOfTime).await,
        }
    }

    async fn fail(self, error: String) -> Outcome {
        let settlement = Settlement::fail(error.clone(), self.once.remembered_until());
        self.end(&settlement, Outcome::PermanentFailure(error))
            .await
    }

    /// This attempt left nothing behind. Where one before it was cut off, the record stays, so
    /// that the next attempt is told of it as well.
    async fn release(self, outcome: Outcome) -> Outcome {
        let settlement = match self.history {
            History::Fresh => Settlement::Release,
            History::Takeover { .. } | History::Unknown => Settlement::Abandon,
        };
        self.end(&settlement, outcome).await
    }

    /// Nobody knows how far it got. If this is refused, somebody else went on already.
    async fn abandon(self, outcome: Outcome) -> Outcome {
        let _refused_or_not = self.end(&Settlement::Abandon, outcome.clone()).await;
        outcome
    }

    /// Ends a claim whose message goes back to the queue, whether this is recorded or not.
    async fn end(&self, settlement: &Settlement, outcome: Outcome) -> Outcome {
        match self.settle(settlement).await {
            Settled::AsWanted => outcome,
            Settled::LeaseLost => Outcome::LeaseLost,
            Settled::Unknown(error) => {
                tracing::warn!(key = %self.fence.key, %error, "the claim stays until its lease ends");
                outcome
            }
        }
    }

    async fn settle(&self, settlement: &Settlement) -> Settled {
        let (store, fence) = (&self.once.store, &self.fence);
        let write = store.settle(fence, settlement, self.once.now());
        match timeout_at(self.deadline.end(), write).await {
            Ok(Ok(SettleAnswer::Applied)) => Settled::AsWanted,
            Ok(Ok(SettleAnswer::Refused(record))) => {
                match settlement_refused(record.as_ref(), fence, settlement) {
                    SettlementRefused::AlreadySettled => Settled::AsWanted,
                    SettlementRefused::LeaseLost => Settled::LeaseLost,
                }
            }
            Ok(Err(error)) => Settled::Unknown(error),
            Err(_elapsed) => Settled::Unknown(StoreError::OutOfTime {
                action: settlement.name(),
                key: fence.key.to_string(),
            }),
        }
    }
}

impl<S: TransactionalStore> Claim<'_, S> {
    /// Completes together with the writes, if there are any.
    async fn commit(self, mut plan: Plan) -> Outcome {
        let mut round = 0;
        loop {
            if plan.writes.is_empty() {
                return self.complete(plan.result).await;
            }
            note_omitted(&self.fence.key, &plan.result);
            let settlement = self.completion(&plan.result);
            let write = RecordWrite::Settle {
                fence: self.fence.clone(),
                settlement: settlement.clone(),
                now: self.once.now(),
            };
            let (store, owner) = (&self.once.store, &self.fence.owner);
            let writes = std::mem::take(&mut plan.writes);
            let declined = match commit(store, owner, round, write, writes, self.deadline).await {
                Committed::Applied => return Outcome::Done(plan.result),
                Committed::Refused(record) => {
                    return match settlement_refused(record.as_ref(), &self.fence, &settlement) {
                        SettlementRefused::AlreadySettled => Outcome::Done(plan.result),
                        SettlementRefused::LeaseLost => Outcome::LeaseLost,
                    };
                }
                // The handler may have had effects elsewhere too, so the next attempt is told.
                // If the writes were made after all, the record is COMPLETED, and stays so.
                Committed::Unknown(outcome) => return self.abandon(outcome).await,
                Committed::Declined(declined) => declined,
            };
            plan = match decide(declined, plan.on_refused) {
                Ended::Well(plan) => plan,
                ended => return self.end_badly(ended).await,
            };
            round += 1;
        }
    }
}

impl<S: Store, O: Serialize + Send> Mode<O> for Once<S> {
    async fn run<W, F>(&self, operation: Operation, work: W) -> Outcome
    where
        W: FnOnce(Attempt) -> F + Send,
        F: Future<Output = Result<O, Failure>> + Send,
    {
        // Inside the guard: making the future and writing the output as JSON are the user's
        // code too.
        let work = async |attempt| Ok(to_result(&work(attempt).await?));
        match self.claim_and_run(operation, work).await {
            Ok((claim, result)) => claim.complete(result).await,
            Err(outcome) => outcome,
        }
    }

    fn now(&self) -> Timestamp {
        (self.clock)()
    }
}

impl<S: TransactionalStore, O: Serialize + Send + 'static> Mode<Done<O>> for Once<S> {
    async fn run<W, F>(&self, operation: Operation, work: W) -> Outcome
    where
        W: FnOnce(Attempt) -> F + Send,
        F: Future<Output = Result<Done<O>, Failure>> + Send,
    {
        let work = async |attempt| work(attempt).await?.try_into();
        match self.claim_and_run(operation, work).await {
            Ok((claim, plan)) => claim.commit(plan).await,
            Err(outcome) => outcome,
        }
    }

    fn now(&self) -> Timestamp {
        (self.clock)()
    }
}

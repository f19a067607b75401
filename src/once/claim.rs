//! Claim -> handler -> complete | fail | end the lease | restore: for effects outside DynamoDB, and
//! for those that commit together with the completion.

use std::{sync::Arc, time::Duration};

use serde::Serialize;
use tokio::time::{Instant, timeout_at};

use super::{
    Inbox, Mode, Operation, Outcome,
    commit::{Backoff, Committed, commit, decide, note_omitted},
    mode::{Ended, guard},
};
use crate::{
    deadline::Deadline,
    handler::{Answer, Attempt, Done, Failure, History, Plan, to_result},
    protocol::{
        AfterFailure, AttemptEnd, ClaimRefused, ClaimRequest, Claimed, Fence, Fingerprint, Key,
        Owner, Settlement, SettlementRefused, StoredResult, Timestamp,
        decision::{claim_refused, settlement_refused},
    },
    store::{ClaimAnswer, RecordWrite, SettleAnswer, Store, StoreError, TransactionalStore},
};

/// Runs operations once, with their records in a [`Store`].
///
/// ```text
/// attempt 1  claim ──── handler ──────── cut off at `stop`, or crashed
///            |<────────────── lease ───────────────>|
/// attempt 2       claim: conflict                     claim: takeover, and is informed
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
    /// Keeps records in `store` for 20 days ([`retention`](Self::retention)), with a lease margin of
    /// one second.
    #[must_use]
    pub fn new(store: S) -> Self {
        Self {
            store,
            retention: Duration::from_secs(20 * 24 * 60 * 60),
            lease_margin: Duration::from_secs(1),
            after_failure: AfterFailure::default(),
            clock: Timestamp::now,
        }
    }

    /// How long a record is kept. Messages must not come back after it, or they run again: choose
    /// longer than the retention of the queue and of its dead-letter queue together. The default
    /// is 4 days of the queue, 14 days of the dead-letter queue, and 2 days more.
    #[must_use]
    pub fn retention(self, retention: Duration) -> Self {
        Self { retention, ..self }
    }

    /// The time that a lease lasts longer than the invocation: by how much two workers' clocks may
    /// differ.
    #[must_use]
    pub fn lease_margin(self, lease_margin: Duration) -> Self {
        Self {
            lease_margin,
            ..self
        }
    }

    /// Sets the effect of a FAILED record on another message with its key.
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
    /// lease ends, and the next attempt is informed.
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
        // A claim takes its time too, and a process that was frozen may have outlived its lease. The
        // margin is for the clocks of others: one that is ahead sees the lease end this early.
        if !deadline.may_start() || self.now() > deadline.at() {
            return Err(claim.restore(Outcome::NotStarted).await);
        }
        let history = History::from(&claim.claimed);
        log_history(&key, &history);
        let attempt = Attempt::new(key, delivery, history, deadline);
        match guard(deadline, work(attempt)).await {
            Ended::Well(answer) => Ok((claim, answer)),
            ended => Err(claim.end_badly(ended).await),
        }
    }

    /// Until when a claim is exclusive.
    fn lease(&self, deadline: Deadline) -> Timestamp {
        deadline.at() + self.lease_margin
    }

    /// A claim of this operation, made now.
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
        let held = |claimed| Claim {
            once: self,
            fence: request.fence(),
            message_id: message_id.to_owned(),
            claimed,
            deadline,
        };
        let patience = MOST_CLAIMING.min(deadline.time_left() / 10);
        let mut backoff = Backoff::until(Instant::now() + patience);
        loop {
            let answer = timeout_at(deadline.stop(), self.store.claim(&request)).await;
            let error = match answer {
                Ok(Ok(ClaimAnswer::Applied { replaced })) => {
                    return Ok(held(Claimed::over(replaced)));
                }
                Ok(Ok(ClaimAnswer::Refused(record))) => {
                    return match claim_refused(record, &request) {
                        ClaimRefused::Mine(claimed) => Ok(held(claimed)),
                        ClaimRefused::NotMine(refusal) => Err(refusal.into()),
                    };
                }
                Ok(Err(error)) if error.is_throttled() && backoff.pause().await => continue,
                Ok(Err(error)) => error,
                Err(_elapsed) => StoreError::OutOfTime {
                    action: "claim",
                    key: key.to_string(),
                },
            };
            if error.may_have_been_applied() {
                self.abandon(&request.fence(), deadline).await;
            }
            return Err(Outcome::StoreUnavailable(Arc::new(error)));
        }
    }

    /// Ends the lease of a claim that got no answer and may have been applied, in one attempt.
    /// The record is not deleted: the claim may have been a takeover, and the next attempt must
    /// still be informed of the attempt before.
    async fn abandon(&self, fence: &Fence, deadline: Deadline) {
        let settlement = Settlement::EndLease { last_end: None };
        let settled = self.store.settle(fence, &settlement, self.now());
        // Refused or not: either there is no such claim, or it ends with its lease.
        let _best_effort = timeout_at(deadline.end(), settled).await;
    }
}

/// A retry after a failure that the handler returned is ordinary; any other is a takeover.
fn log_history(key: &Key, history: &History) {
    let Some(open) = history.open else { return };
    macro_rules! line {
        ($level:ident, $what:literal) => {
            tracing::$level!(
                %key,
                attempts = history.attempts,
                first_claimed_at = open.first_claimed_at.map(tracing::field::display),
                last_end = open.last_end.map(AttemptEnd::name),
                concat!($what, ": an earlier attempt may have had its effect")
            )
        };
    }
    match open.last_end {
        Some(AttemptEnd::Retryable) => line!(info, "retry"),
        _ => line!(warn, "takeover"),
    }
}

/// The longest time in which a throttled claim is repeated.
const MOST_CLAIMING: Duration = Duration::from_secs(2);

/// A claim that is held. Only a successful claim makes one, and each way to end it consumes it.
struct Claim<'a, S> {
    once: &'a Once<S>,
    fence: Fence,
    message_id: String,
    claimed: Claimed,
    deadline: Deadline,
}

/// The result of a settlement.
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
            // The effect has occurred. Without the claim, it would be repeated at once.
            Settled::Unknown(error) => Outcome::CompletionUnrecorded(Arc::new(error)),
        }
    }

    fn completion(&self, result: &StoredResult) -> Settlement {
        Settlement::Complete {
            result: result.clone(),
            expires_at: self.once.remembered_until(),
        }
    }

    /// Settles the claim of a handler that did not return an answer.
    async fn end_badly<T>(self, ended: Ended<T>) -> Outcome {
        match ended {
            Ended::Failed(failure @ Failure::Permanent(_)) => self.fail(failure.to_string()).await,
            Ended::Failed(failure @ Failure::NoEffect(_)) => self.restore(failure.into()).await,
            Ended::Failed(failure @ Failure::Retryable(_)) => {
                self.end_lease(AttemptEnd::Retryable, failure.into()).await
            }
            Ended::Panicked => self.end_lease(AttemptEnd::Panic, Outcome::Panicked).await,
            Ended::Well(_) | Ended::OutOfTime => {
                self.end_lease(AttemptEnd::Deadline, Outcome::OutOfTime)
                    .await
            }
        }
    }

    async fn fail(self, error: String) -> Outcome {
        let (first_open, until) = (self.claimed.is_first_open(), self.once.remembered_until());
        let settlement = Settlement::fail(error.clone(), &self.message_id, first_open, until);
        match self.settle(&settlement).await {
            Settled::AsWanted => Outcome::PermanentFailure(error),
            Settled::LeaseLost => Outcome::LeaseLost,
            Settled::Unknown(cause) => Outcome::FailureUnrecorded {
                error,
                cause: Arc::new(cause),
            },
        }
    }

    /// Undoes the claim of an attempt that had no effect.
    async fn restore(self, outcome: Outcome) -> Outcome {
        let settlement = Settlement::Restore(self.claimed.clone());
        self.end(&settlement, outcome).await
    }

    /// Ends the lease of an attempt that may have had its effect.
    async fn end_lease(self, last_end: AttemptEnd, outcome: Outcome) -> Outcome {
        let last_end = Some(last_end);
        self.end(&Settlement::EndLease { last_end }, outcome).await
    }

    /// Ends a claim whose message goes back to the queue, whether that is recorded or not.
    async fn end(&self, settlement: &Settlement, outcome: Outcome) -> Outcome {
        match self.settle(settlement).await {
            Settled::AsWanted => outcome,
            Settled::LeaseLost => Outcome::LeaseLost,
            Settled::Unknown(error) => {
                tracing::warn!(key = %self.fence.key, %error, "the claim is kept until its lease ends");
                outcome
            }
        }
    }

    /// Repeats the settlement until it is answered, or no time is left. It is fenced, so a
    /// repetition is harmless.
    async fn settle(&self, settlement: &Settlement) -> Settled {
        let (store, fence) = (&self.once.store, &self.fence);
        let (now, end) = (self.once.now(), self.deadline.end());
        let mut backoff = Backoff::until(end);
        // The answer to the attempt before: throttling, where the last attempt is cut off.
        let mut before = None;
        loop {
            return match timeout_at(end, store.settle(fence, settlement, now)).await {
                Ok(Ok(SettleAnswer::Applied)) => Settled::AsWanted,
                Ok(Ok(SettleAnswer::Refused(record))) => {
                    match settlement_refused(record.as_ref(), fence, settlement) {
                        SettlementRefused::AlreadySettled => Settled::AsWanted,
                        SettlementRefused::LeaseLost => Settled::LeaseLost,
                    }
                }
                Ok(Err(error)) if error.may_pass() && backoff.pause().await => {
                    before = Some(error);
                    continue;
                }
                Ok(Err(error)) => Settled::Unknown(error),
                Err(_elapsed) => {
                    Settled::Unknown(before.unwrap_or_else(|| StoreError::OutOfTime {
                        action: settlement.name(),
                        key: fence.key.to_string(),
                    }))
                }
            };
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
                // The handler may have had effects elsewhere too, so the claim is kept until its
                // lease ends, as after every completion that is not recorded.
                Committed::Unknown(outcome) => return outcome,
                Committed::Unwritten(error) => {
                    return Outcome::CompletionUnrecorded(Arc::new(error));
                }
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

#[diagnostic::do_not_recommend]
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

#[diagnostic::do_not_recommend]
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

//! Claim -> handler -> complete | fail | release | abandon: for effects outside DynamoDB.

use std::{panic::AssertUnwindSafe, sync::Arc, time::Duration};

use futures_util::FutureExt as _;
use serde::Serialize;
use tokio::time::timeout_at;

use super::Outcome;
use crate::{
    Attempt, Deadline, Delivery, Failure, History,
    protocol::{
        AfterFailure, ClaimRefused, ClaimRequest, Fence, Fingerprint, Key, Owner, Record,
        Settlement, SettlementRefused, State, StoredResult, Timestamp,
        decision::{claim_refused, settlement_refused},
    },
    store::{ClaimAnswer, SettleAnswer, Store, StoreError},
};

/// One thing to do once.
///
/// ```
/// use std::time::Duration;
/// use sqs_once::{Deadline, Delivery, Operation};
/// use sqs_once::protocol::{Fingerprint, Key, Namespace, Timestamp};
///
/// let operation = Operation::new(
///     Key::new(&Namespace::new("payments")?, ["order-1"])?,
///     Some(Fingerprint::of(b"{\"amount\":1}")),
///     Delivery::new("059f36b4"),
///     Deadline::after(Timestamp::now(), Duration::from_secs(30), Duration::ZERO),
/// );
/// # Ok::<(), sqs_once::protocol::KeyError>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Operation {
    /// What makes two deliveries the same operation.
    pub key: Key,
    /// What must not change under that key; `None` does not look.
    pub fingerprint: Option<Fingerprint>,
    /// The message that asks for it.
    pub delivery: Delivery,
    /// Until when it must have ended.
    pub deadline: Deadline,
}

impl Operation {
    /// An operation; see the fields.
    #[must_use]
    pub fn new(
        key: Key,
        fingerprint: Option<Fingerprint>,
        delivery: Delivery,
        deadline: Deadline,
    ) -> Self {
        Self {
            key,
            fingerprint,
            delivery,
            deadline,
        }
    }
}

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
    store: S,
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

    /// Runs `work` unless the operation is done, has failed, or is somebody else's just now,
    /// and records how it ended.
    ///
    /// `work` is cut off when [`Deadline::time_left`] is zero, and its panics are caught (a
    /// build with `panic = "abort"` can't). If the future that this returns is dropped, that is
    /// a crash: the claim stays until its lease ends, and the next attempt is told.
    pub async fn run<W, F, O>(&self, operation: Operation, work: W) -> Outcome
    where
        W: FnOnce(Attempt) -> F,
        F: Future<Output = Result<O, Failure>>,
        O: Serialize,
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
        let claim = match self
            .claim(&key, fingerprint, delivery.message_id(), deadline)
            .await
        {
            Ok(claim) => claim,
            Err(outcome) => return outcome,
        };
        // A claim takes its time too.
        if !deadline.may_start() {
            return claim.release(Outcome::NotStarted).await;
        }
        if claim.history != History::Fresh {
            tracing::warn!(%key, history = ?claim.history, "an attempt before this one was cut off, or may have been; the handler is told");
        }
        let attempt = Attempt::new(key, delivery, claim.history.clone(), deadline);
        // Inside the guard: making the future and writing the output as JSON are the user's
        // code too.
        let guarded =
            AssertUnwindSafe(async { work(attempt).await.map(|output| to_result(&output)) });
        match timeout_at(deadline.stop(), guarded.catch_unwind()).await {
            Ok(Ok(Ok(result))) => claim.complete(result).await,
            Ok(Ok(Err(failure @ Failure::Permanent(_)))) => claim.fail(failure.to_string()).await,
            Ok(Ok(Err(failure @ Failure::Transient(_)))) => {
                claim
                    .release(Outcome::TransientFailure(failure.to_string()))
                    .await
            }
            Ok(Err(_panic)) => claim.abandon(Outcome::Panicked).await,
            Err(_elapsed) => claim.abandon(Outcome::OutOfTime).await,
        }
    }

    async fn claim(
        &self,
        key: &Key,
        fingerprint: Option<Fingerprint>,
        message_id: &str,
        deadline: Deadline,
    ) -> Result<Claim<'_, S>, Outcome> {
        let now = self.now();
        let lease_until = deadline.at() + self.lease_margin;
        let request = ClaimRequest {
            key: key.clone(),
            owner: Owner::fresh(),
            fingerprint,
            message_id: message_id.to_owned(),
            now,
            lease_until,
            expires_at: (now + self.retention).max(lease_until).as_secs_ceil(),
            after_failure: self.after_failure,
        };
        let held = |history| Claim {
            once: self,
            fence: request.fence(),
            history,
            deadline,
        };
        match timeout_at(deadline.stop(), self.store.claim(&request)).await {
            Ok(Ok(ClaimAnswer::Applied { replaced })) => Ok(held(history(replaced))),
            Ok(Ok(ClaimAnswer::Refused(record))) => Err(match claim_refused(record, &request) {
                ClaimRefused::Mine => return Ok(held(History::Unknown)),
                ClaimRefused::KeyReused => Outcome::KeyReused,
                ClaimRefused::Duplicate(result) => Outcome::Duplicate(result),
                ClaimRefused::FailedBefore(error) => Outcome::FailedBefore(error),
                ClaimRefused::Conflict { owner, lease_until } => {
                    Outcome::Conflict { owner, lease_until }
                }
            }),
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

/// The handler's effect has happened, so nothing here may fail.
fn to_result<O: Serialize>(output: &O) -> StoredResult {
    match serde_json::to_string(output) {
        Ok(json) => StoredResult::fit(json),
        // The error is the user's words, and may quote the output.
        Err(_) => StoredResult::Omitted("the output can't be written as JSON".into()),
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
        if let StoredResult::Omitted(why) = &result {
            tracing::warn!(key = %self.fence.key, result_omitted = why, "the result is not kept");
        }
        let settlement = Settlement::Complete {
            result: result.clone(),
            expires_at: self.remembered_until(),
        };
        match self.settle(&settlement).await {
            Settled::AsWanted => Outcome::Done(result),
            Settled::LeaseLost => Outcome::LeaseLost,
            // The effect happened: letting go of the claim would invite a second one.
            Settled::Unknown(error) => Outcome::CompletionUnrecorded(Arc::new(error)),
        }
    }

    async fn fail(self, error: String) -> Outcome {
        let settlement = Settlement::fail(error.clone(), self.remembered_until());
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

    fn remembered_until(&self) -> u64 {
        (self.once.now() + self.once.retention).as_secs_ceil()
    }
}

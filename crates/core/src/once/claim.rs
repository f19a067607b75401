//! [`Once`], the claim mode: claim -> handler -> complete | fail | end the lease | restore.

use std::{pin::pin, sync::Arc, time::Duration};

use serde::Serialize;
use tokio::time::Instant;

use super::{
    Mode, Operation, Outcome,
    health::Health,
    held::HeldClaim,
    lease::{Lease, LeaseTerms},
    records::Records,
    repeat::{Answered, Effort, GivenUp, MAX_BRIEF, repeat},
    turns::{OperationGate, Turns},
    work::guard,
};
use crate::{
    deadline::{Deadline, until},
    handler::{Answer, Attempt, Failure, History, Stored, to_output},
    meter::timed,
    protocol::{
        AfterFailure, AttemptEnd, ClaimRefused, ClaimRequest, Claimed, Settlement, StoredResult,
        Timestamp,
        decision::{claim_refused, may_settle},
        isolation::{CrashWaits, Standing, standing},
    },
    store::{ClaimAnswer, Results, SettleAnswer, Store, StoreError},
};

/// Claim mode: runs each operation once, with its record in a [`Store`].
///
/// For effects outside DynamoDB, and for DynamoDB writes that commit together with the completion.
///
/// ```text
/// attempt 1  claim ──── handler ──────── cut off at the deadline, or crashed
///            |<────────────── lease ───────────────>|
/// attempt 2       claim: conflict                     claim: takeover, attempt is informed
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
/// The [module documentation](crate::once) shows a complete run.
#[derive(Clone, Debug)]
pub struct Once<S> {
    /// Store, place of outputs, retention and clock.
    pub records: Records<S>,
    lease: LeaseTerms,
    health: Arc<Health>,
    crash_waits: CrashWaits,
    turns: Turns,
}

impl<S: Store> Once<S> {
    /// Creates a claim mode with records in `store`.
    ///
    /// The [retention](Self::retention) is 20 days and the [lease margin](Self::lease_margin) one
    /// second.
    #[must_use]
    pub fn new(store: S) -> Self {
        Self {
            records: Records {
                store,
                results: Results::inline(),
                retention: Duration::from_secs(20 * 24 * 60 * 60),
                after_failure: AfterFailure::default(),
                clock: Timestamp::now,
                outbox: None,
            },
            lease: LeaseTerms {
                margin: Duration::from_secs(1),
                heartbeat: None,
            },
            health: Arc::default(),
            crash_waits: CrashWaits::default(),
            turns: Turns::default(),
        }
    }

    /// Sets the retention of records.
    ///
    /// A message that arrives after the retention runs again. Choose a longer time than the message
    /// retention periods of the queue and its dead-letter queue together. The default of 20 days
    /// suits 4 days in the queue and 14 days in the dead-letter queue, and adds 2 days.
    #[must_use]
    pub fn retention(mut self, retention: Duration) -> Self {
        self.records.retention = retention;
        self
    }

    /// Sets the time by which a lease outlasts the invocation. Choose at least the difference that
    /// two workers' clocks may have.
    #[must_use]
    pub fn lease_margin(mut self, lease_margin: Duration) -> Self {
        self.lease.margin = lease_margin;
        self
    }

    /// Sets the length of leases, which the worker renews while the handler runs. `None`, the
    /// default: a lease ends with the invocation, and is never renewed.
    ///
    /// For workers whose invocations are long, and for programs outside of Lambda. After a crash or a
    /// freeze, another worker can take over when the lease ends, and need not wait for the deadline of
    /// the invocation. A Lambda function of at most 15 minutes needs no heartbeat.
    ///
    /// The worker renews the lease after a third of its length, with one write each time. It drops the
    /// handler if another worker took over ([`Outcome::LeaseLost`]), or if DynamoDB does not answer
    /// before the lease ends ([`Outcome::OutOfTime`]). A handler that blocks its thread stops the
    /// renewals too. Leases are not renewed while the worker records the outcome. Choose a length of
    /// several seconds, and at least three times the longest pause of the handler's thread.
    ///
    /// ```
    /// use std::time::Duration;
    /// use sqs_once::{Once, store::MemoryStore};
    ///
    /// let once = Once::new(MemoryStore::default()).heartbeat(Duration::from_secs(30));
    /// ```
    #[must_use]
    pub fn heartbeat(mut self, length: impl Into<Option<Duration>>) -> Self {
        self.lease.heartbeat = length.into();
        self
    }

    /// Sets how long a message rests after each death of its process while its handler ran alone. By
    /// default 20 minutes, 2 hours and 10 hours. [`CrashWaits::off`]: no message runs alone.
    ///
    /// A handler that ends its process (out of memory, stack overflow, a block until Lambda's timeout)
    /// takes other messages with it. So a message whose last attempt has no recorded end runs while no
    /// other handler of this value and its clones runs. After one death more than there are waits, the
    /// outcome is [`Outcome::Crashed`].
    ///
    /// ```
    /// use std::time::Duration;
    /// use sqs_once::{Once, protocol::isolation::CrashWaits, store::MemoryStore};
    ///
    /// let minute = Duration::from_secs(60);
    /// let once = Once::new(MemoryStore::default()).crash_waits(CrashWaits::new([minute, 10 * minute]));
    /// ```
    #[must_use]
    pub fn crash_waits(mut self, crash_waits: CrashWaits) -> Self {
        self.crash_waits = crash_waits;
        self
    }

    /// Sets the place of outputs, by default the record ([`Results::inline`]).
    #[must_use]
    pub fn results(mut self, results: Results) -> Self {
        self.records.results = results;
        self
    }

    /// Returns the output of an operation that [`run`](Self::run) completed, now or before.
    ///
    /// Reads nothing yet: an output in S3 is read by [`Stored::output`].
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use sqs_once::{Deadline, Once, Operation, Outcome};
    /// # use sqs_once::protocol::{Key, Namespace, Timestamp};
    /// # use sqs_once::store::MemoryStore;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let key = Key::new(&Namespace::new("payments")?, ["order-1"])?;
    /// # let deadline = Deadline::after(Timestamp::now(), Duration::from_secs(30), Duration::ZERO);
    /// # let operation = Operation::new(key, None, "request-1", deadline);
    /// let once = Once::new(MemoryStore::default());
    /// let outcome = once.run(operation, |_attempt| async { Ok(17) }).await;
    /// if let Outcome::Completed(result) | Outcome::Duplicate(result) = outcome {
    ///     assert!(matches!(once.stored::<u64>(result).output().await, Ok(Some(17))));
    /// }
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn stored<O>(&self, result: StoredResult) -> Stored<O> {
        Stored::kept_by(result, self.records.results.clone())
    }

    /// Sets the effect of a `FAILED` record on another message with the same key.
    #[must_use]
    pub fn after_failure(mut self, after_failure: AfterFailure) -> Self {
        self.records.after_failure = after_failure;
        self
    }

    /// Sets the table of the events that handlers publish (`Done::publish`):
    /// partition key `group`, sort key `sequence`, TTL attribute `expires_at`, all as in
    /// `docs/outbox.md`. `None`, the default: an answer with events is not committed.
    ///
    /// ```
    /// use sqs_once::{Once, store::MemoryStore};
    ///
    /// let once = Once::new(MemoryStore::default()).outbox("orders-outbox".to_owned());
    /// ```
    #[must_use]
    pub fn outbox(mut self, table: impl Into<Option<String>>) -> Self {
        self.records.outbox = table.into();
        self
    }

    /// Replaces the system's wall clock, for tests.
    #[must_use]
    pub fn clock(mut self, clock: fn() -> Timestamp) -> Self {
        self.records.clock = clock;
        self
    }

    /// Runs one operation: see [`Mode::run`].
    ///
    /// Dropping the returned future has the effect of a crash. The claim stays until its lease
    /// expires, and the next attempt is informed.
    pub async fn run<W, F, A>(&self, operation: Operation, work: W) -> Outcome
    where
        Self: Mode<A>,
        W: FnOnce(Attempt) -> F + Send,
        F: Future<Output = Result<A, Failure>> + Send,
        A: Answer,
    {
        Mode::run(self, operation, work).await
    }

    /// Claims the operation and runs `work`. Settles the claim if `work` returns no answer.
    #[doc(hidden)]
    pub async fn claim_and_run<T>(
        &self,
        operation: Operation,
        work: impl AsyncFnOnce(Attempt) -> Result<T, Failure>,
    ) -> Result<(HeldClaim<'_, S>, T), Outcome> {
        let Operation {
            key,
            fingerprint,
            delivery,
            deadline,
            gate,
        } = operation;
        if !deadline.may_start() {
            return Err(Outcome::NotStarted);
        }
        let gate = gate.map(|OperationGate(gate)| gate);
        let lease = Lease::from_now(self.lease, self.records.now(), deadline);
        let message_id = delivery.message_id();
        let request = (self.records).request(&key, fingerprint, message_id, lease.until());
        let mut claim = self.claim(&request, lease, deadline).await?;
        // A claim takes time, and Lambda may have frozen the process beyond the lease. The check
        // leaves out the lease margin: a worker whose clock is ahead sees the lease expire earlier.
        if !deadline.may_start() || self.records.now() > lease.ends {
            return Err(claim.restore(Outcome::NotStarted).await);
        }
        match standing(&claim.claimed, &self.crash_waits) {
            Standing::Clear if gate.is_some() => {}
            Standing::Clear => {
                claim = claim.beside_others(&self.turns).await?;
            }
            Standing::Suspect { exclusive_attempts } => {
                tracing::warn!(
                    %key,
                    exclusive_attempts,
                    "an earlier attempt has no recorded end: the handler runs alone"
                );
                let isolation = (gate.as_deref(), &self.turns, &self.crash_waits);
                claim = claim.alone(exclusive_attempts, isolation).await?;
            }
            Standing::Crashed { exclusive_attempts } => {
                return Err(claim.crashed(exclusive_attempts).await);
            }
        }
        claim.began = true;
        let history = History::from(&claim.claimed);
        let attempt = Attempt::new(key, delivery, history, deadline);
        if gate.is_none() {
            attempt.log_history();
        }
        let answer = {
            // Dropped before the settlement. The handler must not go on after it.
            let work = pin!(guard(deadline, work(attempt)));
            claim.while_renewed(work).await
        };
        match answer {
            Ok(answer) => Ok((claim, answer)),
            Err(end) => Err(claim.end_without_answer(end).await),
        }
    }

    async fn claim(
        &self,
        request: &ClaimRequest,
        lease: Lease,
        deadline: Deadline,
    ) -> Result<HeldClaim<'_, S>, Outcome> {
        if self.health.has_given_up(deadline) {
            let why = "the last claims of this process got no answer, so this one was not sent";
            let error = StoreError::unanswered("claim", &request.key, "the table", why);
            return Err(Outcome::store_unavailable(error));
        }
        self.health.earn_repetitions();
        let effort = Effort::claim(deadline, &self.health);
        let send = || self.records.store.claim(request);
        let answered = match repeat(effort, "claim", &request.key, send).await {
            Ok(answered) => answered,
            Err(given_up) => return Err(self.not_claimed(given_up, request, deadline).await),
        };
        self.health.answered();
        let Answered {
            answer,
            copies_unanswered,
            ..
        } = answered;
        let (claimed, copies_on_their_way) = match answer {
            ClaimAnswer::Applied { replaced } => (Claimed::over(replaced), copies_unanswered),
            ClaimAnswer::Refused(record) => match claim_refused(record, request) {
                // One of the copies without an answer was applied.
                ClaimRefused::Held(claimed) => (claimed, copies_unanswered.saturating_sub(1)),
                ClaimRefused::Refused(refusal) => return Err(refusal.into()),
            },
        };
        Ok(HeldClaim {
            records: &self.records,
            fence: request.fence(),
            claimed_at: request.now,
            is_copy_on_its_way: copies_on_their_way > 0,
            message_id: request.message_id.clone(),
            claimed,
            deadline,
            lease,
            began: false,
            ran_alone: false,
            turn: None,
        })
    }

    /// Undoes a claim that may have been applied, as far as that is known.
    async fn not_claimed(
        &self,
        given_up: GivenUp,
        request: &ClaimRequest,
        deadline: Deadline,
    ) -> Outcome {
        let GivenUp {
            error,
            may_have_been_applied,
        } = given_up;
        if error.may_have_been_applied() {
            self.health.unanswered(deadline);
        } else {
            self.health.answered();
        }
        if may_have_been_applied {
            self.abandon(request, deadline).await;
        }
        Outcome::store_unavailable(error)
    }

    /// Ends the lease of a claim that got no answer and may have been applied.
    ///
    /// The record is not deleted. The claim may have been a takeover, and the next attempt must be
    /// informed of the earlier attempt. Where the claim opened the attempt itself, the record says
    /// that nothing was started, so that the next claim is no suspect. One request, or two after a
    /// takeover.
    async fn abandon(&self, request: &ClaimRequest, deadline: Deadline) {
        let (fence, now) = (request.fence(), self.records.now().max(request.now));
        let end = deadline.end().min(Instant::now() + MAX_BRIEF);
        let not_started = Some(AttemptEnd::NotStarted);
        for (fence, last_end) in [
            (fence.clone().with_first_claim(request.now), not_started),
            (fence.clone(), None),
        ] {
            let settlement = Settlement::EndLease { last_end };
            let settled = self.records.store.settle(&fence, &settlement, now);
            // If this settlement fails, the claim stays until its lease expires.
            match timed(until(end, settled)).await {
                Ok(Ok(SettleAnswer::Refused(Some(record))))
                    if may_settle(Some(&record), &request.fence()) => {}
                _ => return,
            }
        }
    }
}

impl<S> super::mode::sealed::Sealed for Once<S> {}

#[diagnostic::do_not_recommend]
impl<S: Store, O: Serialize + Send> Mode<O> for Once<S> {
    async fn run<W, F>(&self, operation: Operation, work: W) -> Outcome
    where
        W: FnOnce(Attempt) -> F + Send,
        F: Future<Output = Result<O, Failure>> + Send,
    {
        // The guard includes creation of the future and serialization of the output, because both
        // run the application's code.
        let work = async |attempt| Ok(to_output(&work(attempt).await?));
        match self.claim_and_run(operation, work).await {
            Ok((claim, output)) => claim.complete(output).await,
            Err(outcome) => outcome,
        }
    }

    fn now(&self) -> Timestamp {
        self.records.now()
    }

    fn results(&self) -> Results {
        self.records.results.clone()
    }
}

//! Runs an operation in the claim mode: claim -> handler -> complete | fail | end the lease | restore.

use std::pin::pin;

use serde::Serialize;
use tokio::time::{Instant, timeout_at};

use super::{
    Mode, Once, Operation, Outcome,
    held::HeldClaim,
    lease::Lease,
    repeat::{Answered, Effort, GivenUp, MAX_BRIEF, repeat},
    turns::OperationGate,
    work::guard,
};
use crate::{
    deadline::Deadline,
    handler::{Answer, Attempt, Failure, History, to_output},
    meter::Meter,
    protocol::{
        AttemptEnd, ClaimRefused, ClaimRequest, Claimed, Settlement, Timestamp,
        decision::{claim_refused, may_settle},
        isolation::{Standing, standing},
    },
    store::{ClaimAnswer, RequestContext, Results, SettleAnswer, Store, StoreError},
};

impl<S: Store> Once<S> {
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
            meter,
        } = operation;
        if !deadline.may_start() {
            return Err(Outcome::NotStarted);
        }
        let gate = gate.map(|OperationGate(gate)| gate);
        let lease = Lease::from_now(self.lease, self.records.now(), deadline);
        let message_id = delivery.message_id();
        let request = (self.records).request(&key, fingerprint, message_id, lease.until());
        let context = RequestContext::until(deadline.stop(), &meter)
            .expecting_record(delivery.facts().receive_count > 1);
        let mut claim = self.claim(&request, lease, deadline, context).await?;
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
        context: RequestContext,
    ) -> Result<HeldClaim<'_, S>, Outcome> {
        if self.health.has_given_up(deadline) {
            let why = "the last claims of this process got no answer, so this one was not sent";
            let error = StoreError::unanswered("claim", &request.key, "the table", why);
            return Err(Outcome::store_unavailable(error));
        }
        self.health.earn_repetitions();
        let meter = context.meter.clone();
        let effort = Effort::claim(deadline, &self.health, context);
        let send = || self.records.store.claim(request, effort.context());
        let answered = match repeat(&effort, "claim", &request.key, send).await {
            Ok(answered) => answered,
            Err(given_up) => {
                return Err(self.not_claimed(given_up, request, deadline, &meter).await);
            }
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
            meter,
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
        meter: &Meter,
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
            self.abandon(request, deadline, meter).await;
        }
        Outcome::store_unavailable(error)
    }

    /// Ends the lease of a claim that got no answer and may have been applied.
    ///
    /// The record is not deleted. The claim may have been a takeover, and the next attempt must be
    /// informed of the earlier attempt. Where the claim opened the attempt itself, the record says
    /// that nothing was started, so that the next claim is no suspect. One request, or two after a
    /// takeover.
    async fn abandon(&self, request: &ClaimRequest, deadline: Deadline, meter: &Meter) {
        let (fence, now) = (request.fence(), self.records.now().max(request.now));
        let end = deadline.end().min(Instant::now() + MAX_BRIEF);
        let context = RequestContext::until(end, meter);
        let not_started = Some(AttemptEnd::NotStarted);
        for (fence, last_end) in [
            (fence.clone().with_first_claim(request.now), not_started),
            (fence.clone(), None),
        ] {
            let settlement = Settlement::EndLease { last_end };
            let settled = (self.records.store).settle(&fence, &settlement, now, &context);
            // If this settlement fails, the claim stays until its lease expires.
            match meter.timed(timeout_at(end, settled)).await {
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

//! Runs an operation in the claim mode: claim -> handler -> complete | fail | end the lease | restore.

use std::{
    pin::pin,
    sync::{Arc, atomic::AtomicBool},
};

use super::{
    Mode, Once, Operation, Outcome,
    held::HeldClaim,
    repeat::{Answered, Effort, GivenUp, MAX_BRIEF, repeat},
    turns::OperationGate,
    work::guard,
};
use crate::{
    deadline::Deadline,
    flawed::flawed,
    handler::{Attempt, ClaimModeOutput, Failure, HandlerOutput, History, LookUpStage, Reconciled},
    meter::Meter,
    protocol::{
        ClaimRequest, FailedClaim, PriorState, Settlement, Timestamp,
        decision::{failed_claim, may_have_effect, may_settle},
        isolation::{Standing, has_last_look_up, standing},
        record::takeover_after,
    },
    store::{ClaimResponse, RequestContext, Results, SettleResponse, Store, StoreError},
    system::{self, timeout_at},
};

impl<S: Store> Once<S> {
    /// Runs one operation: see [`Mode::run`].
    ///
    /// Dropping the returned future is like a crash: the claim stays until its lease expires, and the next
    /// attempt sees this one as the prior attempt.
    pub async fn run<W, F, A>(&self, operation: Operation, work: W) -> Outcome
    where
        Self: Mode<A>,
        W: FnOnce(Attempt) -> F + Send,
        F: Future<Output = Result<A, Failure>> + Send,
        A: HandlerOutput,
    {
        Mode::run(self, operation, work).await
    }

    /// Claims the operation and runs `work`. If `work` does not succeed, settles the claim and returns the
    /// outcome.
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
            quarantine,
            gate,
            meter,
        } = operation;
        if !deadline.may_start() {
            return Err(Outcome::NotStarted);
        }
        let gate = gate.map(|OperationGate(gate)| gate);
        let lease_until = if flawed!("a lease ends at once") {
            self.records.now()
        } else {
            deadline.invocation_end() + self.lease_margin
        };
        let takeover_after = takeover_after(self.lease_margin, quarantine);
        let message_id = delivery.message_id();
        let request =
            (self.records).request(&key, fingerprint, message_id, lease_until, takeover_after);
        let context = RequestContext::until(deadline.handler_cutoff(), &meter)
            .expecting_record(delivery.facts().receive_count > 1);
        let mut claim = self.claim(&request, deadline, context).await?;
        // A claim takes time, and Lambda may have frozen the process until the lease was over. We do not use
        // up the lease margin here: a worker whose clock is ahead sees the lease expire earlier.
        if !deadline.may_start() || claim.has_ended() {
            return Err(claim.restore(Outcome::NotStarted).await);
        }
        let standing = standing(&claim.claimed, &self.crash_waits);
        let looks_up = quarantine.is_some() && may_have_effect(&claim.claimed);
        let exclusive_attempts = match standing {
            Standing::Clear => None,
            Standing::Suspect { exclusive_attempts } => Some(exclusive_attempts),
            Standing::Crashed { exclusive_attempts }
                if looks_up && has_last_look_up(exclusive_attempts, &self.crash_waits) =>
            {
                Some(exclusive_attempts)
            }
            Standing::Crashed { .. } => return Err(claim.crashed().await),
        };
        if let Some(exclusive_attempts) = exclusive_attempts {
            tracing::warn!(
                %key,
                exclusive_attempts,
                "an earlier attempt has no recorded end: the handler runs alone"
            );
            let isolation = (gate.as_deref(), &self.turns, &self.crash_waits);
            claim = claim.alone(exclusive_attempts, isolation).await?;
        } else if gate.is_none() {
            claim = claim.beside_others(&self.turns).await?;
        }
        claim.began = true;
        let history = History::from(&claim.claimed);
        let mut attempt = Attempt::new(key, delivery, history, deadline);
        if quarantine.is_some() {
            let stage = Arc::new(LookUpStage {
                is_wanted: looks_up,
                is_running: AtomicBool::new(false),
                is_last: matches!(standing, Standing::Crashed { .. }),
            });
            claim.look_up = Some(Arc::clone(&stage));
            attempt = attempt.with_extension(stage);
        }
        if gate.is_none() {
            attempt.log_history();
        }
        let answer = {
            // The handler is dropped before the settlement, so that it cannot run on afterwards.
            let work = pin!(guard(deadline, work(attempt)));
            claim.while_held(work).await
        };
        match answer {
            Ok(answer) => Ok((claim, answer)),
            Err(end) => Err(claim.end_without_output(end).await),
        }
    }

    async fn claim(
        &self,
        request: &ClaimRequest,
        deadline: Deadline,
        context: RequestContext,
    ) -> Result<HeldClaim<'_, S>, Outcome> {
        if self.health.has_given_up(deadline) {
            let why = "the last claims of this process got no answer, so this one was not sent";
            let error = StoreError::unanswered("claim", &request.key, "the table", why);
            return Err(Outcome::store_unavailable(error));
        }
        let meter = context.meter.clone();
        let effort = Effort::claim(deadline, context);
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
            ClaimResponse::Applied { replaced } => (PriorState::over(replaced), copies_unanswered),
            ClaimResponse::ConditionFailed(record) => match failed_claim(record, request) {
                // One of the copies without a response is the one that DynamoDB applied.
                FailedClaim::Held(claimed) => (claimed, copies_unanswered.saturating_sub(1)),
                FailedClaim::Rejected(rejection) => return Err(rejection.into()),
            },
        };
        Ok(HeldClaim {
            records: &self.records,
            fence: request.fence(),
            claimed_at: request.now,
            claim_lease: request.lease_until,
            lease_until: request.lease_until,
            takeover_after: request.takeover_after,
            is_copy_on_its_way: copies_on_their_way > 0,
            message_id: request.message_id.clone(),
            claimed,
            deadline,
            meter,
            began: false,
            look_up: None,
            ran_alone: false,
            turn: None,
        })
    }

    /// Undoes a claim that may have been applied, as far as we know.
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
        if error.is_unanswered() {
            self.health.unanswered(deadline);
        } else {
            self.health.answered();
        }
        if may_have_been_applied {
            self.abandon(request, deadline, meter).await;
        }
        Outcome::store_unavailable(error)
    }

    /// Ends the lease of a claim that got no response and may have been applied ([`Settlement::abandon`]).
    /// This costs one request, or two after a takeover.
    async fn abandon(&self, request: &ClaimRequest, deadline: Deadline, meter: &Meter) {
        let now = self.records.now().max(request.now);
        let end = deadline.write_until().min(system::instant() + MAX_BRIEF);
        let context = RequestContext::until(end, meter);
        for (fence, settlement) in Settlement::abandon(request) {
            let settled = (self.records.store).settle(&fence, &settlement, now, &context);
            // If this settlement fails, the claim stays until its lease expires.
            match meter.timed(timeout_at(end, settled)).await {
                Ok(Ok(SettleResponse::ConditionFailed(Some(record))))
                    if may_settle(Some(&record), &request.fence()) => {}
                _ => return,
            }
        }
    }
}

impl<S> super::mode::sealed::Sealed for Once<S> {}

#[diagnostic::do_not_recommend]
impl<S: Store, A: ClaimModeOutput> Mode<A> for Once<S> {
    async fn run<W, F>(&self, operation: Operation, work: W) -> Outcome
    where
        W: FnOnce(Attempt) -> F + Send,
        F: Future<Output = Result<A, Failure>> + Send,
    {
        // The guard covers the creation of the future and the serialization of the output too, because both
        // run the application's code.
        let work = async |attempt| Ok(work(attempt).await?.recorded());
        match self.claim_and_run(operation, work).await {
            Ok((claim, Reconciled::Ran(output))) => claim.complete(output).await,
            Ok((claim, Reconciled::Found(output))) => claim.reconcile(output).await,
            Ok((claim, Reconciled::NotFound)) => claim.crashed().await,
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

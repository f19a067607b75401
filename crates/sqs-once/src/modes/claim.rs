//! [`Once`] as a [`Mode`]: claim -> handler -> complete | fail | end the lease | undo.

use serde::Serialize;

use super::{
    Mode, Once, Operation, Outcome,
    held::HeldClaim,
    mode::{Claimed, Suspect},
    repeat::{Answered, Effort, GivenUp, MAX_BRIEF, repeat},
    run::run_work,
    work::{HandlerEnd, guard_now},
};
use crate::{
    deadline::Deadline,
    flawed::flawed,
    handler::{Attempt, Failure, HandlerOutput, History, to_output},
    meter::Meter,
    protocol::{
        ClaimRequest, FailedClaim, PriorState, Settlement, Timestamp,
        decision::{failed_claim, may_settle},
        isolation::{Standing, has_last_look_up, standing},
        record::takeover_after,
    },
    store::{ClaimResponse, RequestContext, Results, SettleResponse, Store, StoreError},
    system::{self, timeout_at},
};

impl<S: Store> Once<S> {
    /// Runs one operation: claims it, runs `work`, and records its end.
    ///
    /// Does not run `work` if the operation is completed, has failed permanently, or is claimed by another
    /// worker. Cuts `work` off when [`Deadline::time_left`](crate::Deadline::time_left) is zero. Catches
    /// panics of `work`, except in a build with `panic = "abort"`.
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
        run_work(self, &self.turns, operation, work).await
    }

    /// Claims an operation, and decides how its handler runs.
    pub(super) async fn claimed(&self, operation: &Operation) -> Claimed<HeldClaim> {
        let Operation {
            key,
            fingerprint,
            delivery,
            deadline,
            quarantine,
            ..
        } = operation;
        if !deadline.may_start() {
            return Claimed::Ended(Outcome::NotStarted);
        }
        let lease_until = if flawed!("a lease ends at once") {
            self.records.now()
        } else {
            deadline.invocation_end() + self.lease_margin
        };
        let request = self.records.request(
            key,
            fingerprint.clone(),
            delivery.message_id(),
            lease_until,
            takeover_after(self.lease_margin, *quarantine),
        );
        let claim = match self.send_claim(&request, operation).await {
            Ok(claim) => claim,
            Err(outcome) => return Claimed::Ended(outcome),
        };
        if !deadline.may_begin(self.records.now()) {
            let outcome = Outcome::NotStarted;
            return Claimed::Ended(self.undo(operation, &claim, false, outcome).await);
        }
        let history = History::from(&claim.claimed);
        let (exclusive_attempts, runs_handler) = match standing(&claim.claimed, &self.crash_waits) {
            Standing::Clear => return Claimed::Run(claim, history),
            Standing::Suspect { exclusive_attempts } => (exclusive_attempts, true),
            Standing::Crashed { exclusive_attempts }
                if quarantine.is_some()
                    && history.may_have_effect()
                    && has_last_look_up(exclusive_attempts, &self.crash_waits) =>
            {
                (exclusive_attempts, false)
            }
            Standing::Crashed { .. } => {
                return Claimed::Ended(self.crashed(operation, &claim, false).await);
            }
        };
        tracing::warn!(
            %key,
            exclusive_attempts,
            "an earlier attempt has no recorded end: the handler runs alone"
        );
        let suspect = Suspect {
            history,
            exclusive_attempts,
            runs_handler,
        };
        Claimed::Suspect(claim, suspect)
    }

    /// Returns the output to complete the operation with. Settles the claim if there is none.
    pub(super) async fn output<O>(
        &self,
        operation: &Operation,
        claim: &HeldClaim,
        end: HandlerEnd<O>,
    ) -> Result<O, Outcome> {
        Err(match end {
            HandlerEnd::Returned(output) | HandlerEnd::Found(output) => return Ok(output),
            HandlerEnd::NotFound => self.crashed(operation, claim, true).await,
            HandlerEnd::NoOutput(end) => self.end_without_output(operation, claim, end).await,
            HandlerEnd::NotStarted(outcome) => self.undo(operation, claim, false, outcome).await,
        })
    }

    async fn send_claim(
        &self,
        request: &ClaimRequest,
        operation: &Operation,
    ) -> Result<HeldClaim, Outcome> {
        let (deadline, meter) = (operation.deadline, &operation.meter);
        if self.health.has_given_up(deadline) {
            let why = "the last claims of this process got no answer, so this one was not sent";
            let error = StoreError::unanswered("claim", &request.key, "the table", why);
            return Err(Outcome::store_unavailable(error));
        }
        let context = RequestContext::until(deadline.handler_cutoff(), meter)
            .expecting_record(operation.delivery.facts().receive_count > 1);
        let effort = Effort::claim(deadline, context);
        let send = || self.records.store.claim(request, effort.context());
        let answered = match repeat(&effort, "claim", &request.key, send).await {
            Ok(answered) => answered,
            Err(given_up) => {
                return Err(self.not_claimed(given_up, request, deadline, meter).await);
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
            fence: request.fence(),
            claimed_at: request.now,
            claim_lease: request.lease_until,
            lease_until: request.lease_until,
            takeover_after: request.takeover_after,
            is_copy_on_its_way: copies_on_their_way > 0,
            claimed,
            ran_alone: false,
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
impl<S: Store, O: Serialize + Send> Mode<O> for Once<S> {
    type Claim = HeldClaim;

    async fn claim(&self, operation: &Operation) -> Claimed<HeldClaim> {
        self.claimed(operation).await
    }

    async fn alone(&self, operation: &Operation, claim: HeldClaim) -> Result<HeldClaim, Outcome> {
        self.count_alone(operation, claim).await
    }

    async fn finish(&self, operation: &Operation, claim: HeldClaim, end: HandlerEnd<O>) -> Outcome {
        let is_found = matches!(end, HandlerEnd::Found(_));
        let output = match self.output(operation, &claim, end).await {
            Ok(output) => output,
            Err(outcome) => return outcome,
        };
        // The application's code serializes the output, and may panic.
        let outcome = match guard_now(move || Ok(to_output(&output))) {
            Ok(output) => self.complete(operation, &claim, output).await,
            Err(end) => self.end_without_output(operation, &claim, end).await,
        };
        outcome.found(is_found)
    }

    fn now(&self) -> Timestamp {
        self.records.now()
    }

    fn results(&self) -> Results {
        self.records.results.clone()
    }
}

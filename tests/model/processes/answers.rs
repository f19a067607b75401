//! The steps of a worker after an answer, or without one.

use std::sync::Arc;

use sqs_once::{
    internal::Standing,
    protocol::{
        FailedClaim, FailedSettlement, FencingToken, PreviousRecord, PriorState, Rejection,
        Settlement, State as Status,
        decision::{failed_settlement, may_settle},
    },
    store::{ClaimResponse, SettleResponse},
};

use crate::processes::{
    promises::Promise,
    state::{End, Process, Reason, Receive, Request, Step, Task, second},
    step::Next,
    table::Response,
};

impl Next<'_> {
    pub fn at(&mut self, receive: Receive) -> Option<(usize, &mut Task)> {
        let (process, place) = self.state.find(receive)?;
        Some((process, &mut self.state.processes[process].tasks[place]))
    }

    pub fn process(&self, receive: Receive) -> Option<(&Process, u64)> {
        let (process, _) = self.state.find(receive)?;
        Some((&self.state.processes[process], self.state.clock(process)))
    }

    pub fn goes_to(&mut self, receive: Receive, step: Step) {
        if let Some((_, task)) = self.at(receive) {
            task.step = step;
        }
    }

    fn ends(&mut self, receive: Receive, end: End) {
        let facts = &self.state.operations[self.state.operation(receive)].facts;
        let too_early = end == End::Done && facts.completed.is_none();
        self.state
            .break_if(too_early, Promise::AcknowledgedAfterRecord);
        self.goes_to(receive, Step::Ended(end));
    }

    fn returns(&mut self, receive: Receive) {
        let at = self.state.now + 1;
        self.ends(receive, End::Returns(at));
    }

    // ---- answers

    /// The worker of a message gets the answer to its last request.
    pub fn is_answered(&mut self, receive: Receive, request: &Request, response: Response) {
        match (response, request) {
            (Response::Claim(response), _) => self.claim_answered(receive, response),
            (
                Response::Settle(response),
                Request::Settle {
                    fence, settlement, ..
                },
            ) => {
                self.settlement_answered(receive, (fence, settlement), response);
            }
            (Response::Settle(_), Request::Claim(_)) => {}
        }
    }

    fn claim_answered(&mut self, receive: Receive, response: ClaimResponse) {
        let rules = self.world.rules;
        let Some((process, task)) = self.at(receive) else {
            return;
        };
        let copies = task.copies;
        let is_mine = matches!(&response, ClaimResponse::ConditionFailed(record)
            if record.owner == Some(receive.owner()));
        let rejection = match response {
            ClaimResponse::Applied { replaced } => {
                let prior = rules.over(replaced);
                return self.holds(receive, Arc::new(prior));
            }
            ClaimResponse::ConditionFailed(record) => {
                match rules.failed_claim(record, &task.claim) {
                    Some(FailedClaim::Held(prior)) => {
                        // The table applied one of the copies without an answer.
                        task.copies = task.copies.saturating_sub(1);
                        return self.holds(receive, Arc::new(prior));
                    }
                    Some(FailedClaim::Rejected(rejection)) => rejection,
                    None => return self.returns(receive),
                }
            }
        };
        let (now, clock) = (self.state.now, self.state.clock(process));
        // One of them may have been applied, and another worker has taken over since then.
        self.state.messages[receive.message].may_be_suspect |= copies > 0 && !is_mine;
        let facts = &self.state.operations[self.state.operation(receive)].facts;
        let end = match rejection {
            Rejection::Duplicate(_) => End::Done,
            Rejection::FailedBefore(_) => {
                let failed = facts
                    .failed
                    .iter()
                    .rfind(|(message, _)| *message == receive.message);
                failed.map_or(End::Returns(now + 1), |(_, reason)| End::Failed(*reason))
            }
            // Hidden until the other lease has ended, by this worker's clock.
            Rejection::Conflict { lease_until, .. } => {
                End::Returns(now + 1 + second(lease_until).saturating_sub(clock))
            }
            _ => End::Returns(now + 1),
        };
        self.ends(receive, end);
    }

    /// The worker holds a claim over this history.
    fn holds(&mut self, receive: Receive, prior: Arc<PriorState>) {
        let Some((process, clock)) = self.process(receive) else {
            return;
        };
        let is_late = clock > process.deadline;
        let standing = self.world.rules.standing(&prior, &self.world.crash_waits());
        let known = prior.before != PreviousRecord::Unknown;
        // A failed record does not tell how its earlier attempts ended.
        let in_progress = matches!(&prior.before, PreviousRecord::Record(before)
            if matches!(before.state, Status::InProgress { .. }));
        let groundless =
            in_progress && standing != Standing::Clear && !self.state.has_cause(receive);
        self.state.break_if(groundless, Promise::IsolatedWithCause);
        // The record may lose the last end with this claim.
        self.state.messages[receive.message].may_be_suspect |= !known;
        match standing {
            _ if is_late => self.undoes(receive, &prior),
            Standing::Clear => self.goes_to(receive, Step::Holds(prior)),
            Standing::Suspect { exclusive_attempts } => {
                self.goes_to(receive, Step::Suspect(prior, exclusive_attempts));
            }
            Standing::Crashed { exclusive_attempts } => {
                let (rules, waits) = (self.world.rules, self.world.crash_waits());
                let facts = &self.state.operations[self.state.operation(receive)].facts;
                let too_early = facts.alone.len() < self.world.limit();
                let could_be_found = self.world.quarantine.is_some()
                    && facts.alone.len() == self.world.limit()
                    && !facts.effects.is_empty();
                self.state.break_if(too_early, Promise::CrashedAtLimit);
                if self.world.looks_up(&prior) && rules.has_last_look_up(exclusive_attempts, &waits)
                {
                    if let Some((_, task)) = self.at(receive) {
                        task.only_looks_up = true;
                    }
                    return self.goes_to(receive, Step::Suspect(prior, exclusive_attempts));
                }
                self.state.break_if(could_be_found, Promise::EffectIsFound);
                self.fails(receive, Reason::Crashed);
            }
        }
    }

    fn settlement_answered(
        &mut self,
        receive: Receive,
        (fence, settlement): (&FencingToken, &Settlement),
        response: SettleResponse,
    ) {
        let Some((process, task)) = self.at(receive) else {
            return;
        };
        let step = task.step.clone();
        if let Step::Abandons(is_second) = step {
            let mine = task.claim.fence();
            let SettleResponse::ConditionFailed(record) = response else {
                return self.returns(receive);
            };
            // Either another worker took over meanwhile, or an earlier attempt is open, of which the record now
            // has no end.
            self.state.messages[receive.message].may_be_suspect = true;
            return if !is_second && may_settle(record.as_ref(), &mine) {
                self.abandons(receive, true);
            } else {
                self.returns(receive);
            };
        }
        let is_applied = match response {
            SettleResponse::Applied => true,
            SettleResponse::ConditionFailed(record) => {
                failed_settlement(record.as_ref(), fence, settlement)
                    == FailedSettlement::AlreadySettled
            }
        };
        let is_late = self.state.clock(process) > self.state.processes[process].deadline;
        match step {
            // The lease was lost, and the end is not recorded.
            _ if !is_applied => {
                self.state.messages[receive.message].may_be_suspect = true;
                self.returns(receive);
            }
            Step::Counts(prior) if is_late => self.undoes(receive, &prior),
            Step::Counts(prior) => self.begins(receive, prior),
            Step::Settles(end) => self.ends(receive, end),
            _ => {}
        }
    }

    /// The worker waits no longer for an answer.
    pub fn gives_up(&mut self, receive: Receive) {
        let Some((_, task)) = self.at(receive) else {
            return;
        };
        match task.step.clone() {
            Step::Claims => self.abandons(receive, false),
            Step::Counts(prior) if self.world.rules.starts_unconfirmed() => {
                self.begins(receive, prior);
            }
            Step::Counts(prior) => self.undoes(receive, &prior),
            _ => {
                // An end may not be recorded.
                self.state.messages[receive.message].may_be_suspect = true;
                self.returns(receive);
            }
        }
    }
}

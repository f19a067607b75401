//! The steps of a worker when its turn comes, and when its handler ends.

use std::sync::Arc;

use sqs_once::protocol::{AttemptEnd, PriorState, Settlement};

use crate::processes::{
    action::{HandlerAnswer, LookUp},
    promises::Promise,
    state::{End, Reason, Receive, Step, time},
    step::Next,
    world::TIMEOUT,
};

impl Next<'_> {
    /// The handler of a message that holds its claim is to start.
    pub fn starts(&mut self, receive: Receive) {
        let Some((process, clock)) = self.process(receive) else {
            return;
        };
        let (waiting, deadline) = (process.waiting(), process.deadline);
        let rules = self.world.rules;
        let Some((_, task)) = self.at(receive) else {
            return;
        };
        match task.step.clone() {
            Step::Holds(prior) => {
                let time_left = deadline.saturating_sub(clock);
                let suspects_wait = !waiting.suspects.is_empty();
                let may_start = rules.may_start_beside(suspects_wait, time_left);
                if clock > deadline || !may_start {
                    task.began = true;
                    return self.undoes(receive, &prior);
                }
                let too_late = suspects_wait && 2 * time_left < TIMEOUT;
                self.state.break_if(too_late, Promise::HalfForSuspects);
                self.begins(receive, prior);
            }
            Step::Suspect(prior, _) if clock > deadline => self.undoes(receive, &prior),
            Step::Suspect(prior, count) => {
                let fewest = waiting.suspects.iter().map(|(count, _)| *count).min();
                self.state
                    .break_if(fewest < Some(count), Promise::FewestDeathsFirst);
                self.counts(receive, prior, count + 1);
            }
            _ => {}
        }
    }

    /// Counts an attempt alone, and takes the lease of its rest.
    fn counts(&mut self, receive: Receive, prior: Arc<PriorState>, attempt: u64) {
        let (world, rules) = (self.world, self.world.rules);
        self.state.begins_alone(receive, |deaths| {
            let place = deaths.checked_sub(1)?;
            world.waits.get(place).copied()
        });
        let Some((process, task)) = self.at(receive) else {
            return;
        };
        task.alone = true;
        task.step = Step::Counts(prior);
        let claim = Arc::clone(&task.claim);
        let now = time(self.state.clock(process));
        let usual = claim.lease_until;
        let lease_until = rules.lease_alone(attempt, &world.crash_waits(), now, usual);
        let renewal = Settlement::Renew {
            lease_until,
            expires_at: rules.expires_at(
                now,
                world.retention,
                lease_until + world.takeover_after(),
            ),
            exclusive_attempts: attempt,
        };
        let fence = claim.fence().with_lease(claim.lease_until);
        self.sends_settlement(receive, fence, renewal, None);
    }

    /// The turn of a message has come: it looks up what earlier attempts did, or its handler begins.
    pub fn begins(&mut self, receive: Receive, prior: Arc<PriorState>) {
        if self.world.looks_up(&prior) {
            self.goes_to(receive, Step::LooksUp(prior));
        } else {
            self.runs(receive, prior);
        }
    }

    pub fn looks_up(&mut self, receive: Receive, answer: LookUp) {
        let Some((_, task)) = self.at(receive) else {
            return;
        };
        let Step::LooksUp(prior) = task.step.clone() else {
            return;
        };
        let only_looks_up = task.only_looks_up;
        match answer {
            LookUp::Found => self.completes(receive),
            LookUp::NotFound if only_looks_up => self.fails(receive, Reason::Crashed),
            LookUp::NotFound => self.runs(receive, prior),
            LookUp::Unknown => {
                self.state.left.failures = self.state.left.failures.saturating_sub(1);
                if self.world.rules.runs_after_unknown() {
                    self.runs(receive, prior);
                } else {
                    self.undoes(receive, &prior);
                }
            }
        }
    }

    /// The handler has ended before its lease. So the quarantine begins now, and its effect happens before that
    /// ends, or never.
    fn quarantine_begins(&mut self, receive: Receive) {
        let Some((_, clock)) = self.process(receive) else {
            return;
        };
        let ends = clock + self.world.quarantine.unwrap_or_default();
        let operation = self.state.operation(receive);
        for (of, until) in &mut self.state.operations[operation].facts.on_the_way {
            if *of == receive {
                *until = ends.min(*until);
            }
        }
    }

    /// The handler sends its effect, which happens before its lease and the quarantine have ended, or never.
    pub fn sends_effect(&mut self, receive: Receive, happens: bool) {
        let operation = self.state.operation(receive);
        let lease_until = self.state.lease_of(operation);
        let until = lease_until + self.world.quarantine.unwrap_or_default();
        if happens {
            let facts = &mut self.state.operations[operation].facts;
            facts.on_the_way.push((receive, until));
        } else {
            self.state.left.failures -= 1;
        }
        if let Some((_, task)) = self.at(receive) {
            task.sent = true;
        }
    }

    /// The handler begins.
    pub fn runs(&mut self, receive: Receive, prior: Arc<PriorState>) {
        let is_suspect = self.state.begins(receive, !prior.is_first_open());
        if let Some((_, task)) = self.at(receive) {
            task.began = true;
            task.step = Step::Runs(prior, is_suspect);
        }
    }

    pub fn handler_ends(&mut self, receive: Receive, answer: HandlerAnswer) {
        let Some((_, task)) = self.at(receive) else {
            return;
        };
        let Step::Runs(prior, _) = task.step.clone() else {
            return;
        };
        self.tells_circuit(receive, answer);
        self.quarantine_begins(receive);
        if matches!(answer, HandlerAnswer::Retryable | HandlerAnswer::NoEffect) {
            self.state.left.failures -= 1;
        }
        let last_end = match answer {
            HandlerAnswer::Success => {
                let operation = self.state.operation(receive);
                let is_final = self.state.operations[operation].facts.completed.is_some();
                self.state.break_if(is_final, Promise::RecordedEndIsFinal);
                return self.completes(receive);
            }
            HandlerAnswer::Permanent => return self.fails(receive, Reason::Declined),
            HandlerAnswer::NoEffect => return self.undoes(receive, &prior),
            HandlerAnswer::Retryable => AttemptEnd::Retryable,
            HandlerAnswer::CutOff => AttemptEnd::Deadline,
        };
        let release = Settlement::Release {
            last_end: Some(last_end),
        };
        let end = End::Returns(self.state.now + 1);
        self.settles(receive, release, end, None);
    }
}

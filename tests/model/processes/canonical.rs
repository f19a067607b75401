//! The hash of a [`State`]. Two states with the same hash have the same future, so Stateright visits one of them.
//!
//! The rules compare times and look at nothing else of them. So a time is hashed as its distance from now, and
//! all times before the oldest claim that somebody may still act for are the same. The hash leaves out what no
//! rule reads: the time of a record's last change, texts of errors, and the exact number of attempts above one.

use std::hash::{Hash, Hasher};

use sqs_once::protocol::{
    ClaimRequest, PreviousRecord, PriorState, Record, Settlement, State as Status, Timestamp,
};

use crate::processes::state::{InFlight, Operation, Process, Request, State, Step, Task, time};

/// Times that are farther away, in milliseconds, are the same.
const FAR: u128 = 1_000_000;

struct Canonical<'a, H> {
    hasher: &'a mut H,
    second: u64,
    now: Timestamp,
    /// All times until then are the same.
    before: Timestamp,
}

impl Hash for State {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        let claims = self
            .processes
            .iter()
            .flat_map(|process| process.tasks.iter());
        let claimed = claims.map(|task| task.claim.now);
        let requested = self.network.iter().map(|request| match &*request.request {
            Request::Claim(claim) => claim.now,
            Request::Settle { now, .. } => *now,
        });
        let now = time(self.now);
        let oldest = claimed.chain(requested).min().unwrap_or(now).min(now);
        let mut canonical = Canonical {
            hasher,
            second: self.now,
            now,
            before: Timestamp::from_millis(oldest.as_millis() - 1),
        };
        canonical.state(self);
    }
}

impl<H: Hasher> Canonical<'_, H> {
    fn state(&mut self, state: &State) {
        for message in &state.messages {
            (message.kind, message.receives, message.fate).hash(self.hasher);
            message.may_be_suspect.hash(self.hasher);
            // A message that is visible now is so later.
            message
                .visible_at
                .saturating_sub(self.second)
                .hash(self.hasher);
        }
        for operation in &state.operations {
            self.operation(operation);
        }
        state.processes.len().hash(self.hasher);
        for process in &state.processes {
            self.process(process);
        }
        state.network.len().hash(self.hasher);
        for request in &state.network {
            self.in_flight(request);
        }
        (state.left, state.broken.map(|broken| broken as u8)).hash(self.hasher);
    }

    /// Milliseconds from now.
    fn time(&mut self, at: Timestamp) {
        let at = at.max(self.before);
        let ahead = FAR + self.now.until(at).as_millis();
        let distance = ahead.saturating_sub(at.until(self.now).as_millis());
        distance.min(2 * FAR).hash(self.hasher);
    }

    fn operation(&mut self, operation: &Operation) {
        let facts = &operation.facts;
        (facts.completed, &facts.failed, &facts.unended).hash(self.hasher);
        (&facts.alone, facts.kills_alone).hash(self.hasher);
        let age = facts
            .alone_since
            .map(|since| self.second.saturating_sub(since));
        age.map(|age| age.min(24)).hash(self.hasher);
        (&facts.ended, &facts.effects).hash(self.hasher);
        for (receive, until) in &facts.on_the_way {
            (receive, until.saturating_sub(self.second)).hash(self.hasher);
        }
        operation.record.is_some().hash(self.hasher);
        if let Some(record) = &operation.record {
            self.record(record);
        }
    }

    fn record(&mut self, record: &Record) {
        match &record.state {
            Status::InProgress { lease_until } => self.time(*lease_until),
            Status::Completed { result } => format!("{result:?}").hash(self.hasher),
            Status::Failed => 0.hash(self.hasher),
        }
        record.state.name().hash(self.hasher);
        record.owner.hash(self.hasher);
        self.time(Timestamp::from_millis(record.expires_at * 1000));
        (
            &record.message_id,
            record.last_end,
            record.exclusive_attempts,
        )
            .hash(self.hasher);
        record.attempts.min(2).hash(self.hasher);
        record.first_claimed_at.is_some().hash(self.hasher);
        if let Some(at) = record.first_claimed_at {
            self.time(at);
        }
        if record.attempts < 2
            && let Some(at) = record.created_at
        {
            self.time(at);
        }
        (record.error.is_some(), &record.failed_message_ids).hash(self.hasher);
    }

    fn process(&mut self, process: &Process) {
        process.ahead.hash(self.hasher);
        if !process.is_idle() {
            self.time(time(process.deadline));
        }
        process.circuit.is_some().hash(self.hasher);
        if let Some(circuit) = &process.circuit {
            self.circuit(circuit, process.open_until);
        }
        process.tasks.len().hash(self.hasher);
        for task in &process.tasks {
            self.task(task);
        }
    }

    /// A closed circuit has no time, and the others know the end of their wait and its length.
    fn circuit(&mut self, circuit: &impl Hash, open_until: Option<u64>) {
        circuit.hash(self.hasher);
        open_until
            .map(|until| until.saturating_sub(self.second))
            .hash(self.hasher);
    }

    fn task(&mut self, task: &Task) {
        (task.receive, task.copies, task.began, task.alone).hash(self.hasher);
        (task.only_looks_up, task.sent).hash(self.hasher);
        if !matches!(task.step, Step::Ended(_)) {
            self.claim(&task.claim);
        }
        std::mem::discriminant(&task.step).hash(self.hasher);
        match &task.step {
            Step::Waits | Step::Claims => {}
            Step::Holds(prior) | Step::Counts(prior) | Step::LooksUp(prior) => self.prior(prior),
            Step::Suspect(prior, count) => {
                self.prior(prior);
                count.hash(self.hasher);
            }
            Step::Runs(prior, is_suspect) => {
                self.prior(prior);
                is_suspect.hash(self.hasher);
            }
            Step::Settles(end) | Step::Ended(end) => self.end(*end),
            Step::Abandons(is_second) => is_second.hash(self.hasher),
        }
    }

    fn end(&mut self, end: crate::processes::state::End) {
        use crate::processes::state::End;
        match end {
            End::Done => 0.hash(self.hasher),
            End::Failed(reason) => (1, reason).hash(self.hasher),
            End::Returns(at) => (2, at.saturating_sub(self.second)).hash(self.hasher),
        }
    }

    fn claim(&mut self, claim: &ClaimRequest) {
        self.time(claim.now);
        self.time(claim.lease_until);
        self.time(Timestamp::from_millis(claim.expires_at * 1000));
    }

    fn prior(&mut self, prior: &PriorState) {
        prior.open_since.is_some().hash(self.hasher);
        if let Some(since) = prior.open_since {
            self.time(since);
        }
        (prior.last_end, prior.attempts > 0, prior.exclusive_attempts).hash(self.hasher);
        match &prior.before {
            PreviousRecord::Nothing => 0.hash(self.hasher),
            PreviousRecord::Unknown => 1.hash(self.hasher),
            PreviousRecord::Record(before) => {
                (before.state.name(), &before.message_id).hash(self.hasher);
                self.time(Timestamp::from_millis(before.expires_at * 1000));
            }
        }
    }

    fn in_flight(&mut self, in_flight: &InFlight) {
        (in_flight.receive, in_flight.awaited, in_flight.is_copy).hash(self.hasher);
        match &*in_flight.request {
            Request::Claim(claim) => self.claim(claim),
            Request::Settle {
                fence,
                settlement,
                now,
                attempt,
            } => {
                self.time(*now);
                attempt.hash(self.hasher);
                for at in [fence.lease_until, fence.first_claimed_at] {
                    at.is_some().hash(self.hasher);
                    if let Some(at) = at {
                        self.time(at);
                    }
                }
                self.settlement(settlement);
            }
        }
    }

    fn settlement(&mut self, settlement: &Settlement) {
        settlement.name().hash(self.hasher);
        match settlement {
            Settlement::Complete { expires_at, .. } => {
                self.time(Timestamp::from_millis(expires_at * 1000));
            }
            Settlement::Fail {
                first_open,
                expires_at,
                ..
            } => {
                first_open.hash(self.hasher);
                self.time(Timestamp::from_millis(expires_at * 1000));
            }
            Settlement::Release { last_end } => last_end.hash(self.hasher),
            Settlement::Restore(claimed) => self.prior(claimed),
            Settlement::Renew {
                lease_until,
                expires_at,
                exclusive_attempts,
            } => {
                self.time(*lease_until);
                self.time(Timestamp::from_millis(expires_at * 1000));
                exclusive_attempts.hash(self.hasher);
            }
        }
    }
}

//! Which [`Action`]s are possible in a state.

use sqs_once::protocol::{State as Status, Timestamp};

use crate::processes::{
    action::{Action, HandlerAnswer, LookUp, Lot},
    state::{Fate, Kind, Message, Process, Receive, State, Step, Task, second, time},
    world::{LONG, MARGIN, World},
};
use crate::waiting::Waiting;

impl World {
    pub fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.broken.is_some() || self.broken_by_itself(state) {
            return;
        }
        self.arrivals(state, actions);
        for operation in 0..state.operations.len() {
            if state.left.deletions > 0 && state.is_expired(operation) {
                actions.push(Action::Deletes(operation));
            }
        }
        self.effects(state, actions);
        let others = actions.len();
        for number in 0..state.processes.len() {
            self.steps(state, number, actions);
        }
        let at_work = state.processes.iter().any(|process| !process.is_idle());
        let waits = state.network.iter().any(|request| request.awaited);
        let operations = &state.operations;
        let comes = operations
            .iter()
            .any(|operation| !operation.facts.on_the_way.is_empty());
        let is_stuck = !waits && !comes && actions.len() == others;
        if at_work && state.left.crashes > 0 {
            for (number, process) in state.processes.iter().enumerate() {
                let late = state.may_be_late(process).into_iter();
                actions.extend(late.map(|late| Action::Crashes(number, late)));
            }
        }
        self.batches(state, actions);
        if !at_work {
            let next = state.next_visible(self).filter(|at| *at <= state.latest());
            actions.extend(next.map(Action::Until));
        } else if is_stuck {
            actions.extend(self.instants(state).into_iter().min().map(Action::Until));
        } else if state.left.freezes > 0 {
            actions.extend(self.instants(state).into_iter().map(Action::Until));
        }
        assert!(
            self.is_last(state) || !actions.is_empty(),
            "nothing can happen: {state:?}"
        );
    }

    /// True if nothing can happen but the arrival of late requests and the deletion of records.
    pub fn is_last(&self, state: &State) -> bool {
        let over =
            |message: &Message| message.fate != Fate::InQueue || message.receives >= self.receives;
        state.processes.iter().all(Process::is_idle) && state.messages.iter().all(over)
    }

    fn broken_by_itself(&self, state: &State) -> bool {
        self.broken_now(state).is_some()
    }

    fn arrivals(&self, state: &State, actions: &mut Vec<Action>) {
        for (number, request) in state.network.iter().enumerate() {
            let (of, what) = (request.receive, request.request.name());
            for stays in [false, true] {
                if !stays || state.left.copies > 0 {
                    actions.push(Action::Arrives {
                        number,
                        of,
                        what,
                        stays,
                    });
                }
            }
            if request.awaited && state.left.losses > 0 {
                for lot in [Lot::Lost, Lot::Late, Lot::Arrived] {
                    for again in [false, true] {
                        actions.push(Action::NoAnswer { of, lot, again });
                    }
                }
            }
        }
    }

    /// Steps of a process and its workers.
    fn steps(&self, state: &State, number: usize, actions: &mut Vec<Action>) {
        let process = &state.processes[number];
        if process.is_idle() {
            return;
        }
        let clock = state.clock(number);
        for (place, task) in process.tasks.iter().enumerate() {
            let receive = task.receive;
            match &task.step {
                Step::Waits => actions.push(Action::Ask(receive)),
                Step::Holds(_) => actions.push(Action::Starts(receive)),
                Step::Suspect(..) => {
                    let next = self.rules.next_suspect(&process.waiting());
                    if next == Some(place) || clock > process.deadline {
                        actions.push(Action::Starts(receive));
                    }
                }
                Step::LooksUp(_) => self.looks(state, number, receive, actions),
                Step::Runs(..) => self.handler_runs(state, number, task, actions),
                _ => {}
            }
        }
        let ended = |task: &Task| matches!(task.step, Step::Ended(_));
        if process.tasks.iter().all(ended) {
            actions.push(Action::Answers(number));
        }
    }

    fn looks(&self, state: &State, number: usize, of: Receive, actions: &mut Vec<Action>) {
        if state.clock(number) > state.processes[number].deadline {
            actions.push(Action::LooksUp(of, LookUp::Unknown));
            return;
        }
        let effects = &state.operations[state.operation(of)].facts.effects;
        let answer = if effects.is_empty() {
            LookUp::NotFound
        } else {
            LookUp::Found
        };
        actions.push(Action::LooksUp(of, answer));
        if state.left.failures > 0 {
            actions.push(Action::LooksUp(of, LookUp::Unknown));
        }
        if state.messages[of.message].kind == Kind::Killer {
            state.kills(number, of, actions);
        }
    }

    fn handler_runs(&self, state: &State, number: usize, task: &Task, actions: &mut Vec<Action>) {
        use HandlerAnswer::{CutOff, NoEffect, Permanent, Retryable, Success};
        let (receive, kind) = (task.receive, state.messages[task.receive.message].kind);
        let in_time = state.clock(number) <= state.processes[number].deadline;
        let (has_effect, facts) = (
            self.quarantine.is_some() && kind != Kind::Declined,
            &state.operations[state.operation(receive)].facts,
        );
        if has_effect && !task.sent && in_time {
            actions.push(Action::Sends(receive, true));
            if state.left.failures > 0 {
                actions.push(Action::Sends(receive, false));
            }
        }
        if kind == Kind::Killer {
            state.kills(number, receive, actions);
            return;
        }
        if !in_time {
            // A frozen process thaws, and its handler is not polled again.
            actions.push(Action::Ends(receive, CutOff));
            return;
        }
        if kind == Kind::Declined {
            actions.push(Action::Ends(receive, Permanent));
        } else if !has_effect || facts.effects.contains(&receive) {
            actions.push(Action::Ends(receive, Success));
        }
        if state.left.failures > 0 {
            actions.push(Action::Ends(receive, Retryable));
            if !task.sent {
                actions.push(Action::Ends(receive, NoEffect));
            }
        }
    }

    /// Effects on the way happen.
    fn effects(&self, state: &State, actions: &mut Vec<Action>) {
        for (number, operation) in state.operations.iter().enumerate() {
            let on_the_way = 0..operation.facts.on_the_way.len();
            actions.extend(on_the_way.map(|place| Action::Happens(number, place)));
        }
    }

    /// A process receives any of the messages that SQS may deliver.
    fn batches(&self, state: &State, actions: &mut Vec<Action>) {
        let hidden = |message: usize| !state.is_visible(message, self);
        let may: Vec<usize> = (0..state.messages.len())
            .filter(|&message| {
                let more = state.messages[message].receives < self.receives;
                more && (!hidden(message) || state.left.repeats > 0)
            })
            .collect();
        let mut places: Vec<Option<usize>> = (0..state.processes.len())
            .filter(|&number| state.processes[number].is_idle())
            .map(Some)
            .collect();
        if state.processes.len() < self.processes {
            places.push(None);
        }
        for process in places {
            for subset in 1..1_u32 << may.len() {
                let chosen = may
                    .iter()
                    .enumerate()
                    .filter(|(place, _)| subset >> place & 1 == 1);
                let messages: Vec<usize> = chosen.map(|(_, message)| *message).collect();
                let repeats = messages.iter().filter(|message| hidden(**message)).count();
                if repeats > state.left.repeats.into() {
                    continue;
                }
                for ahead in 0..=if self.skew && process.is_none() {
                    MARGIN
                } else {
                    0
                } {
                    let messages = messages.clone();
                    actions.push(Action::Receive {
                        process,
                        messages,
                        ahead,
                    });
                }
            }
        }
    }

    /// The instants after now at which anything may become possible or impossible.
    fn instants(&self, state: &State) -> Vec<u64> {
        let mut instants = Vec::new();
        for operation in &state.operations {
            let Some(record) = &operation.record else {
                continue;
            };
            if let Status::InProgress { lease_until } = record.state {
                instants.push(second(lease_until) + 1);
                if self.quarantine.is_some() {
                    instants.push(second(lease_until + self.takeover_after()) + 1);
                }
            }
            if self.retention < LONG {
                let expires_at = Timestamp::from_millis(record.expires_at * 1000);
                instants.push(second(expires_at) + 1);
            }
        }
        for process in state.processes.iter().filter(|process| !process.is_idle()) {
            let deadline = process.deadline.saturating_sub(process.ahead);
            instants.extend([deadline, deadline + 1]);
            let open_until = process
                .open_until
                .map(|until| until.saturating_sub(process.ahead));
            instants.extend(open_until);
        }
        if self.skew {
            let earlier: Vec<u64> = instants
                .iter()
                .map(|at| at.saturating_sub(MARGIN))
                .collect();
            instants.extend(earlier);
        }
        let queued = state
            .messages
            .iter()
            .filter(|message| message.fate == Fate::InQueue);
        instants.extend(queued.map(|message| message.visible_at));
        instants.retain(|at| state.now < *at && *at <= state.latest());
        instants.sort_unstable();
        instants.dedup();
        instants
    }
}

impl State {
    /// An effect on the way happens until then, before more time passes.
    fn latest(&self) -> u64 {
        let operations = self.operations.iter();
        let effects = operations.flat_map(|operation| &operation.facts.on_the_way);
        effects.map(|(_, until)| *until).min().unwrap_or(u64::MAX)
    }

    /// SQS may deliver a message without delivering it twice.
    pub fn is_visible(&self, message: usize, world: &World) -> bool {
        let it = &self.messages[message];
        it.fate == Fate::InQueue && it.receives < world.receives && it.visible_at <= self.now
    }

    fn next_visible(&self, world: &World) -> Option<u64> {
        let queued = self
            .messages
            .iter()
            .filter(|message| message.fate == Fate::InQueue && message.receives < world.receives);
        let later = queued.map(|message| message.visible_at);
        later.filter(|at| *at > self.now).min()
    }

    pub fn is_expired(&self, operation: usize) -> bool {
        let record = self.operations[operation].record.as_deref();
        record.is_some_and(|record| record.is_expired(time(self.now)))
    }

    /// A killer ends its process.
    fn kills(&self, number: usize, killer: Receive, actions: &mut Vec<Action>) {
        let late = self.may_be_late(&self.processes[number]).into_iter();
        actions.extend(late.map(|late| Action::Kills(killer, late)));
    }

    /// When a process ends, each of its requests on the way is lost, or one of them is late.
    fn may_be_late(&self, process: &Process) -> Vec<Option<Receive>> {
        let mut late = vec![None];
        if self.left.late > 0 {
            let receives = process.tasks.iter().map(|task| task.receive);
            late.extend(receives.filter(|of| self.awaited(*of).is_some()).map(Some));
        }
        late
    }

    /// The request that a worker waits for.
    pub fn awaited(&self, receive: Receive) -> Option<usize> {
        let mut requests = self.network.iter();
        requests.position(|request| request.awaited && request.receive == receive)
    }
}

impl Process {
    /// The messages of the batch, as far as they decide which suspect starts next.
    pub fn waiting(&self) -> Waiting {
        let mut waiting = Waiting::default();
        for (place, task) in self.tasks.iter().enumerate() {
            match &task.step {
                Step::Suspect(_, count) => waiting.suspects.push((*count, place)),
                Step::Ended(_) => {}
                _ => waiting.active += 1,
            }
        }
        waiting
    }
}

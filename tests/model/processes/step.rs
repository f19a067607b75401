//! The next state after an [`Action`]: SQS, processes and time.

use std::sync::Arc;

use sqs_once::protocol::{AfterFailure, ClaimRequest, PreviousRecord};

use crate::processes::{
    action::{Action, Lot},
    promises::Promise,
    state::{
        End, Fate, InFlight, Process, Receive, Request, State, Step, Task, key, message_id, time,
    },
    world::{MARGIN, TIMEOUT, VISIBILITY, World},
};

/// A state that an action changes, by the rules of its world.
pub struct Next<'a> {
    pub world: &'a World,
    pub state: State,
}

impl World {
    pub fn next(&self, last: &State, action: Action) -> State {
        let state = last.clone();
        let mut next = Next { world: self, state };
        next.take(action);
        next.state.tidy();
        next.state
    }
}

impl Next<'_> {
    fn take(&mut self, action: Action) {
        match action {
            Action::Receive {
                process,
                messages,
                ahead,
            } => {
                self.receive(process, &messages, ahead);
            }
            Action::Ask(receive) => self.asks_circuit(receive),
            Action::Arrives { number, stays, .. } => self.arrives(number, stays),
            Action::NoAnswer { of, lot, again } => self.no_answer(of, lot, again),
            Action::Starts(receive) => self.starts(receive),
            Action::Ends(receive, answer) => self.handler_ends(receive, answer),
            Action::Kills(receive, late) => self.kills(receive, late),
            Action::Sends(receive, happens) => self.sends_effect(receive, happens),
            Action::Happens(operation, place) => self.effect_happens(operation, place),
            Action::LooksUp(receive, answer) => self.looks_up(receive, answer),
            Action::Answers(process) => self.answers(process),
            Action::Crashes(process, late) => {
                self.state.left.crashes -= 1;
                self.ends_process(process, late);
            }
            Action::Until(at) => {
                let at_work = self
                    .state
                    .processes
                    .iter()
                    .any(|process| !process.is_idle());
                self.state.left.freezes -= u8::from(at_work && self.state.left.freezes > 0);
                self.state.now = at;
            }
            Action::Deletes(operation) => {
                self.state.left.deletions -= 1;
                self.state.operations[operation].record = None;
                self.state.forget(operation);
            }
        }
    }

    fn receive(&mut self, process: Option<usize>, messages: &[usize], ahead: u64) {
        let state = &mut self.state;
        let number = process.unwrap_or_else(|| {
            state.processes.push(Process {
                ahead,
                deadline: 0,
                tasks: Vec::new(),
                circuit: self.world.first_circuit(),
                open_until: None,
            });
            state.processes.len() - 1
        });
        let clock = state.clock(number);
        state.processes[number].deadline = clock + TIMEOUT;
        let mut received = Vec::new();
        for &message in messages {
            let is_repeat = !state.is_visible(message, self.world);
            state.left.repeats -= u8::from(is_repeat);
            let it = &mut state.messages[message];
            it.receives += 1;
            it.visible_at = state.now + VISIBILITY;
            received.push(Receive {
                message,
                number: it.receives,
            });
        }
        for receive in received {
            let claim = self.claim(number, receive);
            self.state.processes[number].tasks.push(Task {
                receive,
                claim,
                step: Step::Waits,
                copies: 0,
                began: false,
                alone: false,
                only_looks_up: false,
                sent: false,
            });
            if self.world.first_circuit().is_none() {
                self.sends_claim(receive);
            }
        }
    }

    fn claim(&self, process: usize, receive: Receive) -> Arc<ClaimRequest> {
        let now = time(self.state.clock(process));
        let lease_until = time(self.state.processes[process].deadline + MARGIN);
        let takeover_after = self.world.takeover_after();
        let kept_until = lease_until + takeover_after;
        let expires_at = (self.world.rules).expires_at(now, self.world.retention, kept_until);
        let operation = key(self.state.operation(receive));
        let (owner, message) = (receive.owner(), message_id(receive.message));
        let mut claim = ClaimRequest::new(operation, owner, message, now, lease_until, expires_at);
        claim.after_failure = AfterFailure::Retry;
        claim.takeover_after = takeover_after;
        Arc::new(claim)
    }

    /// Sends the claim of a task, by the clock of its process.
    pub fn sends_claim(&mut self, receive: Receive) {
        let Some((process, place)) = self.state.find(receive) else {
            return;
        };
        let claim = self.claim(process, receive);
        let task = &mut self.state.processes[process].tasks[place];
        (task.claim, task.step) = (Arc::clone(&claim), Step::Claims);
        self.sends(receive, Arc::new(Request::Claim(claim)));
    }

    pub fn sends(&mut self, receive: Receive, request: Arc<Request>) {
        self.state.network.push(InFlight {
            receive,
            request,
            awaited: true,
            is_copy: false,
        });
    }

    fn arrives(&mut self, number: usize, stays: bool) {
        let arriving = self.state.network.remove(number);
        if stays {
            self.state.left.copies -= 1;
            let copy = InFlight {
                awaited: false,
                is_copy: true,
                ..arriving.clone()
            };
            self.state.network.push(copy);
        }
        let response = self.state.apply(self.world.rules, &arriving);
        if arriving.awaited {
            self.is_answered(arriving.receive, &arriving.request, response);
        }
    }

    fn no_answer(&mut self, receive: Receive, lot: Lot, again: bool) {
        self.state.left.losses -= 1;
        let Some(number) = self.state.awaited(receive) else {
            return;
        };
        let mut in_flight = self.state.network.remove(number);
        let request = Arc::clone(&in_flight.request);
        match lot {
            Lot::Lost => {}
            Lot::Arrived => {
                let _lost = self.state.apply(self.world.rules, &in_flight);
            }
            Lot::Late => {
                in_flight.awaited = false;
                self.state.network.push(in_flight);
            }
        }
        if !again {
            return self.gives_up(receive);
        }
        if let (Request::Claim(_), Some((process, place))) = (&*request, self.state.find(receive)) {
            self.state.processes[process].tasks[place].copies += 1;
        }
        self.sends(receive, request);
    }

    fn effect_happens(&mut self, operation: usize, place: usize) {
        let facts = &mut self.state.operations[operation].facts;
        let (receive, _) = facts.on_the_way.remove(place);
        facts.effects.push(receive);
        let again = facts.effects.len() > 1;
        self.state.break_if(again, Promise::OneEffect);
    }

    fn kills(&mut self, receive: Receive, late: Option<Receive>) {
        let Some((process, place)) = self.state.find(receive) else {
            return;
        };
        let task = &self.state.processes[process].tasks[place];
        // A record does not show in time that it is one too many if the answer to its claim was lost.
        let is_known = matches!(&task.step, Step::Runs(prior, _) | Step::LooksUp(prior)
            if prior.before != PreviousRecord::Unknown);
        let is_alone = task.alone && is_known;
        let last_look_up = usize::from(task.only_looks_up);
        let operation = self.state.operation(receive);
        let facts = &mut self.state.operations[operation].facts;
        facts.kills_alone += usize::from(is_alone);
        let kills = facts.kills_alone;
        let too_many = is_alone && kills > self.world.limit() + last_look_up;
        self.state.break_if(too_many, Promise::KillerIsCrashed);
        self.ends_process(process, late);
    }

    /// A process is gone, with all its messages.
    fn ends_process(&mut self, process: usize, late: Option<Receive>) {
        self.state.left.late -= u8::from(late.is_some());
        let gone = self.state.processes.remove(process);
        for task in gone.tasks {
            self.state.messages[task.receive.message].may_be_suspect = true;
            if let Some(number) = self.state.awaited(task.receive) {
                if late == Some(task.receive) {
                    self.state.network[number].awaited = false;
                } else {
                    self.state.network.remove(number);
                }
            }
        }
    }

    /// The response of a batch: done messages are deleted, dead letters were copied before.
    fn answers(&mut self, process: usize) {
        let tasks = std::mem::take(&mut self.state.processes[process].tasks);
        for task in tasks {
            let Step::Ended(end) = task.step else {
                continue;
            };
            let message = &mut self.state.messages[task.receive.message];
            let fate = match end {
                End::Done => Fate::Acknowledged,
                End::Failed(reason) => Fate::DeadLetter(reason),
                End::Returns(at) => {
                    // A later receive has hidden the message again.
                    if message.receives == task.receive.number {
                        message.visible_at = at;
                    }
                    continue;
                }
            };
            if message.fate == Fate::InQueue {
                message.fate = fate;
            }
        }
        if self.state.processes[process].circuit.is_none() {
            self.state.processes.remove(process);
        }
    }
}

impl State {
    /// Processes have no names, and the order of requests in flight doesn't matter.
    fn tidy(&mut self) {
        self.processes.sort_by_key(|process| {
            let first = process.tasks.iter().map(|task| task.receive).min();
            (first.is_none(), first)
        });
        self.network.sort_by_key(|request| {
            let is_claim = matches!(*request.request, Request::Claim(_));
            (request.receive, !request.awaited, is_claim)
        });
    }
}

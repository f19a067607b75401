//! The circuit breaker of a process.

use std::sync::Arc;

use sqs_once::protocol::circuit::{
    Admission, Change, Circuit, FAILURES_TO_OPEN, HandlerEnd, runs_while_open,
};

use crate::processes::{
    action::HandlerAnswer,
    promises::Promise,
    state::{End, Receive, Step, key, second, time},
    step::Next,
    world::World,
};

impl World {
    /// The circuit of a new process. So that a few messages can open it, other handlers have failed in this
    /// process, one less than it takes.
    pub fn first_circuit(&self) -> Option<Arc<Circuit>> {
        self.circuit.then(|| {
            let mut circuit = Circuit::default();
            for failure in 1..FAILURES_TO_OPEN {
                circuit.handler_ended(time(0), &key(100 + failure), HandlerEnd::Failed, false);
            }
            Arc::new(circuit)
        })
    }
}

impl Next<'_> {
    /// A message asks the circuit before its claim.
    pub fn asks_circuit(&mut self, receive: Receive) {
        let Some((number, place)) = self.state.find(receive) else {
            return;
        };
        let clock = self.state.clock(number);
        let process = &mut self.state.processes[number];
        let Some(circuit) = &mut process.circuit else {
            return;
        };
        let admission = self
            .world
            .rules
            .admit(Arc::make_mut(circuit), time(clock), receive.number);
        match admission {
            Admission::Run | Admission::Probe => {
                let is_open = process.open_until.is_some_and(|until| clock < until);
                let is_probe = admission == Admission::Probe;
                let probes = process.tasks.iter().any(|task| task.is_probe);
                process.tasks[place].is_probe = is_probe;
                let saves = !is_open || runs_while_open(receive.number.into());
                self.state.break_if(!saves, Promise::OpenCircuitSavesClaims);
                self.state.break_if(is_probe && probes, Promise::OneProbe);
                self.sends_claim(receive);
            }
            Admission::Refuse(until) => {
                let wait = second(until).saturating_sub(clock).max(1);
                process.tasks[place].step = Step::Ended(End::Returns(self.state.now + wait));
            }
            // The time is up.
            Admission::Wait => {
                process.tasks[place].step = Step::Ended(End::Returns(self.state.now + 1));
            }
        }
    }

    pub fn tells_circuit(&mut self, receive: Receive, answer: HandlerAnswer) {
        let Some((number, place)) = self.state.find(receive) else {
            return;
        };
        let clock = self.state.clock(number);
        let operation = self.state.operation(receive);
        let process = &mut self.state.processes[number];
        let is_probe = std::mem::take(&mut process.tasks[place].is_probe);
        let Some(circuit) = &mut process.circuit else {
            return;
        };
        let end = match answer {
            HandlerAnswer::Success | HandlerAnswer::Permanent => HandlerEnd::Answered,
            HandlerAnswer::Retryable | HandlerAnswer::NoEffect | HandlerAnswer::CutOff => {
                HandlerEnd::Failed
            }
        };
        let rules = self.world.rules;
        match rules.handler_ended(circuit, time(clock), operation, end, is_probe) {
            Some(Change::Opened { wait }) => process.open_until = Some(clock + wait.as_secs()),
            Some(Change::Closed) => process.open_until = None,
            None => {}
        }
    }

    /// A probe whose handler does not run now leaves the probe to the next message.
    pub fn leaves_probe(&mut self, receive: Receive) {
        let Some((number, place)) = self.state.find(receive) else {
            return;
        };
        let process = &mut self.state.processes[number];
        if std::mem::take(&mut process.tasks[place].is_probe)
            && let Some(circuit) = &mut process.circuit
        {
            self.world.rules.probe_did_not_run(circuit);
        }
    }
}

//! The circuit breaker of a process.

use std::sync::Arc;

use sqs_once::internal::{
    Called, Circuit, CircuitChange, FAILURES_TO_OPEN, FIRST_WAIT, runs_while_open,
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
                circuit.called(time(0), &key(100 + failure), Called::Failed);
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
            Ok(()) => {
                let is_open = process.open_until.is_some_and(|until| clock < until);
                let runs_anyway = runs_while_open(receive.number.into());
                if let Some(until) = &mut process.open_until
                    && !runs_anyway
                {
                    // It is the probe, and the next one follows later.
                    *until = clock + FIRST_WAIT.as_secs();
                }
                let saves = !is_open || runs_anyway;
                self.state.break_if(!saves, Promise::OpenCircuitSavesClaims);
                self.sends_claim(receive);
            }
            Err(until) => {
                let wait = second(until).saturating_sub(clock).max(1);
                process.tasks[place].step = Step::Ended(End::Returns(self.state.now + wait));
            }
        }
    }

    pub fn tells_circuit(&mut self, receive: Receive, answer: HandlerAnswer) {
        let Some((number, _)) = self.state.find(receive) else {
            return;
        };
        let clock = self.state.clock(number);
        let operation = self.state.operation(receive);
        let process = &mut self.state.processes[number];
        let Some(circuit) = &mut process.circuit else {
            return;
        };
        let end = match answer {
            HandlerAnswer::Success | HandlerAnswer::Permanent => Called::Answered,
            HandlerAnswer::Retryable | HandlerAnswer::NoEffect | HandlerAnswer::CutOff => {
                Called::Failed
            }
        };
        let rules = self.world.rules;
        match rules.called(circuit, time(clock), operation, end) {
            Some(CircuitChange::Opened) => process.open_until = Some(clock + FIRST_WAIT.as_secs()),
            Some(CircuitChange::Closed) => process.open_until = None,
            None => {}
        }
    }
}

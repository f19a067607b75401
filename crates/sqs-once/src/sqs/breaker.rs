//! [`CircuitBreaker`]: the [`Circuit`] of this process, which all its batches share.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::protocol::{
    Key, Timestamp,
    circuit::{Called, Circuit, CircuitChange},
};

/// The circuit breaker of a process. Messages ask the clock one after the other: a time before the last one would look
/// like a clock that was set back.
#[derive(Debug, Default)]
pub(super) struct CircuitBreaker(Mutex<Circuit>);

impl CircuitBreaker {
    /// Decides whether a message may run.
    ///
    /// # Errors
    ///
    /// The time of the next probe, if the message must not run.
    pub(super) fn admit(
        &self,
        clock: impl Fn() -> Timestamp,
        receive_count: u32,
    ) -> Result<(), Timestamp> {
        let mut circuit = self.circuit();
        circuit.admit(clock(), receive_count)
    }

    /// Records how a call of the handler ended.
    pub(super) fn called(&self, clock: impl Fn() -> Timestamp, key: &Key, called: Called) {
        let change = {
            let mut circuit = self.circuit();
            circuit.called(clock(), key, called)
        };
        match change {
            Some(CircuitChange::Opened) => tracing::warn!(
                circuit = "open",
                "handlers fail one after the other: messages wait until one of them succeeds"
            ),
            Some(CircuitChange::Closed) => {
                tracing::info!(
                    circuit = "closed",
                    "a handler succeeded: messages run again"
                );
            }
            None => {}
        }
    }

    /// Returns whether the circuit is open.
    pub(super) fn is_open(&self) -> bool {
        self.circuit().is_open()
    }

    /// No panic can interrupt a change of the circuit, so a poisoned lock is harmless.
    fn circuit(&self) -> MutexGuard<'_, Circuit> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

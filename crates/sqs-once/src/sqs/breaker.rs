//! [`CircuitBreaker`]: the [`Circuit`] of this process, which all its batches share.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::protocol::{
    Key, Timestamp,
    circuit::{Circuit, CircuitChange, HandlerEnd},
};

/// The circuit breaker of a process. Clones share the circuit, and ask the clock one after the other: a time
/// before the last one would look like a clock that was set back.
#[derive(Clone, Debug, Default)]
pub(super) struct CircuitBreaker(Arc<Mutex<Circuit>>);

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

    /// Records the end of a handler.
    pub(super) fn handler_ended(&self, clock: impl Fn() -> Timestamp, key: &Key, end: HandlerEnd) {
        let change = {
            let mut circuit = self.circuit();
            circuit.handler_ended(clock(), key, end)
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

//! [`CircuitBreaker`]: the [`Circuit`] of this process, which all its batches share.

use std::{
    pin::pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
};

use tokio::{
    sync::Notify,
    time::{Instant, timeout_at},
};

use crate::{
    handler::Failure,
    protocol::{
        Key, Timestamp,
        circuit::{Admission, Change, Circuit, HandlerEnd},
    },
};

/// The circuit breaker of a process. Clones share the circuit.
#[derive(Clone, Debug, Default)]
pub(super) struct CircuitBreaker(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    circuit: Mutex<Circuit>,
    /// Wakes the messages that wait for the end of a probe.
    changed: Notify,
}

/// The wall clock.
type Clock<'a> = &'a (dyn Fn() -> Timestamp + Send + Sync);

impl CircuitBreaker {
    /// Decides whether a message may run. While another message probes, waits until that probe ends, but not
    /// longer than `latest`.
    ///
    /// # Errors
    ///
    /// The time of the next probe, if the message must not run.
    pub(super) async fn admit(
        &self,
        now: Clock<'_>,
        receive_count: u32,
        latest: Instant,
    ) -> Result<Admitted, Timestamp> {
        let admitted = |is_probe| Admitted {
            breaker: self.clone(),
            is_probe: AtomicBool::new(is_probe),
        };
        loop {
            // Register before the decision, so that we miss no change.
            let mut changed = pin!(self.0.changed.notified());
            changed.as_mut().enable();
            match self.circuit().admit(now(), receive_count) {
                Admission::Run => return Ok(admitted(false)),
                Admission::Probe => return Ok(admitted(true)),
                Admission::Refuse(until) => return Err(until),
                Admission::Wait => {}
            }
            if timeout_at(latest, changed).await.is_err() {
                return Err(now());
            }
        }
    }

    fn handler_ended(&self, now: Timestamp, key: &Key, end: HandlerEnd, is_probe: bool) {
        match self.circuit().handler_ended(now, key, end, is_probe) {
            Some(Change::Opened { wait }) => tracing::warn!(
                circuit = "open",
                next_probe_s = wait.as_secs(),
                "handlers fail one after the other: messages wait until one of them succeeds"
            ),
            Some(Change::Closed) => {
                tracing::info!(
                    circuit = "closed",
                    "a handler succeeded: messages run again"
                );
            }
            None => return,
        }
        self.0.changed.notify_waiters();
    }

    /// Returns the name of the state in logs, or `None` if the circuit is closed.
    pub(super) fn not_closed(&self) -> Option<&'static str> {
        let circuit = self.circuit();
        (!circuit.is_closed()).then(|| circuit.state())
    }

    /// No panic can interrupt a change of the circuit, so a poisoned lock is harmless.
    fn circuit(&self) -> MutexGuard<'_, Circuit> {
        let circuit = self.0.circuit.lock();
        circuit.unwrap_or_else(PoisonError::into_inner)
    }
}

/// A message that the circuit breaker allows to run.
pub(super) struct Admitted {
    breaker: CircuitBreaker,
    /// True until the handler of a probe has ended.
    is_probe: AtomicBool,
}

impl Admitted {
    /// Watches a handler from its start to its end. The deadline cuts it off at `cutoff`.
    pub(super) fn handler_starts<'a>(
        &'a self,
        key: Key,
        now: Clock<'a>,
        cutoff: Instant,
    ) -> WatchedHandler<'a> {
        WatchedHandler {
            admitted: self,
            now,
            key,
            cutoff,
            end: None,
        }
    }

    /// Records that the response is about to be sent while the handler of this message blocks its thread. A
    /// probe has then failed: other messages must not wait for the thread.
    pub(super) fn handler_blocks(&self, key: &Key, now: Timestamp) {
        if self.is_probe.swap(false, Relaxed) {
            self.breaker
                .handler_ended(now, key, HandlerEnd::Failed, true);
        }
    }

    /// Lets the next message be the probe, if this one was the probe and its handler did not run.
    pub(super) fn leave_the_probe_to_others(&self) {
        if self.is_probe.swap(false, Relaxed) {
            self.breaker.circuit().probe_did_not_run();
            self.breaker.0.changed.notify_waiters();
        }
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        self.leave_the_probe_to_others();
    }
}

/// A running handler. If this value is dropped without an [answer](Self::answered), the handler was cut off,
/// panicked, or lost its lease.
pub(super) struct WatchedHandler<'a> {
    admitted: &'a Admitted,
    now: Clock<'a>,
    key: Key,
    cutoff: Instant,
    end: Option<HandlerEnd>,
}

impl WatchedHandler<'_> {
    /// Records how the handler returned, and passes the result on.
    pub(super) fn answered<T>(mut self, answer: Result<T, Failure>) -> Result<T, Failure> {
        self.end = Some(match &answer {
            Ok(_) | Err(Failure::Permanent(_)) => HandlerEnd::Answered,
            Err(Failure::Retryable(_) | Failure::NoEffect(_)) => HandlerEnd::Failed,
        });
        answer
    }
}

impl Drop for WatchedHandler<'_> {
    fn drop(&mut self) {
        let end = match self.end {
            Some(end) => end,
            None if thread::panicking() => HandlerEnd::Panicked,
            // The lease was lost or could not be renewed, which says nothing about the called system.
            None if Instant::now() < self.cutoff => {
                return self.admitted.leave_the_probe_to_others();
            }
            None => HandlerEnd::Failed,
        };
        let Admitted { breaker, is_probe } = self.admitted;
        let is_probe = is_probe.swap(false, Relaxed);
        breaker.handler_ended((self.now)(), &self.key, end, is_probe);
    }
}

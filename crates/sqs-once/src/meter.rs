//! [`Meter`]: latency of the store requests for one message.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures_util::FutureExt as _;

use crate::system;

/// Measures the store requests of one message. Clones share the readings.
#[derive(Clone, Debug, Default)]
pub struct Meter(Arc<Mutex<Readings>>);

/// The measurements of a [`Meter`].
#[derive(Clone, Debug, Default)]
pub struct Readings {
    /// Time from each claim or settlement to its response, or until the worker stopped waiting. A request for
    /// several messages adds its time to each of them.
    pub latencies: Vec<Duration>,
    /// True if the store gave up batched writes after one of these requests.
    pub batches_ended: bool,
    /// True if a message of another queue completed the operation.
    pub other_queue: bool,
}

impl Meter {
    /// Runs a request and adds its latency.
    pub fn timed<F: Future>(&self, request: F) -> impl Future<Output = F::Output> {
        let sent = system::instant();
        request.inspect(move |_| self.lock().latencies.push(system::elapsed(sent)))
    }

    /// Notes that the store gave up batched writes.
    pub fn batches_ended(&self) {
        self.lock().batches_ended = true;
    }

    /// Notes that a message of another queue completed the operation.
    pub fn other_queue(&self) {
        self.lock().other_queue = true;
    }

    /// Returns the readings so far.
    #[must_use]
    pub fn readings(&self) -> Readings {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Readings> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

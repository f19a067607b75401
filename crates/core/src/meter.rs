//! [`Meter`]: latency and write units of the requests to a store, for the message that they are sent for.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures_util::FutureExt as _;
use tokio::time::Instant;

/// Measures the requests of one message. Clones share the readings.
#[derive(Clone, Debug, Default)]
pub struct Meter(Arc<Mutex<Readings>>);

/// Readings of a [`Meter`].
#[derive(Clone, Debug, Default)]
pub struct Readings {
    /// Time from each claim or settlement to its answer, or to the end of the wait for an answer. A
    /// request for several messages counts for each of them.
    pub latencies: Vec<Duration>,
    /// Write units that DynamoDB reported. Messages share the units of a common request equally.
    pub write_units: f64,
    /// The store stopped to send writes in batches after one of these requests.
    pub batches_ended: bool,
}

impl Meter {
    /// Runs a request, and adds its latency.
    pub fn timed<F: Future>(&self, request: F) -> impl Future<Output = F::Output> {
        let sent = Instant::now();
        request.inspect(move |_| self.lock().latencies.push(sent.elapsed()))
    }

    /// Adds write units, such as a message's share of a request that it had in common with others.
    pub fn add_write_units(&self, units: f64) {
        self.lock().write_units += units;
    }

    /// Notes that the store sends no more writes in batches.
    pub fn batches_ended(&self) {
        self.lock().batches_ended = true;
    }

    /// The readings so far.
    #[must_use]
    pub fn readings(&self) -> Readings {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Readings> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

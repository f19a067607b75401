//! [`Meter`]: latency and write units of the requests to DynamoDB, for the message that they are
//! sent for.

use std::{
    future::poll_fn,
    pin::Pin,
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
}

tokio::task_local! {
    /// Meter of the message in progress. Modes and stores have no parameter for it, because they
    /// also serve other callers than the SQS consumer.
    static METER: Meter;
}

impl Meter {
    /// Runs `work`, and measures its requests. Takes `work` by reference, because the futures of a
    /// message are large, and a wrapper would copy them.
    pub async fn scope<T>(&self, mut work: Pin<&mut impl Future<Output = T>>) -> T {
        poll_fn(|context| METER.sync_scope(self.clone(), || work.as_mut().poll(context))).await
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

/// Runs a request, and adds its latency. Adds nothing outside of [`Meter::scope`].
pub fn timed<F: Future>(request: F) -> impl Future<Output = F::Output> {
    let sent = Instant::now();
    request.inspect(move |_| {
        let _outside = METER.try_with(|meter| meter.lock().latencies.push(sent.elapsed()));
    })
}

/// Adds write units, such as a message's share of a request that it had in common with others.
/// Does nothing outside of [`Meter::scope`].
pub fn add_units(units: f64) {
    let _outside = METER.try_with(|meter| meter.lock().write_units += units);
}

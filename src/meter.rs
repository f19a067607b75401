//! [`Meter`]: latency and write units of the requests to DynamoDB, for the message that they are
//! sent for.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use aws_sdk_dynamodb::types::ConsumedCapacity;
use tokio::time::Instant;

/// Measures the requests of one message. Clones share the readings.
#[derive(Clone, Debug, Default)]
pub(crate) struct Meter(Arc<Mutex<Readings>>);

/// Readings of a [`Meter`].
#[derive(Clone, Debug, Default)]
pub(crate) struct Readings {
    /// Time from each request to its answer, or to the end of the wait for an answer.
    pub(crate) latencies: Vec<Duration>,
    /// Write units that DynamoDB reported.
    pub(crate) write_units: f64,
}

tokio::task_local! {
    /// Meter of the message in progress. Modes and stores have no parameter for it, because they
    /// also serve other callers than the SQS consumer.
    static METER: Meter;
}

impl Meter {
    /// Runs `work`, and measures its requests.
    pub(crate) async fn scope<T>(&self, work: impl Future<Output = T>) -> T {
        METER.scope(self.clone(), work).await
    }

    pub(crate) fn readings(&self) -> Readings {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Readings> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Measures the latency of a request. Does nothing outside of [`Meter::scope`].
pub(crate) async fn measured<T>(request: impl Future<Output = T>) -> T {
    let sent = Instant::now();
    let answer = request.await;
    let _outside = METER.try_with(|meter| meter.lock().latencies.push(sent.elapsed()));
    answer
}

/// Adds the consumed capacity of a write. Does nothing outside of [`Meter::scope`].
pub(crate) fn add_write_units<'a>(consumed: impl IntoIterator<Item = &'a ConsumedCapacity>) {
    let units = consumed.into_iter();
    let units: f64 = units.filter_map(ConsumedCapacity::capacity_units).sum();
    let _outside = METER.try_with(|meter| meter.lock().write_units += units);
}

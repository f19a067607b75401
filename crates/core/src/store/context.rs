//! [`RequestContext`]: time limit and meter of the caller, for the store.

use std::time::Duration;

use tokio::time::Instant;

use crate::meter::Meter;

/// How long the caller of a request waits for the answer, and where the request's costs are added up.
///
/// The default has no time limit, and nobody reads its costs.
///
/// ```
/// use sqs_once::store::RequestContext;
///
/// assert_eq!(RequestContext::default().time_left(), None);
/// ```
#[derive(Clone, Debug, Default)]
pub struct RequestContext {
    limit: Option<Instant>,
    expects_record: bool,
    pub(crate) meter: Meter,
}

impl RequestContext {
    /// The caller drops the request at `limit`, and reads the costs from `meter`.
    #[must_use]
    pub fn until(limit: Instant, meter: &Meter) -> Self {
        Self {
            limit: Some(limit),
            expects_record: false,
            meter: meter.clone(),
        }
    }

    /// Sets whether the claim's key probably has a record.
    #[must_use]
    pub fn expecting_record(self, expects_record: bool) -> Self {
        Self {
            expects_record,
            ..self
        }
    }

    /// Returns whether the claim's key probably has a record, since SQS delivered the message before. A store
    /// may then choose a request that costs less where there is one.
    #[must_use]
    pub const fn expects_record(&self) -> bool {
        self.expects_record
    }

    /// Returns how long the caller still waits for the answer. `None` without a limit.
    #[must_use]
    pub fn time_left(&self) -> Option<Duration> {
        let limit = self.limit?;
        Some(limit.saturating_duration_since(Instant::now()))
    }

    /// Adds write units that the store reported for the request, or the request's share of them.
    pub fn add_write_units(&self, units: f64) {
        self.meter.add_write_units(units);
    }

    /// Notes that the store sends no more writes in batches, for the metric `BatchedWritesOff`.
    pub fn batches_ended(&self) {
        self.meter.batches_ended();
    }
}

//! [`RequestContext`]: gives the store the caller's time limit and meter.

use std::time::Duration;

use crate::{
    meter::Meter,
    system::{self, Instant},
};

/// How long a request's caller waits for the response, and the meter that measures the request.
///
/// The default has no time limit, and nobody reads its meter.
///
/// ```
/// use sqs_once::store::RequestContext;
///
/// assert_eq!(RequestContext::default().time_left(), None);
/// ```
#[derive(Clone, Debug, Default)]
pub struct RequestContext {
    pub(crate) limit: Option<Instant>,
    pub(crate) meter: Meter,
}

impl RequestContext {
    /// Creates the context of a request that `meter` measures and the caller drops at `limit`.
    #[must_use]
    pub fn until(limit: Instant, meter: &Meter) -> Self {
        Self {
            limit: Some(limit),
            meter: meter.clone(),
        }
    }

    /// Returns how much longer the caller will wait for the response, or `None` if there is no limit.
    #[must_use]
    pub fn time_left(&self) -> Option<Duration> {
        let limit = self.limit?;
        Some(limit.saturating_duration_since(system::instant()))
    }

    /// Notes that the store has given up batched writes, for the metric `BatchedWritesOff`.
    pub fn batches_ended(&self) {
        self.meter.batches_ended();
    }
}

//! Runs the handler.

use std::panic::AssertUnwindSafe;

use futures_util::FutureExt as _;
use tokio::time::timeout_at;

use super::Outcome;
use crate::{deadline::Deadline, handler::Failure};

/// The end of a handler that returned no answer.
pub enum NoAnswer {
    /// The handler returned a failure.
    Failed(Failure),
    /// The handler panicked.
    Panicked,
    /// The handler was cut off at the deadline.
    OutOfTime,
    /// Another worker took over, or the record was deleted.
    LeaseLost,
}

/// The outcome of a handler that returned no answer, if no record is needed.
impl From<NoAnswer> for Outcome {
    fn from(end: NoAnswer) -> Self {
        match end {
            NoAnswer::Failed(failure) => failure.into(),
            NoAnswer::Panicked => Self::Panicked,
            NoAnswer::OutOfTime => Self::OutOfTime,
            NoAnswer::LeaseLost => Self::LeaseLost,
        }
    }
}

/// Runs a handler until it returns, panics or reaches the deadline.
///
/// Not an `async fn`, which would have room for `work` twice: as its argument, and while it waits.
pub fn guard<T>(
    deadline: Deadline,
    work: impl Future<Output = Result<T, Failure>>,
) -> impl Future<Output = Result<T, NoAnswer>> {
    timeout_at(deadline.stop(), AssertUnwindSafe(work).catch_unwind()).map(|end| match end {
        Ok(Ok(answer)) => answer.map_err(NoAnswer::Failed),
        Ok(Err(_panic)) => Err(NoAnswer::Panicked),
        Err(_elapsed) => Err(NoAnswer::OutOfTime),
    })
}

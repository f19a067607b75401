//! Runs the handler.

use std::panic::AssertUnwindSafe;

use futures_util::FutureExt as _;

use super::Outcome;
use crate::{deadline::Deadline, handler::Failure, system::timeout_at};

/// Why a handler produced no output.
pub enum NoOutput {
    /// The handler returned a failure.
    Failed(Failure),
    /// The handler panicked.
    Panicked,
    /// The handler was cut off at the deadline.
    OutOfTime,
}

/// Converts the end of a handler to the outcome, when no record is needed.
impl From<NoOutput> for Outcome {
    fn from(end: NoOutput) -> Self {
        match end {
            NoOutput::Failed(failure) => failure.into(),
            NoOutput::Panicked => Self::Panicked,
            NoOutput::OutOfTime => Self::OutOfTime,
        }
    }
}

/// Runs a handler until it returns, panics or reaches the deadline.
///
/// This is not an `async fn`, whose future would hold `work` twice: as its argument, and while it waits.
pub fn guard<T>(
    deadline: Deadline,
    work: impl Future<Output = Result<T, Failure>>,
) -> impl Future<Output = Result<T, NoOutput>> {
    timeout_at(
        deadline.handler_cutoff(),
        AssertUnwindSafe(work).catch_unwind(),
    )
    .map(|end| match end {
        Ok(Ok(answer)) => answer.map_err(NoOutput::Failed),
        Ok(Err(_panic)) => Err(NoOutput::Panicked),
        Err(_elapsed) => Err(NoOutput::OutOfTime),
    })
}

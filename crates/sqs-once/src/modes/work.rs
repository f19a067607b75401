//! [`guard`] runs the handler's code. [`HandlerEnd`] says how the handler ended.

use std::{
    future::poll_fn,
    panic::{AssertUnwindSafe, catch_unwind},
    task::{Poll, ready},
};

use futures_util::FutureExt as _;

use super::Outcome;
use crate::{deadline::Deadline, handler::Failure, protocol::Timestamp, system::timeout_at};

/// How the handler of a claimed operation ended.
#[derive(Debug)]
pub enum HandlerEnd<O> {
    /// The handler returned an output.
    Returned(O),
    /// The lookup found the effect of an earlier attempt, and the handler did not run.
    Found(O),
    /// The lookup found nothing, and the handler must not run, because it ended its process too often.
    EffectNotFound,
    /// The handler ran and produced no output.
    NoOutput(NoOutput),
    /// The handler did not run. If the claim can be undone, this is the outcome.
    NotStarted(Outcome),
}

/// Why a handler produced no output.
#[derive(Debug)]
pub enum NoOutput {
    /// The handler returned a failure.
    Failed(Failure),
    /// The handler panicked.
    Panicked,
    /// The handler was cut off at the deadline.
    OutOfTime,
}

impl<O> HandlerEnd<O> {
    /// Returns the handler's answer, in a mode that has no lookup.
    ///
    /// # Errors
    ///
    /// Returns the outcome if the handler did not run.
    pub fn answer(self) -> Result<Result<O, NoOutput>, Outcome> {
        match self {
            Self::Returned(output) | Self::Found(output) => Ok(Ok(output)),
            Self::NoOutput(end) => Ok(Err(end)),
            Self::NotStarted(outcome) => Err(outcome),
            Self::EffectNotFound => Err(Outcome::NotStarted),
        }
    }
}

impl<O> From<Result<O, NoOutput>> for HandlerEnd<O> {
    fn from(answer: Result<O, NoOutput>) -> Self {
        answer.map_or_else(Self::NoOutput, Self::Returned)
    }
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

/// Runs the application's code until it returns, panics or reaches the deadline. Timers stand still while Lambda
/// freezes the process, so only the wall clock can tell that the code must not go on.
///
/// This is not an `async fn`, whose future would hold `work` twice: as its argument, and while it waits.
pub(crate) fn guard<T>(
    clock: impl Fn() -> Timestamp,
    deadline: Deadline,
    work: impl Future<Output = Result<T, Failure>>,
) -> impl Future<Output = Result<T, NoOutput>> {
    let work = AssertUnwindSafe(work).catch_unwind();
    let mut work = Some(Box::pin(timeout_at(deadline.handler_cutoff(), work)));
    poll_fn(move |context| {
        let end = match &mut work {
            Some(work) if !deadline.has_ended(clock()) => match ready!(work.as_mut().poll(context))
            {
                Ok(Ok(answer)) => answer.map_err(NoOutput::Failed),
                Ok(Err(_panic)) => Err(NoOutput::Panicked),
                Err(_elapsed) => Err(NoOutput::OutOfTime),
            },
            _ => Err(NoOutput::OutOfTime),
        };
        // Dropping the work may panic, but the end is already known.
        let _panic = guard_now(|| {
            work = None;
            Ok(())
        });
        Poll::Ready(end)
    })
}

/// Runs application code that doesn't wait, such as serialization.
pub fn guard_now<T>(work: impl FnOnce() -> Result<T, Failure>) -> Result<T, NoOutput> {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(answer) => answer.map_err(NoOutput::Failed),
        Err(_panic) => Err(NoOutput::Panicked),
    }
}

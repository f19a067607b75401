//! Runs the handler, and calls its decision after failed condition checks.

use std::panic::{AssertUnwindSafe, catch_unwind};

use futures_util::FutureExt as _;
use tokio::time::timeout_at;

use super::Outcome;
use crate::{
    deadline::Deadline,
    dynamodb::refused::Refused,
    handler::{Failure, OnRefused},
};

/// The end of a handler that returned no answer.
pub(super) enum NoAnswer {
    Failed(Failure),
    Panicked,
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
pub(super) fn guard<T>(
    deadline: Deadline,
    work: impl Future<Output = Result<T, Failure>>,
) -> impl Future<Output = Result<T, NoAnswer>> {
    timeout_at(deadline.stop(), AssertUnwindSafe(work).catch_unwind()).map(|end| match end {
        Ok(Ok(answer)) => answer.map_err(NoAnswer::Failed),
        Ok(Err(_panic)) => Err(NoAnswer::Panicked),
        Err(_elapsed) => Err(NoAnswer::OutOfTime),
    })
}

/// The reason why nothing was written.
pub(super) enum Declined {
    /// Condition checks of these writes failed.
    Conditions(Refused),
    /// The writes are invalid. A retry would fail again.
    Invalid(String),
}

/// An answer whose writes were not applied, and the handler's decision after failed condition
/// checks.
pub(super) struct DeclinedAnswer<T> {
    pub(super) declined: Declined,
    pub(super) on_refused: Option<OnRefused<T>>,
}

/// Writes the handler's answer. After each failed condition check, asks the handler for another
/// answer. `write` gets the number of the answer, from 0.
///
/// # Errors
///
/// The end of a handler that returned no answer, and the number of answers before that end.
pub(super) async fn write_until_accepted<T, F>(
    first: Result<T, NoAnswer>,
    write: impl Fn(usize, T) -> F,
) -> Result<Outcome, (usize, NoAnswer)>
where
    F: Future<Output = Result<Outcome, DeclinedAnswer<T>>>,
{
    let (mut round, mut answer) = (0, first);
    loop {
        match write(round, answer.map_err(|end| (round, end))?).await {
            Ok(outcome) => return Ok(outcome),
            Err(declined) => answer = declined.ask(),
        }
        round += 1;
    }
}

impl<T> DeclinedAnswer<T> {
    /// Asks the handler for another answer.
    fn ask(self) -> Result<T, NoAnswer> {
        let (refused, decide) = match (self.declined, self.on_refused) {
            (Declined::Conditions(refused), Some(decide)) => (refused, decide),
            (Declined::Conditions(refused), None) => {
                return Err(NoAnswer::Failed(Failure::permanent(refused.to_string())));
            }
            (Declined::Invalid(why), _) => return Err(NoAnswer::Failed(Failure::permanent(why))),
        };
        match catch_unwind(AssertUnwindSafe(|| decide(&refused))) {
            Ok(answer) => answer.map_err(NoAnswer::Failed),
            Err(_panic) => Err(NoAnswer::Panicked),
        }
    }
}

//! Answers whose writes were not applied, and the handler's decision after failed condition checks.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::{done::OnRefused, refused::Refused};
use sqs_once_core::{
    handler::Failure,
    once::{Outcome, work::NoAnswer},
};

/// The reason why nothing was written.
pub(crate) enum Declined {
    /// Condition checks of these writes failed.
    Conditions(Refused),
    /// The writes are invalid. A retry would fail again.
    Invalid(String),
}

/// An answer whose writes were not applied, and the handler's decision after failed condition
/// checks.
pub(crate) struct DeclinedAnswer<T> {
    pub(crate) declined: Declined,
    pub(crate) on_refused: Option<OnRefused<T>>,
}

/// Writes the handler's answer. After each failed condition check, asks the handler for another
/// answer. `write` gets the number of the answer, from 0.
///
/// # Errors
///
/// The end of a handler that returned no answer, and the number of answers before that end.
pub(crate) async fn write_until_accepted<T, F>(
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

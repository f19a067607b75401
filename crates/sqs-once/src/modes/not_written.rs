//! Writes that were not applied, and the handler's decision after failed condition checks.

use crate::{
    dynamo::{condition_failed::ConditionFailed, done::OnConditionFailed},
    handler::Failure,
    modes::{
        Outcome,
        work::{NoOutput, guard_now},
    },
};

/// Why nothing was written.
pub(crate) enum NotWritten {
    /// Condition checks of these writes failed.
    Conditions(ConditionFailed),
    /// The writes are invalid. A retry would fail again.
    Invalid(String),
}

/// Writes that were not applied, and the handler's decision after failed condition checks.
pub(crate) struct UnwrittenOutput<T> {
    pub(crate) declined: NotWritten,
    pub(crate) on_condition_failed: Option<OnConditionFailed<T>>,
}

/// Writes what the handler returned. After each failed condition check, asks the handler for a replacement.
/// `write` gets the number of the round, from 0.
///
/// # Errors
///
/// How the handler ended if it returned no replacement, and the number of rounds before that.
pub(crate) async fn write_until_accepted<T, F>(
    first: Result<T, NoOutput>,
    write: impl Fn(usize, T) -> F,
) -> Result<Outcome, (usize, NoOutput)>
where
    F: Future<Output = Result<Outcome, UnwrittenOutput<T>>>,
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

impl<T> UnwrittenOutput<T> {
    /// Asks the handler for a replacement.
    fn ask(self) -> Result<T, NoOutput> {
        let (failed, decide) = match (self.declined, self.on_condition_failed) {
            (NotWritten::Conditions(failed), Some(decide)) => (failed, decide),
            (NotWritten::Conditions(failed), None) => {
                return Err(NoOutput::Failed(Failure::permanent(failed.to_string())));
            }
            (NotWritten::Invalid(why), _) => return Err(NoOutput::Failed(Failure::permanent(why))),
        };
        guard_now(|| decide(&failed))
    }
}

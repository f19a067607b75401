//! [`Ledger`]: the system that a tortured handler calls.

use std::{any::Any, fmt, panic::Location, sync::Arc};

use serde::Serialize;

use super::json_of;
use super::run::{Fault, Place, Run};

/// The system that a tortured handler calls, such as a payment gateway. The system does nothing twice under the same key.
///
/// [`Torture`](super::Torture) shows it in use.
#[derive(Clone, Debug)]
pub struct Ledger {
    run: Arc<Run>,
    attempt: usize,
}

/// The called system did not answer. The effect may have happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoAnswer;

impl Ledger {
    pub(super) const fn of(run: Arc<Run>, attempt: usize) -> Self {
        Self { run, attempt }
    }

    /// Makes the effect happen under this key, and returns the answer. If the system already knows the key, it does
    /// nothing, and returns the same answer again.
    ///
    /// `sent` is what your handler sends, as JSON. All attempts must send the same under one key. `effect` must return at
    /// once. Two calls at different places in your source are two effects, each of which must happen once.
    ///
    /// # Errors
    ///
    /// Returns [`NoAnswer`] if the answer is lost although the effect has happened. `?` turns it into a retryable failure.
    ///
    /// # Panics
    ///
    /// Panics if an earlier answer under this key has another type, or `sent` can't be written as JSON.
    #[track_caller]
    pub fn effect<T: Any + Clone + Send>(
        &self,
        key: impl fmt::Display,
        sent: &(impl Serialize + ?Sized),
        effect: impl FnOnce() -> T,
    ) -> impl Future<Output = Result<T, NoAnswer>> {
        let at = Location::caller();
        let key = key.to_string();
        let sent = json_of(sent);
        async move {
            self.run.meet(self.attempt, Place::BeforeEffect).await;
            let answer = self.run.have_effect(self.attempt, &key, sent, at, effect);
            match self.run.meet(self.attempt, Place::AfterEffect).await {
                Fault::AnswerLost => Err(NoAnswer),
                _ => Ok(answer),
            }
        }
    }

    /// Returns the first effect's answer, whatever its key. This is what a lookup in the called system finds.
    ///
    /// # Panics
    ///
    /// Panics if that answer has another type.
    #[must_use]
    pub fn find<T: Any + Clone + Send>(&self) -> Option<T> {
        self.run.find(self.attempt)
    }
}

impl fmt::Display for NoAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the called system did not answer")
    }
}

impl std::error::Error for NoAnswer {}

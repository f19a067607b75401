//! [`Ledger`]: the system that a tortured handler calls.

use std::{any::Any, fmt, panic::Location, sync::Arc};

use serde::Serialize;

use super::json_of;
use super::run::{Fault, Place, Run};

/// The system that a tortured handler calls, such as a payment gateway: it does nothing twice under one key.
///
/// [`Torture`](super::Torture) shows it in use.
#[derive(Clone, Debug)]
pub struct Ledger {
    run: Arc<Run>,
    attempt: usize,
}

/// The called system did not answer. It may have had the effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoAnswer;

impl Ledger {
    pub(super) const fn of(run: Arc<Run>, attempt: usize) -> Self {
        Self { run, attempt }
    }

    /// Has the effect under this key, and returns the answer. If the system knows the key, it does nothing, and gives the
    /// same answer again.
    ///
    /// `sent` is what your handler sends, as JSON: all attempts must send the same under one key. `effect` must return at
    /// once. Two calls at different places of your source are two effects, each of which must happen
    /// once.
    ///
    /// # Errors
    ///
    /// [`NoAnswer`], if the answer is lost. The effect has happened. `?` makes a retryable failure of it.
    ///
    /// # Panics
    ///
    /// If an answer under this key had another type, or `sent` cannot be written as JSON.
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

    /// Returns the answer of the first effect, whatever its key: what a lookup in the called system finds.
    ///
    /// # Panics
    ///
    /// If that answer has another type.
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

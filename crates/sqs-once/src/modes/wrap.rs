//! [`Once::wrap`]: one async function once, behind any trigger.

use std::{fmt, time::Duration};

use serde::{Serialize, de::DeserializeOwned};

use super::{Mode, Once, Operation, Outcome, Retry};
use crate::{
    deadline::Deadline,
    handler::{Attempt, Classify, Delivery},
    protocol::{Fingerprint, Key, Timestamp},
    store::Store,
};

/// Time of a call that [`Wrapped::until`] does not limit.
const ASSUMED_TIME: Duration = Duration::from_secs(30);
/// Part of the time that is kept for the record.
const RESERVE: Duration = Duration::from_millis(500);

impl<S: Store> Once<S> {
    /// Runs an async function once under `key`, in a function that is not an SQS consumer: an HTTP API, a stream, a task of
    /// Step Functions. Awaiting the call returns the function's output, from this or an earlier call.
    ///
    /// The output is stored as JSON. Everything else is as with a handler: the function gets the [`Attempt`], with the prior
    /// attempt and the [call key](Attempt::call_key), and its [`Failure`](crate::Failure) decides about the next call. The key names the
    /// operation: of what the caller repeats, and not of what each request has anew.
    ///
    /// ```
    /// use sqs_once::{Attempt, Failure, Once, protocol::{Key, Namespace}, store::MemoryStore};
    ///
    /// async fn charge(order: &str, attempt: Attempt) -> Result<String, Failure> {
    ///     Ok(format!("charged {order} as {}", attempt.call_key()))
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let once = Once::new(MemoryStore::default());
    /// let key = Key::new(&Namespace::new("payments")?, ["o-1"])?;
    /// let first: String = once.wrap(key.clone(), |attempt| charge("o-1", attempt)).run().await?;
    /// let again = once.wrap(key, |attempt| charge("o-1", attempt)).run().await?;
    /// assert_eq!(first, again);
    /// # Ok(()) }
    /// ```
    pub fn wrap<F>(&self, key: Key, function: F) -> Wrapped<'_, S, F> {
        Wrapped {
            once: self,
            key,
            fingerprint: None,
            request_id: String::new(),
            ends_at: None,
            function,
        }
    }
}

/// A call of [`Once::wrap`], to be [run](Self::run).
#[must_use = "nothing runs before `run`"]
pub struct Wrapped<'a, S, F> {
    once: &'a Once<S>,
    key: Key,
    fingerprint: Option<Fingerprint>,
    request_id: String,
    ends_at: Option<Timestamp>,
    function: F,
}

impl<S, F> fmt::Debug for Wrapped<'_, S, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wrapped")
            .field("key", &self.key)
            .finish_non_exhaustive()
    }
}

impl<S: Store, F> Wrapped<'_, S, F> {
    /// Sets what must not change under the key. A call with another payload ends with [`Outcome::KeyReused`].
    pub fn payload(self, payload: &[u8]) -> Self {
        let fingerprint = Some(Fingerprint::of(payload));
        Self {
            fingerprint,
            ..self
        }
    }

    /// Sets the id of this request or event. A call with the same id that has failed permanently does not run again.
    pub fn request_id(self, request_id: impl Into<String>) -> Self {
        let request_id = request_id.into();
        Self { request_id, ..self }
    }

    /// Sets when Lambda ends the invocation: `Timestamp::from_millis(context.deadline)`. The function is cut off half a second
    /// before. Without it, and outside Lambda, a call has 30 seconds.
    pub fn until(self, ends_at: Timestamp) -> Self {
        let ends_at = Some(ends_at);
        Self { ends_at, ..self }
    }

    /// Runs the function, unless its output is recorded.
    ///
    /// # Errors
    ///
    /// [`NotDone`] if there is no output: the function failed now or before, another call under the key is in progress, or the
    /// store does not respond.
    pub async fn run<O, E, Fut>(self) -> Result<O, NotDone>
    where
        F: FnOnce(Attempt) -> Fut + Send,
        Fut: Future<Output = Result<O, E>> + Send,
        O: Serialize + DeserializeOwned + Send,
        E: Classify,
        Once<S>: Mode<O>,
    {
        let once = self.once;
        let now = once.records.now();
        let ends_at = self.ends_at.unwrap_or_default();
        let deadline = Deadline::of_invocation(now, ends_at, ASSUMED_TIME, RESERVE);
        let delivery = Delivery::new(self.request_id);
        let operation = Operation::new(self.key, self.fingerprint, delivery, deadline);
        let function = self.function;
        let call = |attempt| async { function(attempt).await.map_err(E::classify) };
        match once.run(operation, call).await {
            Outcome::Completed(result)
            | Outcome::Duplicate(result)
            | Outcome::Reconciled(result) => match once.stored(result).output().await {
                Ok(Some(output)) => Ok(output),
                Ok(None) => Err(NotDone::NoOutput("it is too large or has expired".into())),
                Err(failure) => Err(NotDone::NoOutput(failure.to_string())),
            },
            outcome => Err(NotDone::Ended(outcome)),
        }
    }
}

/// Why a call of [`Once::wrap`] has no output.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NotDone {
    /// The function did not succeed, or did not run.
    #[error("{0}")]
    Ended(Outcome),
    /// The function succeeded, in this or an earlier call, and its output cannot be read.
    #[error("the operation is done, but its output cannot be read: {0}")]
    NoOutput(String),
}

impl NotDone {
    /// Returns when a retry could succeed.
    #[must_use]
    pub fn retry(&self) -> Retry {
        match self {
            Self::Ended(outcome) => outcome.retry(),
            Self::NoOutput(_) => Retry::Backoff,
        }
    }

    /// Returns the HTTP status: [`Outcome::http_status`]. After a 409 or a 503, the client should send the request again with
    /// the same key.
    #[must_use]
    pub fn http_status(&self) -> u16 {
        match self {
            Self::Ended(outcome) => outcome.http_status(),
            Self::NoOutput(_) => 503,
        }
    }
}

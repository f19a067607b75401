//! [`Once::wrap`]: one async function once, behind any trigger.

use std::{
    fmt,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use serde::{Serialize, Serializer, de::DeserializeOwned, ser::Error as _};
use serde_json::value::{RawValue, to_raw_value};

use super::{Once, Operation, Outcome, Retry};
use crate::{
    deadline::Deadline,
    handler::{Attempt, Classify, Delivery, Failure},
    protocol::{Fingerprint, Key, Owner, Timestamp},
    store::Store,
};

/// Part of the time that is kept for the record.
const RESERVE: Duration = Duration::from_millis(500);

impl<S: Store> Once<S> {
    /// Runs an async function once under `key`, in a function that is not an SQS consumer: an HTTP API, a stream, a task of
    /// Step Functions. [`until`](Wrapped::until) or [`within`](Wrapped::within) runs it, and returns its output, from this or
    /// an earlier call.
    ///
    /// The output is stored as JSON. The function gets the [`Attempt`], with the prior attempt and the
    /// [call key](Attempt::call_key), and its [`Failure`] decides about the next call, as with a handler. The key names the
    /// operation: what the caller repeats, and not what each request has anew.
    ///
    /// ```
    /// use std::time::Duration;
    /// use sqs_once::{Attempt, Failure, Once, protocol::{Key, Namespace}, store::MemoryStore};
    ///
    /// async fn charge(order: &str, attempt: Attempt) -> Result<String, Failure> {
    ///     Ok(format!("charged {order} as {}", attempt.call_key()))
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let once = Once::new(MemoryStore::default());
    /// let key = Key::new(&Namespace::new("payments")?, ["o-1"])?;
    /// let time = Duration::from_secs(10);
    /// let first: String = once.wrap(key.clone(), |attempt| charge("o-1", attempt)).within(time).await?;
    /// let again = once.wrap(key, |attempt| charge("o-1", attempt)).within(time).await?;
    /// assert_eq!(first, again);
    /// # Ok(()) }
    /// ```
    ///
    /// # Dropping the call
    ///
    /// To drop the returned future, or to end the process while it runs, is a crash: nobody knows whether the function had its
    /// effect. The next call under the key waits for the end of the lease and then runs alone. So give it a time that fits into
    /// the invocation, and `tokio::spawn` it where a server drops the request of a client that went away.
    pub fn wrap<F>(&self, key: Key, function: F) -> Wrapped<'_, S, F> {
        Wrapped {
            once: self,
            key,
            fingerprint: None,
            request_id: None,
            function,
        }
    }
}

/// A call of [`Once::wrap`].
#[must_use = "nothing runs before `until` or `within`"]
pub struct Wrapped<'a, S, F> {
    once: &'a Once<S>,
    key: Key,
    fingerprint: Option<Fingerprint>,
    request_id: Option<String>,
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
    /// Sets what must not change under the key. A call with another payload ends with [`Outcome::KeyReused`]. Without it, it
    /// gets the output of the first.
    pub fn payload(self, payload: &[u8]) -> Self {
        let fingerprint = Some(Fingerprint::of(payload));
        Self {
            fingerprint,
            ..self
        }
    }

    /// Sets the id of a request or an event that the trigger repeats. After a permanent failure, a call with the same id does
    /// not run again. Without it, every call is a request of its own, and runs again after a permanent failure.
    pub fn request_id(self, request_id: impl Into<String>) -> Self {
        let request_id = Some(request_id.into());
        Self { request_id, ..self }
    }

    /// Runs the function, unless its output is recorded, in a Lambda function that ends the invocation at this time:
    /// `Timestamp::from_millis(context.deadline)`. The function is cut off half a second before.
    ///
    /// # Errors
    ///
    /// [`NotDone`] if there is no output: the function failed now or before, another call under the key is in progress, or the
    /// store does not respond.
    pub async fn until<O, E, Fut>(self, ends_at: Timestamp) -> Result<O, NotDone>
    where
        F: FnOnce(Attempt) -> Fut + Send,
        Fut: Future<Output = Result<O, E>> + Send,
        O: Serialize + DeserializeOwned + Send,
        E: Classify,
    {
        let now = self.once.records.now();
        self.within(now.until(ends_at)).await
    }

    /// Runs the function, unless its output is recorded, and cuts it off half a second before this time is over, or after half
    /// of it if that is later.
    ///
    /// # Errors
    ///
    /// As [`until`](Self::until).
    pub async fn within<O, E, Fut>(self, time: Duration) -> Result<O, NotDone>
    where
        F: FnOnce(Attempt) -> Fut + Send,
        Fut: Future<Output = Result<O, E>> + Send,
        O: Serialize + DeserializeOwned + Send,
        E: Classify,
    {
        let once = self.once;
        let deadline = Deadline::after(once.records.now(), time, RESERVE);
        let request_id = self
            .request_id
            .unwrap_or_else(|| Owner::fresh().as_str().to_owned());
        let delivery = Delivery::new(request_id);
        let operation = Operation::new(self.key, self.fingerprint, delivery, deadline);
        let (function, fresh) = (self.function, Mutex::new(None));
        let call = |attempt| async {
            let output = function(attempt).await.map_err(E::classify)?;
            let json = Json(to_raw_value(&output).ok());
            *fresh.lock().unwrap_or_else(PoisonError::into_inner) = Some(output);
            Ok(json)
        };
        let outcome = once.run(operation, call).await;
        let result = match outcome {
            Outcome::Completed(result)
            | Outcome::Duplicate(result)
            | Outcome::Reconciled(result) => result,
            outcome => return Err(NotDone::Ended(outcome)),
        };
        if let Some(output) = fresh.into_inner().unwrap_or_else(PoisonError::into_inner) {
            return Ok(output);
        }
        match once.stored(result).output().await {
            Ok(Some(output)) => Ok(output),
            Ok(None) => Err(NotDone::NotStored),
            Err(failure) => Err(NotDone::Unreadable(failure)),
        }
    }
}

/// An output as JSON, or an output that can't be written as JSON.
struct Json(Option<Box<RawValue>>);

impl Serialize for Json {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let not_json = || S::Error::custom("the output can't be written as JSON");
        self.0.as_ref().ok_or_else(not_json)?.serialize(serializer)
    }
}

/// Why a call of [`Once::wrap`] has no output.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NotDone {
    /// The function did not succeed, or did not run.
    #[error("{0}")]
    Ended(Outcome),
    /// An earlier call succeeded, and its output was not stored, because it was too large or not JSON.
    #[error("an earlier call did it, and its output was not stored")]
    NotStored,
    /// An earlier call succeeded, and its output can't be read now: it is in S3, or of another type than now.
    #[error("an earlier call did it, and its output can't be read: {0}")]
    Unreadable(Failure),
}

impl NotDone {
    /// Returns when a retry could succeed.
    #[must_use]
    pub fn retry(&self) -> Retry {
        match self {
            Self::Ended(outcome) => outcome.retry(),
            Self::Unreadable(failure) if !failure.kind().is_permanent() => Retry::Backoff,
            Self::NotStored | Self::Unreadable(_) => Retry::Never,
        }
    }

    /// Returns the HTTP status: [`Outcome::http_status`], 200 if only the output is missing, or 500 or 503 if it can't be read.
    /// After a 409 or a 503, the client should send the request again with the same key.
    #[must_use]
    pub fn http_status(&self) -> u16 {
        match self {
            Self::Ended(outcome) => outcome.http_status(),
            Self::NotStored => 200,
            Self::Unreadable(failure) if failure.kind().is_permanent() => 500,
            Self::Unreadable(_) => 503,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{protocol::Namespace, store::MemoryStore};

    const TIME: Duration = Duration::from_secs(10);

    fn key() -> Key {
        Key::new(&Namespace::new("payments").unwrap(), ["o-1"]).unwrap()
    }

    async fn call<O, E>(
        once: &Once<MemoryStore>,
        request: Option<&str>,
        answer: Result<O, E>,
    ) -> Result<O, NotDone>
    where
        O: Serialize + DeserializeOwned + Send,
        E: Classify + Send,
    {
        let mut call = once.wrap(key(), |_| async { answer });
        call.request_id = request.map(str::to_owned);
        call.within(TIME).await
    }

    fn declined() -> Result<u64, Failure> {
        Err(Failure::declined("the card was declined"))
    }

    #[tokio::test]
    async fn permanent_failure_binds_requests_of_its_id() {
        let once = Once::new(MemoryStore::default());
        let failed = call(&once, None, declined()).await.unwrap_err();
        assert_eq!((failed.http_status(), failed.retry()), (422, Retry::Never));
        // Another request, with another card.
        assert_eq!(call(&once, None, Ok::<_, Failure>(7)).await.unwrap(), 7);

        let once = Once::new(MemoryStore::default());
        let id = Some("r-1");
        call(&once, id, declined()).await.unwrap_err();
        let again = call(&once, id, Ok::<u64, Failure>(7)).await.unwrap_err();
        assert!(
            matches!(again, NotDone::Ended(Outcome::FailedBefore(_))),
            "{again}"
        );
    }

    #[tokio::test]
    async fn large_output_is_returned_once() {
        let once = Once::new(MemoryStore::default());
        let large = || Ok::<_, Failure>("x".repeat(500 * 1024));
        assert_eq!(call(&once, None, large()).await.unwrap().len(), 500 * 1024);
        let again = call(&once, None, large()).await.unwrap_err();
        assert!(matches!(again, NotDone::NotStored), "{again}");
        assert_eq!((again.http_status(), again.retry()), (200, Retry::Never));
    }

    #[tokio::test]
    async fn output_of_another_type_is_not_asked_for_again() {
        let once = Once::new(MemoryStore::default());
        call(&once, None, Ok::<_, Failure>("seven".to_owned()))
            .await
            .unwrap();
        let number = call(&once, None, Ok::<u64, Failure>(7)).await.unwrap_err();
        assert_eq!((number.http_status(), number.retry()), (500, Retry::Never));
    }

    #[tokio::test(start_paused = true)]
    async fn slow_function_is_cut_off_and_not_a_crash() {
        let once = Once::new(MemoryStore::default());
        let slow = once.wrap(key(), |_| std::future::pending::<Result<(), Failure>>());
        let ends_at = Timestamp::now() + TIME;
        let cut_off = slow.until(ends_at).await.unwrap_err();
        assert!(
            matches!(cut_off, NotDone::Ended(Outcome::OutOfTime)),
            "{cut_off}"
        );
    }
}

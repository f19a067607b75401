//! [`Failure`]: why a handler failed, which decides what the next attempt does.

use std::{borrow::Cow, error::Error, fmt, time::Duration};

use super::InvalidMessage;

pub(super) type BoxError = Box<dyn Error + Send + Sync>;

/// Why a handler failed, which decides what happens to the record and in the next attempt.
///
/// | kind | written as | the record | the next attempt |
/// | --- | --- | --- | --- |
/// | [retryable](Self::retryable) | `?` | the lease ends, the record stays | runs after a backoff, and [sees this prior attempt](crate::Attempt::prior), which may have had its effect |
/// | [no effect](Self::no_effect) | [`.no_effect()?`](ResultExt::no_effect) | as it was before this attempt | runs after a backoff, and does not see this attempt |
/// | [permanent](Self::permanent) | [`.permanent()?`](ResultExt::permanent) | `FAILED`, with the error; this attempt stays open | does not run for this message; a later message under the key [sees this attempt](crate::Attempt::prior) |
/// | [permanent, no effect](Self::permanent_no_effect) | [`.permanent_no_effect()?`](ResultExt::permanent_no_effect) | `FAILED`, with the error | does not run for this message; a later message does not see this attempt |
/// | [declined](Self::declined) | [`.declined()?`](ResultExt::declined) | `FAILED`, with the error; no attempt is open | does not run for this message; a later message sees no attempt, and has a new [call key](crate::Attempt::call_key) |
///
/// `?` accepts every error type, `anyhow::Error`, `Box<dyn Error + Send + Sync>` and strings. `?` makes a *retryable*
/// failure, because a request that timed out may have had its effect.
///
/// An error type of your own keeps its kinds if it implements [`Classify`].
///
/// The text of the error and its causes is logged. If the failure is permanent, the record also stores the text. Keep
/// payload out of it. The error texts of `serde_json` quote the JSON that it can't read, so a `Failure` replaces them, as
/// [`InvalidMessage::json`] does.
///
/// ```
/// use std::net::{SocketAddr, TcpStream};
/// use sqs_once::{Failure, FailureKind, ResultExt};
///
/// fn charge(amount: &str, gateway: SocketAddr) -> Result<u64, Failure> {
///     let cents: u64 = amount.parse().permanent_no_effect()?; // not a number in any attempt
///     let connection = TcpStream::connect(gateway).no_effect()?; // nothing was sent
///     connection.set_nodelay(true)?; // from here on: retryable
///     Ok(cents)
/// }
/// let closed_port = SocketAddr::from(([127, 0, 0, 1], 1));
/// let kind = |amount| charge(amount, closed_port).unwrap_err().kind();
/// assert_eq!(kind("one"), FailureKind::PermanentNoEffect);
/// assert_eq!(kind("150"), FailureKind::NoEffect);
/// ```
pub struct Failure {
    kind: FailureKind,
    error: BoxError,
    retry_after: Option<Duration>,
    is_for_all: bool,
}

/// The kind of a [`Failure`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FailureKind {
    /// A later attempt may succeed (timeout, 5xx, throttling, deadlock). This attempt may have had its
    /// effect.
    Retryable,
    /// A later attempt may succeed. This attempt certainly had no effect: the request was never sent, or the
    /// called system rejected it first.
    NoEffect,
    /// Every attempt with this message would fail, for example because the called system refuses its data. This attempt, or
    /// an earlier one, may have had its effect.
    Permanent,
    /// Every attempt with this message would fail, and this one certainly had no effect, for example because validation
    /// failed before the request.
    PermanentNoEffect,
    /// The called system has answered that it did nothing for this [call key](crate::Attempt::call_key) and never will,
    /// for example because the card was declined.
    Declined,
}

impl FailureKind {
    /// Returns whether every attempt with this message would fail.
    #[must_use]
    pub const fn is_permanent(self) -> bool {
        matches!(
            self,
            Self::Permanent | Self::PermanentNoEffect | Self::Declined
        )
    }
}

impl Failure {
    /// Creates a retryable failure from an error or a string, as `?` does.
    ///
    /// ```
    /// let failure = sqs_once::Failure::retryable("the gateway answered 503");
    /// assert_eq!(failure.to_string(), "the gateway answered 503");
    /// ```
    pub fn retryable(why: impl Into<BoxError>) -> Self {
        Self::new(FailureKind::Retryable, why)
    }

    /// Creates a failure without an effect, from an error or a string.
    ///
    /// ```
    /// let failure = sqs_once::Failure::no_effect("the gateway refused the connection");
    /// assert_eq!(failure.to_string(), "the gateway refused the connection");
    /// ```
    pub fn no_effect(why: impl Into<BoxError>) -> Self {
        Self::new(FailureKind::NoEffect, why)
    }

    /// Creates a permanent failure from an error or a string.
    ///
    /// ```
    /// let failure = sqs_once::Failure::permanent("the gateway answered 400");
    /// assert_eq!(failure.to_string(), "the gateway answered 400");
    /// ```
    pub fn permanent(why: impl Into<BoxError>) -> Self {
        Self::new(FailureKind::Permanent, why)
    }

    /// Creates a permanent failure from an error or a string, for an attempt that certainly had no effect.
    ///
    /// ```
    /// let failure = sqs_once::Failure::permanent_no_effect("the amount is 0");
    /// assert!(failure.kind().is_permanent());
    /// ```
    pub fn permanent_no_effect(why: impl Into<BoxError>) -> Self {
        Self::new(FailureKind::PermanentNoEffect, why)
    }

    /// Creates a permanent failure after the called system has answered that it did nothing for this attempt's
    /// [call key](crate::Attempt::call_key) and never will, for example because the card was declined.
    ///
    /// Use it only for a system that got the call key and honours it. Such a system would have answered with an earlier success, so
    /// no attempt is open any more. The next attempt, for a later message or after a redrive, has a new call key, so the system
    /// decides again.
    ///
    /// ```
    /// let failure = sqs_once::Failure::declined("the gateway answered 402: card declined");
    /// assert!(failure.kind().is_permanent());
    /// ```
    pub fn declined(why: impl Into<BoxError>) -> Self {
        Self::new(FailureKind::Declined, why)
    }

    fn new(kind: FailureKind, why: impl Into<BoxError>) -> Self {
        Self {
            kind,
            error: why.into(),
            retry_after: None,
            is_for_all: false,
        }
    }

    /// Returns a function that makes a failure like this one from an error that wraps its error.
    pub(super) fn wrapper(&self) -> impl FnOnce(BoxError) -> Self + use<> {
        let (kind, retry_after, is_for_all) = (self.kind, self.retry_after, self.is_for_all);
        move |error| Self {
            kind,
            error,
            retry_after,
            is_for_all,
        }
    }

    /// Asks the consumer to wait at least this long for the next attempt, for example the `Retry-After` of a 429
    /// or a 503. The consumer waits for this time or its backoff, whichever is longer, but no longer than the backoff's
    /// cap (`CONSUMER_BACKOFF_CAP`). A permanent failure ignores it.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// let minute = Duration::from_secs(60);
    /// let failure = sqs_once::Failure::retryable("the gateway answered 429").retry_after(minute);
    /// assert_eq!(failure.requested_wait(), Some(minute));
    /// ```
    #[must_use]
    pub fn retry_after(self, wait: Duration) -> Self {
        Self {
            retry_after: Some(wait),
            ..self
        }
    }

    /// Says that the called system refuses all requests until the wait of [`retry_after`](Self::retry_after) is over, as
    /// after a 429 for the whole account. Until then, but no longer than the backoff's cap, the circuit breaker is open:
    /// this process claims no messages, not even at their first receive.
    ///
    /// The messages of all tenants wait, so don't use `for_all` if only one tenant has reached a limit. It has no effect
    /// without [`retry_after`](Self::retry_after), in a permanent failure, or if the circuit breaker is off.
    ///
    /// ```
    /// use std::time::Duration;
    /// use sqs_once::Failure;
    ///
    /// let busy = Failure::retryable("the gateway answered 429");
    /// let busy = busy.retry_after(Duration::from_secs(60)).for_all();
    /// assert!(busy.is_for_all());
    /// ```
    #[must_use]
    pub fn for_all(self) -> Self {
        Self {
            is_for_all: true,
            ..self
        }
    }

    /// Returns whether the called system refuses all requests ([`for_all`](Self::for_all)).
    #[must_use]
    pub const fn is_for_all(&self) -> bool {
        self.is_for_all
    }

    /// Returns the wait that [`retry_after`](Self::retry_after) asked for.
    #[must_use]
    pub const fn requested_wait(&self) -> Option<Duration> {
        self.retry_after
    }

    /// Returns the kind, for tests and for code around a handler.
    #[must_use]
    pub const fn kind(&self) -> FailureKind {
        self.kind
    }

    /// Returns the error, which can be downcast.
    #[must_use]
    pub fn error(&self) -> &(dyn Error + Send + Sync + 'static) {
        &*self.error
    }
}

impl fmt::Debug for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Failure")
            .field("kind", &self.kind)
            .field("error", &format_args!("{self}"))
            .field("retry_after", &self.retry_after)
            .field("is_for_all", &self.is_for_all)
            .finish()
    }
}

/// Shows the error and its causes on one line, without the JSON that `serde_json` quotes.
impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut error: &(dyn Error + 'static) = &*self.error;
        loop {
            if let Some(json) = error.downcast_ref() {
                let why = InvalidMessage::why_not_read(json);
                write!(f, "JSON can't be read: {why}")?;
            } else if let Some(InvalidMessage(why)) = error.downcast_ref() {
                f.write_str(why)?;
            } else {
                f.write_str(&without_json(&error.to_string()))?;
            }
            match error.source() {
                Some(source) => error = source,
                None => return Ok(()),
            }
            f.write_str(": ")?;
        }
    }
}

/// Prefixes of the `serde` errors that quote their input.
const QUOTING: [&str; 6] = [
    "invalid type: ",
    "invalid value: ",
    "invalid length ",
    "unknown variant `",
    "unknown field `",
    "duplicate field `",
];

/// Removes the JSON that `serde_json` quotes from an error text, because errors such as `anyhow::Error` and
/// `#[error(transparent)]` show such a text as their own.
fn without_json(text: &str) -> Cow<'_, str> {
    let quoting = QUOTING.iter().filter_map(|start| text.find(start)).min();
    if let Some(start) = quoting {
        let before = &text[..start];
        return format!("{before}JSON can't be read: a value is not of the expected type").into();
    }
    // Any other text with a line and a column comes from a syntax error, or from the user's own `Deserialize`.
    match text.rsplit_once(" at line ") {
        Some((_, place)) if place.contains(" column ") => {
            format!("JSON can't be read, at line {place}").into()
        }
        _ => text.into(),
    }
}

// `Failure` does not implement `Error`, so that `?` can accept every error.
impl<E: Into<BoxError>> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::retryable(error)
    }
}

/// An error type that knows which [`Failure`] it is. A handler may return it in place of `Failure`
/// ([`handler_fn`](crate::handler_fn), [`handler_with`](crate::handler_with)).
///
/// In a function that returns `Failure`, `?` ignores this trait and makes any error retryable. Write
/// `.map_err(Classify::classify)?` there.
///
/// ```
/// use std::time::Duration;
/// use sqs_once::{Attempt, Classify, Failure, handler_fn};
///
/// #[derive(Debug, thiserror::Error)]
/// enum ChargeError {
///     #[error("the card was declined")]
///     Declined,
///     #[error("the gateway is busy for {0:?}")]
///     Busy(Duration),
///     #[error(transparent)]
///     Other(#[from] std::io::Error),
/// }
///
/// impl Classify for ChargeError {
///     fn classify(self) -> Failure {
///         match self {
///             Self::Declined => Failure::declined(self),
///             Self::Busy(wait) => Failure::retryable(self).retry_after(wait),
///             Self::Other(error) => Failure::retryable(error),
///         }
///     }
/// }
///
/// async fn charge(order: String, _: Attempt) -> Result<(), ChargeError> {
///     if order.is_empty() { Err(ChargeError::Declined) } else { Ok(()) }
/// }
/// let handler = handler_fn(charge);
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not say which failure it is",
    label = "a handler's error must be `Failure` or implement `Classify`",
    note = "return `Result<Output, sqs_once::Failure>`: `?` turns any error into a retryable failure",
    note = "or implement `sqs_once::Classify` for `{Self}`"
)]
pub trait Classify {
    /// Converts the error to its failure.
    fn classify(self) -> Failure;
}

impl Classify for Failure {
    fn classify(self) -> Failure {
        self
    }
}

/// Converts errors to failures that are not simply retryable.
///
/// ```
/// use sqs_once::{FailureKind, ResultExt};
///
/// let failed = "12x".parse::<u32>().permanent().unwrap_err();
/// assert_eq!(failed.kind(), FailureKind::Permanent);
/// ```
pub trait ResultExt<T>: sealed::Sealed {
    /// Converts the error to a [permanent](Failure::permanent) failure.
    ///
    /// # Errors
    ///
    /// Returns the failure if `self` is an error.
    fn permanent(self) -> Result<T, Failure>;

    /// Converts the error to a failure [without an effect](Failure::no_effect). Use it only where no side
    /// effect can have happened.
    ///
    /// # Errors
    ///
    /// Returns the failure if `self` is an error.
    fn no_effect(self) -> Result<T, Failure>;

    /// Converts the error to a permanent failure [without an effect](Failure::permanent_no_effect). Use it for
    /// checks before the first side effect.
    ///
    /// # Errors
    ///
    /// Returns the failure if `self` is an error.
    fn permanent_no_effect(self) -> Result<T, Failure>;

    /// Converts the error to a failure that the called system [declined](Failure::declined) under the call key.
    ///
    /// # Errors
    ///
    /// Returns the failure if `self` is an error.
    fn declined(self) -> Result<T, Failure>;
}

mod sealed {
    pub trait Sealed {}

    impl<T, E> Sealed for Result<T, E> {}
}

impl<T, E: Into<BoxError>> ResultExt<T> for Result<T, E> {
    fn permanent(self) -> Result<T, Failure> {
        self.map_err(Failure::permanent)
    }

    fn no_effect(self) -> Result<T, Failure> {
        self.map_err(Failure::no_effect)
    }

    fn permanent_no_effect(self) -> Result<T, Failure> {
        self.map_err(Failure::permanent_no_effect)
    }

    fn declined(self) -> Result<T, Failure> {
        self.map_err(Failure::declined)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::RecordedFailure;

    #[derive(Debug, thiserror::Error)]
    #[error(transparent)]
    struct Transparent(#[from] serde_json::Error);

    #[derive(Debug, thiserror::Error)]
    #[error("the gateway's answer")]
    struct Answer(#[from] serde_json::Error);

    #[test]
    fn json_error_is_shown_without_payload() {
        let error = || serde_json::from_str::<u64>(r#""4242-SECRET""#).unwrap_err();
        let clean = "a value is not of the expected type, at line 1, column 13";
        let shown = Failure::from(error()).to_string();
        assert_eq!(shown, format!("JSON can't be read: {clean}"));
        let shown = Failure::permanent(Answer(error())).to_string();
        assert_eq!(
            shown,
            format!("the gateway's answer: JSON can't be read: {clean}")
        );
        for leaking in [
            Failure::from(anyhow::Error::new(error())),
            Failure::permanent(anyhow::Error::new(error()).context("the order")),
            Failure::from(Transparent::from(error())),
            Failure::declined(format!("the answer: {}", error())),
        ] {
            for text in [leaking.to_string(), format!("{leaking:?}")] {
                assert!(
                    !text.contains("SECRET") && text.contains("JSON can't be read"),
                    "{text}"
                );
            }
        }
        let syntax = serde_json::from_str::<Vec<u64>>("[1,").unwrap_err();
        let shown = Failure::from(anyhow::Error::new(syntax)).to_string();
        assert_eq!(shown, "JSON can't be read, at line 1 column 3");
    }

    #[test]
    fn invalid_message_is_shown_as_it_is() {
        let error = serde_json::from_str::<RecordedFailure>("{}").unwrap_err();
        let invalid = InvalidMessage::json(&error);
        let why = "the body can't be read: missing field `at`, at line 1, column 2";
        assert_eq!(invalid.to_string(), why);
        assert_eq!(Failure::permanent_no_effect(invalid).to_string(), why);
    }

    fn question_mark<E: Into<Failure>>(error: E) -> Failure {
        error.into()
    }

    #[test]
    fn question_mark_makes_any_error_retryable() {
        let boxed: BoxError = "boxed".into();
        for (failure, text) in [
            (question_mark(std::fmt::Error), std::fmt::Error.to_string()),
            (question_mark(boxed), "boxed".to_owned()),
            (
                question_mark(anyhow::anyhow!("cause").context("any")),
                "any: cause".to_owned(),
            ),
            (question_mark("text"), "text".to_owned()),
            (question_mark(String::from("text")), "text".to_owned()),
        ] {
            assert_eq!(failure.kind(), FailureKind::Retryable, "{failure:?}");
            assert_eq!(failure.to_string(), text);
        }
    }
}

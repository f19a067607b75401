//! [`Failure`]: why a handler failed, which decides about the next attempt.

use std::{error::Error, fmt};

type BoxError = Box<dyn Error + Send + Sync>;

/// Why a handler failed, which decides about the record and the next attempt.
///
/// | failure | written as | the record | the next attempt |
/// | --- | --- | --- | --- |
/// | [`Retryable`](Self::Retryable) | `?` | the lease ends, the record stays | runs after a back-off, and [sees this prior attempt](crate::Attempt::prior), which may have had its effect |
/// | [`NoEffect`](Self::NoEffect) | [`.no_effect()?`](ResultExt::no_effect) | as it was before this attempt | runs after a back-off, and does not see this attempt |
/// | [`Permanent`](Self::Permanent) | [`.permanent()?`](ResultExt::permanent) | `FAILED`, with the error | does not run for this message |
///
/// `?` accepts every error type, `anyhow::Error`, `Box<dyn Error + Send + Sync>` and strings. It makes a
/// *retryable* failure, because a request that timed out may have had its effect.
///
/// The text of the error and its causes is logged. If the failure is permanent, the record stores the text
/// too. Keep payload out of it.
///
/// ```
/// use std::net::{SocketAddr, TcpStream};
/// use sqs_once::{Failure, ResultExt};
///
/// fn charge(amount: &str, gateway: SocketAddr) -> Result<u64, Failure> {
///     let cents: u64 = amount.parse().permanent()?; // not a number in any attempt
///     let connection = TcpStream::connect(gateway).no_effect()?; // nothing was sent
///     connection.set_nodelay(true)?; // from here on: retryable
///     Ok(cents)
/// }
/// let closed_port = SocketAddr::from(([127, 0, 0, 1], 1));
/// assert!(matches!(charge("one", closed_port), Err(Failure::Permanent(_))));
/// assert!(matches!(charge("150", closed_port), Err(Failure::NoEffect(_))));
/// ```
#[derive(Debug)]
pub enum Failure {
    /// A later attempt may succeed (timeout, 5xx, throttling, deadlock). This attempt may have had its
    /// effect.
    Retryable(BoxError),
    /// A later attempt may succeed. This attempt certainly had no effect: the request was never sent, or the
    /// called system rejected it first.
    NoEffect(BoxError),
    /// Every attempt with this message would fail: a validation error, a declined card.
    Permanent(BoxError),
}

impl Failure {
    /// Creates a retryable failure from an error or a text, as `?` does.
    ///
    /// ```
    /// let failure = sqs_once::Failure::retryable("the gateway answered 503");
    /// assert_eq!(failure.to_string(), "the gateway answered 503");
    /// ```
    pub fn retryable(why: impl Into<BoxError>) -> Self {
        Self::Retryable(why.into())
    }

    /// Creates a failure without an effect, from an error or a text.
    ///
    /// ```
    /// let failure = sqs_once::Failure::no_effect("the gateway refused the connection");
    /// assert_eq!(failure.to_string(), "the gateway refused the connection");
    /// ```
    pub fn no_effect(why: impl Into<BoxError>) -> Self {
        Self::NoEffect(why.into())
    }

    /// Creates a permanent failure from an error or a text.
    ///
    /// ```
    /// let failure = sqs_once::Failure::permanent("the card was declined");
    /// assert_eq!(failure.to_string(), "the card was declined");
    /// ```
    pub fn permanent(why: impl Into<BoxError>) -> Self {
        Self::Permanent(why.into())
    }
}

/// Shows the error and its causes in one line.
impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::Retryable(error) | Self::NoEffect(error) | Self::Permanent(error)) = self;
        write!(f, "{error}")?;
        let mut cause = error.source();
        while let Some(error) = cause {
            write!(f, ": {error}")?;
            cause = error.source();
        }
        Ok(())
    }
}

// `Failure` does not implement `Error`, so that `?` can accept every error.
impl<E: Into<BoxError>> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::Retryable(error.into())
    }
}

/// Converts errors to failures that are not simply retryable.
///
/// ```
/// use sqs_once::{Failure, ResultExt};
///
/// let failed = "12x".parse::<u32>().permanent();
/// assert!(matches!(failed, Err(Failure::Permanent(_))));
/// ```
pub trait ResultExt<T>: sealed::Sealed {
    /// Converts the error to a [`Failure::Permanent`].
    ///
    /// # Errors
    ///
    /// If `self` is an error.
    fn permanent(self) -> Result<T, Failure>;

    /// Converts the error to a [`Failure::NoEffect`]. Use it only where no side effect can have happened.
    ///
    /// # Errors
    ///
    /// If `self` is an error.
    fn no_effect(self) -> Result<T, Failure>;
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
}

#[cfg(test)]
mod tests {
    use super::*;

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
            assert!(matches!(failure, Failure::Retryable(_)), "{failure:?}");
            assert_eq!(failure.to_string(), text);
        }
    }
}

//! Why a handler could not do it: [`Failure`].

use std::{error::Error, fmt};

/// Why a handler could not do it.
///
/// `?` makes any error a transient failure; [`OrPermanent::permanent`] makes it a permanent
/// one. The error's text, with its causes, is logged, and of a permanent failure stored: keep
/// payload out of it.
///
/// ```
/// use sqs_once::{Failure, OrPermanent};
///
/// fn cents(amount: &str) -> Result<u64, Failure> {
///     let amount: f64 = amount.parse().permanent()?; // it will never be a number
///     let _rates = std::fs::read("/rates/eur")?;      // it may be there the next time
///     Ok((amount * 100.0) as u64)
/// }
/// assert!(matches!(cents("1.5"), Err(Failure::Transient(_))));
/// assert!(matches!(cents("one"), Err(Failure::Permanent(_))));
/// ```
#[derive(Debug)]
pub enum Failure {
    /// It may pass if tried again: a timeout, a 5xx, a throttle, a deadlock. Say so only if
    /// nothing has happened, or what was called knows the key: the next attempt is told of
    /// nothing.
    Transient(Box<dyn Error + Send + Sync>),
    /// It will fail again with the same input: not valid, declined.
    Permanent(Box<dyn Error + Send + Sync>),
}

impl Failure {
    /// A transient failure of an error or a text.
    ///
    /// ```
    /// let failure = sqs_once::Failure::transient("the gateway answered 503");
    /// assert_eq!(failure.to_string(), "the gateway answered 503");
    /// ```
    pub fn transient(why: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::Transient(why.into())
    }

    /// A permanent failure of an error or a text.
    ///
    /// ```
    /// let failure = sqs_once::Failure::permanent("the card was declined");
    /// assert_eq!(failure.to_string(), "the card was declined");
    /// ```
    pub fn permanent(why: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::Permanent(why.into())
    }
}

/// The error and its causes, in one line.
impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::Transient(error) | Self::Permanent(error)) = self;
        write!(f, "{error}")?;
        let mut cause = error.source();
        while let Some(error) = cause {
            write!(f, ": {error}")?;
            cause = error.source();
        }
        Ok(())
    }
}

// Not an `Error` itself: that is what lets `?` take every error.
impl<E: Error + Send + Sync + 'static> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::Transient(Box::new(error))
    }
}

/// Makes a [`Failure`] of a `Result`'s error, in one word.
///
/// ```
/// use sqs_once::{Failure, OrPermanent};
///
/// let failed = "12x".parse::<u32>().permanent();
/// assert!(matches!(failed, Err(Failure::Permanent(_))));
/// ```
pub trait OrPermanent<T> {
    /// The error as a permanent failure.
    ///
    /// # Errors
    ///
    /// Wherever `self` is one.
    fn permanent(self) -> Result<T, Failure>;
}

impl<T, E: Into<Box<dyn Error + Send + Sync>>> OrPermanent<T> for Result<T, E> {
    fn permanent(self) -> Result<T, Failure> {
        self.map_err(Failure::permanent)
    }
}

//! [`InvalidValue`]: the error for a value that a setting does not accept.

use std::borrow::Cow;

/// A setting does not accept this value. The message names the values that the setting accepts.
///
/// ```
/// use sqs_once::sqs::FifoAfterPermanent;
///
/// let invalid = "later".parse::<FifoAfterPermanent>().unwrap_err();
/// assert_eq!(invalid.to_string(), "must be `continue` or `stop`");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidValue(Cow<'static, str>);

impl InvalidValue {
    /// Creates an error with a message that says which values are valid.
    pub fn new(message: impl Into<Cow<'static, str>>) -> Self {
        Self(message.into())
    }
}

//! [`FifoAfterPermanent`]: what happens to the messages of a message group behind a permanent failure.

use std::str::FromStr;

use crate::InvalidValue;

/// How a message group goes on behind a permanent failure in its batch.
///
/// ```
/// use sqs_once::sqs::FifoAfterPermanent;
///
/// assert_eq!("continue".parse(), Ok(FifoAfterPermanent::Continue));
/// assert_eq!("stop".parse(), Ok(FifoAfterPermanent::Stop));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum FifoAfterPermanent {
    /// They run as soon as the failure is recorded. The failed message never runs again, so they do not
    /// overtake it. Behind a failure that no record has, they do not run in this batch, because another build or setting may run
    /// the failed message later: any failure on an [item](crate::ItemMode), and in every mode that of a message without a key or a
    /// body.
    #[default]
    Continue,
    /// They do not run. They are received again together with the failed message, until they reach the
    /// dead-letter queue. AWS asks functions on FIFO queues to stop at the first failure (*AWS Lambda
    /// Developer Guide*, "Implementing partial batch responses").
    Stop,
}

impl FromStr for FifoAfterPermanent {
    type Err = InvalidValue;

    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        match text {
            "continue" => Ok(Self::Continue),
            "stop" => Ok(Self::Stop),
            _ => Err(InvalidValue::new("must be `continue` or `stop`")),
        }
    }
}

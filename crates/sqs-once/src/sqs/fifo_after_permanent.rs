//! [`FifoAfterPermanent`]: what happens to a FIFO group's messages behind a permanent failure.

use std::str::FromStr;

use crate::InvalidValue;

/// The treatment of a FIFO group's messages behind a permanent failure of their batch.
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
    /// They run, once the failure is recorded: the failed message never runs again, so they do
    /// not overtake it. A failure that needs no record (an undecodable body, no key, a key that
    /// was reused) counts as recorded; one on an [item](crate::OnItem) is not recorded, and stops
    /// the group.
    #[default]
    Continue,
    /// They do not run, and are received again with the failed message: up to the dead-letter
    /// queue. AWS asks functions on FIFO queues to stop at the first failure (*AWS Lambda
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

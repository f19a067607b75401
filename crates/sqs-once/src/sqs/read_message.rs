//! [`read_message`]: reads one message as a consumer does.

use aws_lambda_events::sqs::SqsMessage;

use super::{
    Envelope, FingerprintSource, KeySource,
    identity::{Identity, IdentitySources},
    key_fn::NoIdentity,
    message::Message,
};
use crate::{Deadline, Operation, Outcome, handler::FromMessage, protocol::Namespace};

/// Reads one message as a [`Consumer`](crate::Consumer) with default settings does, but does not run it.
/// Returns its operation, with the message id as key, and its body.
///
/// # Errors
///
/// [`Outcome::Invalid`] for a message without an id, or with a body that is not a `T`; [`Outcome::Ignored`]
/// for a test event of S3.
///
/// ```
/// use std::time::Duration;
/// use aws_lambda_events::sqs::SqsMessage;
/// use sqs_once::{Deadline, protocol::{Namespace, Timestamp}, sqs::read_message};
///
/// # fn main() -> Result<(), sqs_once::protocol::KeyError> {
/// let mut record = SqsMessage::default();
/// record.message_id = Some("m-1".into());
/// record.body = Some("42".into());
/// let deadline = Deadline::after(Timestamp::now(), Duration::from_secs(30), Duration::ZERO);
/// let read = read_message::<u32>(record, &Namespace::new("numbers")?, deadline);
/// assert!(matches!(read, Ok((_, 42))));
/// # Ok(()) }
/// ```
pub fn read_message<T: FromMessage>(
    record: SqsMessage,
    namespace: &Namespace,
    deadline: Deadline,
) -> Result<(Operation, T), Outcome> {
    let sources = IdentitySources {
        namespace,
        key: &KeySource::MessageId,
        fingerprint: &FingerprintSource::Body,
    };
    let message = Message::new(record, None, Envelope::None, false)
        .ok_or_else(|| Outcome::Invalid("the message has no id".to_owned()))?;
    if message.is_s3_test() {
        return Err(Outcome::Ignored);
    }
    read(&message, &sources, deadline).map_err(|why| message.without_key(why))
}

fn read<T: FromMessage>(
    message: &Message,
    sources: &IdentitySources<'_>,
    deadline: Deadline,
) -> Result<(Operation, T), NoIdentity> {
    let identity = message.identify(message.body(), sources);
    let Identity { key, fingerprint } = identity?;
    let operation = Operation::new(key, fingerprint, message.delivery().clone(), deadline);
    let body = message.parse(message.body())?;
    Ok((operation, body))
}

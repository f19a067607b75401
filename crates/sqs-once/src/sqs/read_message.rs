//! [`read_message`]: reads one message as a consumer does.

use aws_lambda_events::sqs::SqsMessage;

use super::{
    Envelope, FingerprintSource, KeySource, body_decoder::BodyDecoder, encoding::Decoding,
    identity::Identity, key_fn::NoIdentity, message::Message,
};
use crate::{
    Deadline, Operation, Outcome,
    handler::{FromMessage, InvalidMessage},
    protocol::Namespace,
};

/// Reads one message as a [`Consumer`](crate::Consumer) with default settings does, but does not run it.
/// Returns its operation, with the message id as key, and its body.
///
/// # Errors
///
/// [`Outcome::Invalid`] for a message without an id, or with a body that is not a `T`.
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
    let (key, fingerprint) = (KeySource::MessageId, FingerprintSource::Body);
    let reading = BodyDecoder::for_type::<T>(namespace, &key, &fingerprint, Decoding::default());
    let message = Message::new(record, None, Envelope::None, &reading)
        .ok_or_else(|| Outcome::Invalid("the message has no id".to_owned()))?;
    read(&message, &reading, deadline).map_err(|why| match why {
        NoIdentity::Invalid(InvalidMessage(why)) => Outcome::Invalid(why),
        NoIdentity::KeyPanicked => Outcome::Panicked,
    })
}

fn read<T: FromMessage>(
    message: &Message,
    reading: &BodyDecoder<'_>,
    deadline: Deadline,
) -> Result<(Operation, T), NoIdentity> {
    let identity = message.identify(message.body(), reading);
    let Identity { key, fingerprint } = identity.map_err(Clone::clone)?.clone();
    let operation = Operation::new(key, fingerprint, message.delivery().clone(), deadline);
    let body = T::from_message(message.content(message.body(), reading)?)?;
    Ok((operation, body))
}

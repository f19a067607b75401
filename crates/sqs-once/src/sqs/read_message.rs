//! Reads one message as a consumer does, and does not run it: for tests of handlers.

use std::{sync::Once, time::Duration};

use aws_lambda_events::sqs::SqsMessage;

use super::{
    Consumer, Envelope, FingerprintSource, KeySource,
    identity::{Identity, IdentitySources, NoIdentity},
    message::Message,
};
use crate::{
    Deadline, Operation, Outcome, Text,
    handler::{AnyLookUp, FromMessage, Handler},
    protocol::Namespace,
};

/// Reads a message with default settings: with the message id as key. Returns its operation and its body.
///
/// # Errors
///
/// [`Outcome::Invalid`] for a message without an id, or with a body that is not a `T`; [`Outcome::Ignored`]
/// for a test event of S3.
pub(crate) fn read_message<T: FromMessage>(
    record: SqsMessage,
    namespace: &Namespace,
    deadline: Deadline,
) -> Result<(Operation, T), Outcome> {
    let sources = IdentitySources {
        namespace,
        key: &KeySource::MessageId,
        fingerprint: &FingerprintSource::Body,
        warned: &Once::new(),
    };
    read(record, &sources, Envelope::None, deadline)
}

/// A handler and its lookup.
type Called<'a, H> = (&'a H, Option<&'a dyn AnyLookUp<H>>);

impl<M, H: Handler> Consumer<M, H> {
    /// Reads the operation of a message, whatever the handler makes of its body.
    pub(crate) fn operation_of(
        &self,
        record: SqsMessage,
        deadline: Deadline,
    ) -> Result<Operation, Outcome> {
        let sources = self.identity_sources();
        let (operation, Text(_)) = read(record, &sources, self.options.envelope, deadline)?;
        Ok(operation)
    }

    /// Reads a message. Returns what is called for it, its operation and its body. The quarantine of the lookup is over.
    ///
    /// # Panics
    ///
    /// If the consumer would not start.
    pub(crate) fn read_message(
        &self,
        record: SqsMessage,
        deadline: Deadline,
    ) -> Result<(Called<'_, H>, Operation, H::Message), Outcome> {
        if let Err(error) = self.check_key() {
            panic!("the consumer does not start: {error}");
        }
        let sources = self.identity_sources();
        let (mut operation, body) = read(record, &sources, self.options.envelope, deadline)?;
        let look_up = self.asks.as_ref().map(|(look_up, _)| &**look_up);
        operation.quarantine = look_up.map(|_| Duration::ZERO);
        Ok(((&*self.handler, look_up), operation, body))
    }
}

fn read<T: FromMessage>(
    record: SqsMessage,
    sources: &IdentitySources<'_>,
    envelope: Envelope,
    deadline: Deadline,
) -> Result<(Operation, T), Outcome> {
    let message = Message::new(record, None, envelope, false)
        .ok_or_else(|| Outcome::Invalid("the message has no id".to_owned()))?;
    if message.is_s3_test() {
        return Err(Outcome::Ignored);
    }
    let read = || -> Result<_, NoIdentity> {
        let Identity { key, fingerprint } = message.identify(message.body(), sources)?;
        let operation = Operation::new(key, fingerprint, message.delivery().clone(), deadline);
        Ok((operation, message.parse(message.body())?))
    };
    read().map_err(|why| message.without_key(why))
}

//! Reads one message as a consumer does, but does not run it: for tests of handlers.

use std::time::Duration;

use aws_lambda_events::sqs::SqsMessage;

use super::{consumer::Consumer, identity::Identity, message::Message, options::Options};
use crate::{
    Deadline, Operation, Outcome,
    handler::{FromMessage, InvalidMessage},
    protocol::Namespace,
};

impl Consumer<(), ()> {
    /// Creates a consumer that can only read messages. It has default settings, so the key is the message id.
    pub(crate) fn reader(namespace: Namespace) -> Self {
        Self::with_options((), namespace, (), Options::default())
    }
}

impl<M, H> Consumer<M, H> {
    /// Reads the operation of a message, and its body as a `T`. Assumes that a lookup's quarantine is over.
    ///
    /// # Errors
    ///
    /// Returns [`Outcome::Invalid`] if the message has no id or its body isn't a `T`, and [`Outcome::Ignored`] for a test
    /// event from S3.
    pub(crate) fn read_message<T: FromMessage>(
        &self,
        sqs: SqsMessage,
        deadline: Deadline,
    ) -> Result<(Operation, T), Outcome> {
        let mut message = Message::new(sqs)
            .ok_or_else(|| Outcome::Invalid("the message has no id".to_owned()))?;
        message.open(self.options.envelope, false);
        if message.is_s3_test {
            return Err(Outcome::Ignored);
        }
        let read = message.identify(message.body(), &self.identity_sources());
        let Identity { key, fingerprint } = read.map_err(|why| message.without_key(why))?;
        let decoded = message.parse(message.body());
        let decoded = decoded.map_err(|InvalidMessage(why)| message.invalid(&why))?;
        let mut operation = Operation::new(key, fingerprint, message.delivery, deadline);
        operation.quarantine = self.asks.as_ref().map(|_| Duration::ZERO);
        Ok((operation, decoded))
    }
}

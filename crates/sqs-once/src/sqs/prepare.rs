//! [`Prepared`]: a message with its key, not yet claimed.

use std::sync::Arc;

use tracing::Span;

use super::{
    batch::Batch,
    consumer::Consumer,
    gate::{GateState, MessageGate},
    held_body::HeldBody,
    identity::Identity,
    key_fn::NoIdentity,
    message::Message,
};
use crate::{
    handler::{Handler, InvalidMessage},
    modes::{Mode, Outcome},
};

/// A message with its key, not yet claimed.
pub(super) struct Prepared<'a> {
    pub(super) message: &'a Message,
    pub(super) identity: &'a Identity,
    pub(super) gate: Arc<MessageGate>,
}

impl<M: Mode<H::Output>, H: Handler> Consumer<M, H> {
    /// Asks the circuit breaker, reads the body, and makes the key.
    ///
    /// # Errors
    ///
    /// The outcome of a message that must not be claimed.
    pub(super) async fn prepare<'a>(
        &self,
        index: usize,
        batch: &'a Arc<Batch>,
    ) -> Result<Prepared<'a>, Outcome> {
        let message = batch.message(index);
        if message.is_s3_test() {
            return Err(Outcome::Ignored);
        }
        // Parsing a body takes time too.
        if !batch.may_start() {
            return Err(Outcome::NotStarted);
        }
        let gate = self.gate(index, batch)?;
        let had_key = message.key().is_some();
        let body = gate.body().await?;
        let identity = match message.identify(body.text(message), &self.identity_sources()) {
            Ok(identity) => identity,
            Err(NoIdentity::Invalid(InvalidMessage(why))) => {
                return Err(Self::invalid(message, why));
            }
            Err(NoIdentity::KeyPanicked) => return Err(Outcome::Panicked),
        };
        if !had_key {
            message.add_key_to(&Span::current());
        }
        // Making the key may have used up the time.
        if !batch.may_start() {
            return Err(Outcome::NotStarted);
        }
        Ok(Prepared {
            message,
            identity,
            gate,
        })
    }

    /// Creates the gate of a message that the circuit breaker admits.
    fn gate(&self, index: usize, batch: &Arc<Batch>) -> Result<Arc<MessageGate>, Outcome> {
        let message = batch.message(index);
        if let Some(breaker) = &self.breaker {
            breaker
                .admit(|| self.mode.now(), message.receive_count())
                .map_err(|next_probe| Outcome::CircuitOpen { next_probe })?;
        }
        Ok(Arc::new(MessageGate {
            batch: Arc::clone(batch),
            index,
            turns: self.turns.clone(),
            s3_bodies: self.s3_bodies.clone(),
            state: GateState::default(),
        }))
    }

    /// Returns the outcome of a message that can never be processed.
    pub(super) fn invalid(message: &Message, why: &str) -> Outcome {
        Outcome::Invalid(if message.delivery().facts().envelope.is_some() {
            format!("{why}; JSON pointers start at the message inside its envelope")
        } else if message.is_in_envelope() {
            format!(
                "{why}; the message is in an envelope of SNS, EventBridge or S3, which \
                 CONSUMER_ENVELOPE=auto removes"
            )
        } else {
            why.to_owned()
        })
    }

    /// Makes the handler's message from the body.
    pub(super) fn parse(
        &self,
        message: &Message,
        body: &HeldBody,
    ) -> Result<H::Message, InvalidMessage> {
        message.parse(body.text(message))
    }
}

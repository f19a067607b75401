//! [`Prepared`]: a message with its key and its body, not yet claimed.

use std::sync::{Arc, Mutex, atomic::AtomicBool};

use tokio::time::timeout_at;
use tracing::Span;

use super::{
    batch::Batch, consumer::Consumer, gate::MessageGate, identity::Identity, key_fn::NoIdentity,
    message::Message, s3_pointer::S3Pointer,
};
use crate::{
    handler::{FromMessage as _, Handler, InvalidMessage},
    once::{Mode, Outcome},
};

/// A message with its key and its body, not yet claimed.
pub(super) struct Prepared<'a> {
    pub(super) message: &'a Message,
    pub(super) identity: &'a Identity,
    pub(super) gate: Arc<MessageGate>,
    body: HeldBody<'a>,
}

/// The body of a prepared message.
enum HeldBody<'a> {
    /// `None` if the message has no body.
    InQueue(Option<&'a str>),
    /// Read from S3. The gate holds the slot for it.
    FromS3(String),
}

impl HeldBody<'_> {
    fn text(&self) -> Option<&str> {
        match self {
            Self::InQueue(text) => *text,
            Self::FromS3(text) => Some(text),
        }
    }
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
        // Decoding and parsing a body takes time too.
        if !batch.may_start() {
            return Err(Outcome::NotStarted);
        }
        let gate = self.gate(index, batch).await?;
        let body = self.body(message, &gate).await?;
        let had_key = message.key().is_some();
        let identity = match message.identify(body.text(), &self.reading()) {
            Ok(identity) => identity,
            Err(NoIdentity::Invalid(InvalidMessage(why))) => return Err(self.invalid(message, why)),
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
            body,
        })
    }

    /// Creates the gate of a message that the circuit breaker admits.
    async fn gate(&self, index: usize, batch: &Arc<Batch>) -> Result<Arc<MessageGate>, Outcome> {
        let admitted = match &self.breaker {
            Some(breaker) => {
                let (now, latest) = (|| self.mode.now(), batch.deadline().start_by());
                let receive_count = batch.message(index).receive_count();
                match breaker.admit(&now, receive_count, latest).await {
                    Ok(admitted) => Some(Arc::new(admitted)),
                    Err(next_probe) => return Err(Outcome::CircuitOpen { next_probe }),
                }
            }
            None => None,
        };
        Ok(Arc::new(MessageGate {
            batch: Arc::clone(batch),
            index,
            turns: self.turns.clone(),
            admitted,
            is_alone: AtomicBool::new(false),
            body: Mutex::new(None),
        }))
    }

    /// Returns the body of a message, reading it from S3 if it is there. Nothing has been claimed yet. A body
    /// that is in S3, or to be decompressed, needs a slot.
    async fn body<'a>(
        &self,
        message: &'a Message,
        gate: &MessageGate,
    ) -> Result<HeldBody<'a>, Outcome> {
        let in_queue = HeldBody::InQueue(message.body());
        let in_s3 = self.s3_bodies.as_ref().zip(message.s3_pointer());
        if in_s3.is_none() && !self.reading().may_grow(message.delivery().facts()) {
            return Ok(in_queue);
        }
        let deadline = gate.batch.deadline();
        let bodies = Arc::clone(&gate.batch.places().bodies);
        let place = timeout_at(deadline.start_by(), bodies.acquire_owned())
            .await
            .ok()
            .and_then(Result::ok)
            .filter(|_| gate.batch.may_start());
        gate.hold_body(place.ok_or(Outcome::NotStarted)?);
        let Some((s3, pointer)) = in_s3 else {
            return Ok(in_queue);
        };
        let read = timeout_at(deadline.start_by(), s3.read(pointer)).await;
        let text = read.map_err(|_elapsed| {
            Outcome::NoEffect("S3 did not return the body before the deadline".into())
        })??;
        Ok(HeldBody::FromS3(text))
    }

    /// Returns the outcome of a message that can never be processed.
    pub(super) fn invalid(&self, message: &Message, why: &str) -> Outcome {
        let pointer = message.body().and_then(S3Pointer::find);
        if pointer.is_none() || self.s3_bodies.is_some() {
            return Outcome::Invalid(why.to_owned());
        }
        Outcome::Invalid(format!(
            "{why}; the body is in S3: set CONSUMER_S3_BUCKETS, which needs the feature `s3`"
        ))
    }

    /// Makes the handler's message from the body.
    pub(super) fn parse(&self, prepared: &Prepared<'_>) -> Result<H::Message, InvalidMessage> {
        let (message, text) = (prepared.message, prepared.body.text());
        H::Message::from_message(message.content(text, &self.reading())?)
    }
}

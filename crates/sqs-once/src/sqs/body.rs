//! [`Body`]: the body of a message that is running, which may come from S3.

use super::{consumer::Consumer, message::Message, process::BodyMemory};
use crate::{
    handler::Handler,
    modes::{Mode, Outcome},
    system::{self, Instant, timeout_at},
};

#[derive(Debug)]
pub(super) enum Body {
    OfMessage,
    OfS3 { text: String, _memory: BodyMemory },
}

impl Body {
    /// Returns the text, or `None` if the message has no body.
    pub(super) fn text<'a>(&'a self, message: &'a Message) -> Option<&'a str> {
        match self {
            Self::OfMessage => message.body(),
            Self::OfS3 { text, .. } => Some(text),
        }
    }
}

impl<M: Mode<H::Output>, H: Handler> Consumer<M, H> {
    /// Returns the body of a message. If the body is in S3, waits for memory and reads it. Returns `None` if S3 no longer has it.
    ///
    /// # Errors
    ///
    /// Returns the message's outcome if S3 did not return the body, or memory did not become free in time.
    pub(super) async fn body(
        &self,
        message: &Message,
        latest: Instant,
    ) -> Result<Option<Body>, Outcome> {
        let (Some(s3), Some(pointer)) = (&self.options.s3_bodies, &message.s3_pointer) else {
            return Ok(Some(Body::OfMessage));
        };
        let memory = self.process.memory_of_body(s3.max_bytes(), latest).await;
        let Some(memory) = memory.filter(|_| system::instant() < latest) else {
            tracing::warn!("no memory in time for a body in S3: other messages hold theirs");
            return Err(Outcome::NotStarted);
        };
        let read = timeout_at(latest, s3.read(pointer)).await;
        let text = read.map_err(|_elapsed| {
            Outcome::NoEffect("S3 did not return the body before the deadline".into())
        })??;
        Ok(text.map(|text| Body::OfS3 {
            _memory: memory.shrink_to(text.len()),
            text,
        }))
    }
}

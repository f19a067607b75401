//! [`HeldBody`]: the body of a message in memory, with its slot.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::{message::Message, s3_pointer::ReadBodies};
use crate::{deadline::Deadline, modes::Outcome, system::timeout_at};

/// The body of a message in memory. It occupies a slot if it is from S3.
pub(super) struct HeldBody {
    /// `None` if the body is in the queue.
    pub(super) from_s3: Option<String>,
    _slot: Option<OwnedSemaphorePermit>,
}

impl HeldBody {
    /// If the body is in S3, waits for a slot and reads it.
    ///
    /// # Errors
    ///
    /// The outcome of the message, if there was no slot in time or S3 did not return the body.
    pub(super) async fn read(
        message: &Message,
        s3_bodies: Option<&dyn ReadBodies>,
        slots: &Arc<Semaphore>,
        deadline: Deadline,
    ) -> Result<Self, Outcome> {
        let Some((s3, pointer)) = s3_bodies.zip(message.s3_pointer()) else {
            return Ok(Self {
                from_s3: None,
                _slot: None,
            });
        };
        let slot = timeout_at(deadline.start_by(), Arc::clone(slots).acquire_owned())
            .await
            .ok()
            .and_then(Result::ok)
            .filter(|_| deadline.may_start())
            .ok_or(Outcome::NotStarted)?;
        let read = timeout_at(deadline.start_by(), s3.read(pointer)).await;
        let text = read.map_err(|_elapsed| {
            Outcome::NoEffect("S3 did not return the body before the deadline".into())
        })?;
        Ok(Self {
            from_s3: Some(text?),
            _slot: Some(slot),
        })
    }

    /// Returns the text. `None` if the message has no body.
    pub(super) fn text<'a>(&'a self, message: &'a Message) -> Option<&'a str> {
        self.from_s3.as_deref().or_else(|| message.body())
    }
}

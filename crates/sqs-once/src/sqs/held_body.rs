//! [`HeldBody`]: the body of a message in memory, with its slot.

use std::sync::Arc;

use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::timeout_at,
};

use super::{message::Message, s3_pointer::ReadBodies};
use crate::{deadline::Deadline, once::Outcome};

/// The body of a message in memory. It occupies a slot if it is in S3, or may be larger when decompressed.
pub(super) struct HeldBody {
    /// `None` if the body is in the queue.
    pub(super) from_s3: Option<String>,
    _slot: Option<OwnedSemaphorePermit>,
}

impl HeldBody {
    /// Waits for a slot if the body needs one, and reads the body if it is in S3.
    ///
    /// # Errors
    ///
    /// The outcome of the message, if there was no slot in time or S3 did not return the body.
    pub(super) async fn read(
        message: &Message,
        needs: &BodyNeeds,
        slots: &Arc<Semaphore>,
        deadline: Deadline,
    ) -> Result<Self, Outcome> {
        let in_s3 = needs.s3_bodies.as_ref().zip(message.s3_pointer());
        if in_s3.is_none() && !needs.may_grow {
            return Ok(Self {
                from_s3: None,
                _slot: None,
            });
        }
        let slot = timeout_at(deadline.start_by(), Arc::clone(slots).acquire_owned())
            .await
            .ok()
            .and_then(Result::ok)
            .filter(|_| deadline.may_start())
            .ok_or(Outcome::NotStarted)?;
        let from_s3 = match in_s3 {
            Some((s3, pointer)) => {
                let read = timeout_at(deadline.start_by(), s3.read(pointer)).await;
                let text = read.map_err(|_elapsed| {
                    Outcome::NoEffect("S3 did not return the body before the deadline".into())
                })?;
                Some(text?)
            }
            None => None,
        };
        Ok(Self {
            from_s3,
            _slot: Some(slot),
        })
    }

    /// Returns the text. `None` if the message has no body.
    pub(super) fn text<'a>(&'a self, message: &'a Message) -> Option<&'a str> {
        self.from_s3.as_deref().or_else(|| message.body())
    }
}

/// How to get a message's body, and whether it needs a slot.
pub(super) struct BodyNeeds {
    pub(super) s3_bodies: Option<Arc<dyn ReadBodies>>,
    /// True if the decoded body may be larger than the one in the queue.
    pub(super) may_grow: bool,
}

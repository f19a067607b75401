//! [`OutputMemory`]: limits the memory for large outputs until their records are written.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::{
    protocol::StoredResult,
    system::{Instant, timeout_at},
};

/// Outputs up to this length, in bytes, need no permit, because each message's share of the memory covers them.
const SMALL: usize = 64 << 10;
/// How many copies of an output exist while the completion is sent: the item, the request's text, the connection's buffers.
const COPIES: usize = 8;
/// Bytes for each permit.
const PERMIT: usize = 1 << 10;

/// Memory for large outputs. A batch may have a hundred of them at the same time. Clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct OutputMemory(Option<(Arc<Semaphore>, usize)>);

impl OutputMemory {
    /// Limits the memory to this many bytes.
    pub(crate) fn of(bytes: usize) -> Self {
        let permits = (bytes / PERMIT).clamp(1, Semaphore::MAX_PERMITS);
        Self(Some((Arc::new(Semaphore::new(permits)), permits)))
    }

    /// Waits for memory for a large output, at most until `latest`. After that, the completion is sent without a permit,
    /// because the effect has happened.
    pub(crate) async fn wait(
        &self,
        output: &StoredResult,
        latest: Instant,
    ) -> Option<OwnedSemaphorePermit> {
        let (memory, most) = self.0.as_ref()?;
        let StoredResult::Json(json) = output else {
            return None;
        };
        if json.len() <= SMALL {
            return None;
        }
        let permits = (json.len() * COPIES / PERMIT).min(*most);
        let permits = u32::try_from(permits).ok()?;
        let acquired = Arc::clone(memory).acquire_many_owned(permits);
        timeout_at(latest, acquired).await.ok()?.ok()
    }
}

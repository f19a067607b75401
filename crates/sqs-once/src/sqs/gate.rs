//! [`MessageGate`]: decides when the handler of a message starts.

use std::sync::{
    Arc, Mutex, PoisonError,
    atomic::{AtomicBool, Ordering::Relaxed},
};

use futures_util::future::BoxFuture;
use sqs_once_core::once::{Gate, Turns};
use tokio::sync::OwnedSemaphorePermit;

use super::{batch::Batch, breaker::Admitted};

/// Decides when the handler of a message starts.
pub(super) struct MessageGate {
    pub(super) batch: Arc<Batch>,
    pub(super) index: usize,
    pub(super) turns: Turns,
    /// `None` without a circuit breaker.
    pub(super) admitted: Option<Arc<Admitted>>,
    pub(super) is_alone: AtomicBool,
    /// Slot for a body from S3.
    pub(super) body: Mutex<Option<OwnedSemaphorePermit>>,
}

impl MessageGate {
    /// Returns whether this message is a suspect that has its turn.
    pub(super) fn is_alone(&self) -> bool {
        self.is_alone.load(Relaxed)
    }

    /// Waits for a turn beside the handlers of other batches, and for a slot in this batch. Returns false if
    /// the handler must not start.
    pub(super) async fn beside_others(&self) -> bool {
        let turn = self.turns.shared(self.batch.deadline().start_by()).await;
        let is_kept = |turn| self.batch.suspects().keep(self.index, turn);
        turn.is_some_and(is_kept) && self.batch.may_start()
    }

    pub(super) fn end_turn(&self) {
        self.batch.suspects().end_turn(self.index);
        self.is_alone.store(false, Relaxed);
    }

    pub(super) fn hold_body(&self, place: OwnedSemaphorePermit) {
        *self.body.lock().unwrap_or_else(PoisonError::into_inner) = Some(place);
    }
}

impl Gate for MessageGate {
    fn alone(&self, exclusive_attempts: u64) -> BoxFuture<'_, bool> {
        Box::pin(async move {
            // Other messages need the slot of its body before this one can start.
            let body = self
                .body
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .take();
            drop(body);
            // The messages that wait for a probe run before this one.
            if let Some(admitted) = &self.admitted {
                admitted.leave_the_probe_to_others();
            }
            if !self
                .batch
                .wait_for_others(self.index, exclusive_attempts)
                .await
            {
                return false;
            }
            let turn = self.turns.alone(self.batch.deadline().start_by()).await;
            let is_kept = |turn| self.batch.suspects().keep(self.index, turn);
            let is_alone = turn.is_some_and(is_kept);
            self.is_alone.store(is_alone, Relaxed);
            is_alone
        })
    }
}

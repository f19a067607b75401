//! [`Health`] notices when the store doesn't respond to a process's claims.

use std::sync::{
    Mutex, PoisonError,
    atomic::{AtomicU32, Ordering::Relaxed},
};

use crate::{deadline::Deadline, system::Instant};

/// After this many claims in a row without a response, the worker stops claiming for the rest of the batch.
const MOST_UNANSWERED: u32 = 20;
/// Counts the claims in a row that got no response, and decides when a batch stops claiming. The next batch tries again.
#[derive(Debug, Default)]
pub(super) struct Health {
    unanswered: AtomicU32,
    /// The cutoff time of the batch with the latest of these claims.
    batch: Mutex<Option<Instant>>,
}

impl Health {
    pub(super) fn answered(&self) {
        self.unanswered.store(0, Relaxed);
    }

    pub(super) fn unanswered(&self, deadline: Deadline) {
        self.unanswered.fetch_add(1, Relaxed);
        *self.batch.lock().unwrap_or_else(PoisonError::into_inner) =
            Some(deadline.handler_cutoff());
    }

    /// Returns whether the batch with this deadline should stop claiming.
    pub(super) fn has_given_up(&self, deadline: Deadline) -> bool {
        self.unanswered.load(Relaxed) >= MOST_UNANSWERED
            && *self.batch.lock().unwrap_or_else(PoisonError::into_inner)
                == Some(deadline.handler_cutoff())
    }
}

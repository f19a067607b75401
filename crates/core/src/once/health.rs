//! [`Health`]: what the claims of a process have met lately.

use std::sync::{
    Mutex, PoisonError,
    atomic::{AtomicU32, Ordering::Relaxed},
};

use tokio::time::Instant;

use crate::deadline::Deadline;

/// After this many claims in a row without an answer, the rest of the batch is not claimed.
const MOST_UNANSWERED: u32 = 20;
/// Repetitions that the first copy of a claim earns.
const EARNED: u32 = 3;
/// Maximum number of saved repetitions.
const MOST_SAVED: u32 = 30;

/// The luck of a process with its claims lately: throttling, or no answers.
///
/// - Each claim earns three repetitions of contended claims, and at most thirty are saved. So lasting
///   throttling multiplies the claims by at most four.
/// - After twenty claims in a row without an answer, the rest of their batch fails at once. The next
///   batch tries again.
#[derive(Debug, Default)]
pub(super) struct Health {
    saved: AtomicU32,
    /// Claims in a row that ended without an answer.
    unanswered: AtomicU32,
    /// Batch of the last of them, by the end of its handlers.
    batch: Mutex<Option<Instant>>,
}

impl Health {
    /// Adds the repetitions that a claim earns.
    pub(super) fn earn_repetitions(&self) {
        let more = |saved: u32| Some((saved + EARNED).min(MOST_SAVED));
        let _always = self.saved.fetch_update(Relaxed, Relaxed, more);
    }

    /// Takes one repetition, if one is saved.
    pub(super) fn take_repetition(&self) -> bool {
        let less = |saved: u32| saved.checked_sub(1);
        self.saved.fetch_update(Relaxed, Relaxed, less).is_ok()
    }

    /// Records that the table answered a claim.
    pub(super) fn answered(&self) {
        self.unanswered.store(0, Relaxed);
    }

    /// Records that a claim ended without an answer.
    pub(super) fn unanswered(&self, deadline: Deadline) {
        self.unanswered.fetch_add(1, Relaxed);
        *self.batch.lock().unwrap_or_else(PoisonError::into_inner) = Some(deadline.stop());
    }

    /// Returns whether the batch of this deadline should claim nothing more.
    pub(super) fn has_given_up(&self, deadline: Deadline) -> bool {
        self.unanswered.load(Relaxed) >= MOST_UNANSWERED
            && *self.batch.lock().unwrap_or_else(PoisonError::into_inner) == Some(deadline.stop())
    }
}

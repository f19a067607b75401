//! [`Health`]: how the latest claims of a process went.

use std::sync::{
    Mutex, PoisonError,
    atomic::{AtomicU32, Ordering::Relaxed},
};

use crate::{deadline::Deadline, system::Instant};

/// After this many claims in a row without a response, the worker stops claiming for the rest of the batch.
const MOST_UNANSWERED: u32 = 20;
/// How many repetitions the first copy of a claim earns.
const EARNED: u32 = 3;
/// How many repetitions can be saved up.
const MOST_SAVED: u32 = 30;

/// How the claims of a process went lately: were they throttled, or did they get no response?
///
/// - Each claim earns three repetitions of contended claims, and a process saves up at most thirty. So
///   lasting throttling at most quadruples the number of claims.
/// - After twenty claims in a row without a response, the rest of their batch fails at once. The next batch
///   tries again.
#[derive(Debug, Default)]
pub(super) struct Health {
    saved: AtomicU32,
    /// Claims in a row that ended without a response.
    unanswered: AtomicU32,
    /// Batch of the latest of them, identified by the time at which its handlers end.
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

    /// Records that the table responded to a claim.
    pub(super) fn answered(&self) {
        self.unanswered.store(0, Relaxed);
    }

    /// Records that a claim ended without a response.
    pub(super) fn unanswered(&self, deadline: Deadline) {
        self.unanswered.fetch_add(1, Relaxed);
        *self.batch.lock().unwrap_or_else(PoisonError::into_inner) =
            Some(deadline.handler_cutoff());
    }

    /// Returns whether the batch of this deadline should claim nothing more.
    pub(super) fn has_given_up(&self, deadline: Deadline) -> bool {
        self.unanswered.load(Relaxed) >= MOST_UNANSWERED
            && *self.batch.lock().unwrap_or_else(PoisonError::into_inner)
                == Some(deadline.handler_cutoff())
    }
}

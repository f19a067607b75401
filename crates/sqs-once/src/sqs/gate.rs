//! [`MessageGate`]: decides when the handler of a message starts.

use std::{
    hash::{BuildHasher as _, RandomState},
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use futures_util::future::BoxFuture;

use super::{batch::Batch, held_body::HeldBody, s3_pointer::ReadBodies};
use crate::{
    modes::{Gate, Outcome, Turns},
    protocol::circuit::HandlerEnd,
};

/// Decides when the handler of a message starts.
pub(super) struct MessageGate {
    pub(super) batch: Arc<Batch>,
    pub(super) index: usize,
    pub(super) turns: Turns,
    /// `None` if no bodies are in S3.
    pub(super) s3_bodies: Option<Arc<dyn ReadBodies>>,
    pub(super) state: GateState,
}

/// How far a message is on its way to its handler.
#[derive(Default)]
pub(super) struct GateState {
    is_alone: AtomicBool,
    /// The body. A suspect that waits for its turn holds none.
    body: Mutex<Option<Arc<HeldBody>>>,
    hasher: RandomState,
    /// Of the text from S3, when it was first read: key and fingerprint are those of that text.
    first_hash: OnceLock<u64>,
    /// Outcome of the message, if its handler was not called.
    not_called: Mutex<Option<Outcome>>,
    /// How the handler ended, once it was called.
    handler_end: Mutex<Option<HandlerEnd>>,
}

impl MessageGate {
    /// Returns whether this message is a suspect that has its turn.
    pub(super) fn is_alone(&self) -> bool {
        self.state.is_alone.load(Relaxed)
    }

    /// Waits for a turn beside the handlers of other batches. Returns false if the handler must not start.
    pub(super) async fn beside_others(&self) -> bool {
        let turn = self.turns.shared(self.batch.deadline().start_by()).await;
        let is_kept = |turn| self.batch.suspects().keep(self.index, turn);
        turn.is_some_and(is_kept) && self.batch.may_start()
    }

    pub(super) fn end_turn(&self) {
        self.batch.suspects().end_turn(self.index);
        self.state.is_alone.store(false, Relaxed);
    }

    /// Returns the body, reading it unless it is in memory. A suspect must not keep it while it waits for its
    /// turn.
    ///
    /// # Errors
    ///
    /// The outcome of the message, if its body cannot be read.
    pub(super) async fn body(&self) -> Result<Arc<HeldBody>, Outcome> {
        let held = lock(&self.state.body).clone();
        if let Some(held) = held {
            return Ok(held);
        }
        let (batch, message) = (&self.batch, self.batch.message(self.index));
        let slots = batch.large_bodies();
        let body =
            HeldBody::read(message, self.s3_bodies.as_deref(), slots, batch.deadline()).await?;
        if let Some(text) = &body.from_s3 {
            let hash = self.state.hasher.hash_one(text);
            if *self.state.first_hash.get_or_init(|| hash) != hash {
                let why = "the body in S3 changed while the message waited to run alone";
                return Err(Outcome::NoEffect(why.into()));
            }
        }
        let held = Arc::new(body);
        *lock(&self.state.body) = Some(Arc::clone(&held));
        Ok(held)
    }

    /// Records the outcome of the message: its handler is not called.
    pub(super) fn not_called(&self, outcome: Outcome) {
        lock(&self.state.not_called).get_or_insert(outcome);
    }

    /// Takes the outcome of the message, if its handler was not called.
    pub(super) fn take_not_called(&self) -> Option<Outcome> {
        lock(&self.state.not_called).take()
    }

    /// Records how the handler ended, or ends if nothing else is recorded.
    pub(super) fn handler_ends(&self, end: HandlerEnd) {
        *lock(&self.state.handler_end) = Some(end);
    }

    /// Takes how the handler ended, if it was called.
    pub(super) fn take_handler_end(&self) -> Option<HandlerEnd> {
        lock(&self.state.handler_end).take()
    }
}

impl Gate for MessageGate {
    fn alone(&self, exclusive_attempts: u64) -> BoxFuture<'_, bool> {
        Box::pin(async move {
            // A batch may have many suspects. While they wait, their bodies must not fill the memory, and other
            // messages need their slots.
            lock(&self.state.body).take();
            if !self
                .batch
                .wait_for_others(self.index, exclusive_attempts)
                .await
            {
                return false;
            }
            // Before the turn, because the handlers of other batches wait for its end. Before the attempt is
            // counted, because a failure of S3 is no death.
            if let Err(outcome) = self.body().await {
                self.not_called(outcome);
                return false;
            }
            let turn = self.turns.alone(self.batch.deadline().start_by()).await;
            let is_kept = |turn| self.batch.suspects().keep(self.index, turn);
            let is_alone = turn.is_some_and(is_kept);
            self.state.is_alone.store(is_alone, Relaxed);
            is_alone
        })
    }
}

/// No panic can interrupt a change, so a poisoned lock is harmless.
fn lock<T>(value: &Mutex<T>) -> MutexGuard<'_, T> {
    value.lock().unwrap_or_else(PoisonError::into_inner)
}

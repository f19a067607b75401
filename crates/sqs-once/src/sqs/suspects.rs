//! [`Suspects`]: the messages of a batch that wait to run alone, and the turns of its handlers.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use tokio::sync::oneshot;

use crate::{
    flawed::flawed,
    modes::Turn,
    protocol::isolation::{Waiting, next_suspect},
    system::{Instant, timeout_at},
};

/// The messages of a batch that wait to run alone, and the turns of its handlers.
#[derive(Default)]
pub(super) struct Suspects(Mutex<State>);

#[derive(Default)]
struct State {
    /// Lanes that run or can still start, and suspects that wait.
    waiting: Waiting,
    wake: HashMap<usize, oneshot::Sender<()>>,
    /// Turns by the message's place in the batch. They are kept here so that they end with the response of
    /// the batch, even if a handler still blocks its thread.
    turns: HashMap<usize, Turn>,
    is_answered: bool,
}

impl Suspects {
    /// Starts with this many lanes.
    pub(super) fn begin(&self, lanes: usize) {
        self.state().waiting.active = lanes;
    }

    /// Returns whether a suspect waits.
    pub(super) fn wait(&self) -> bool {
        !self.state().waiting.suspects.is_empty()
    }

    /// Records that lanes have ended or will not start.
    pub(super) fn lanes_ended(&self, lanes: usize) {
        let mut state = self.state();
        state.waiting.active = state.waiting.active.saturating_sub(lanes);
        state.start_next();
    }

    /// Waits until every other lane has ended or waits too, and this suspect is the next one. Calls `parked`
    /// once it waits. Returns false if that took until `latest`.
    pub(super) async fn wait_for_others(
        &self,
        place: usize,
        exclusive_attempts: u64,
        latest: Instant,
        parked: impl FnOnce(),
    ) -> bool {
        let (wake, woken) = oneshot::channel();
        {
            let mut state = self.state();
            state.wake.insert(place, wake);
            state.waiting.suspects.push((exclusive_attempts, place));
            state.waiting.active = state.waiting.active.saturating_sub(1);
            state.start_next();
        }
        parked();
        if let Ok(Ok(())) = timeout_at(latest, woken).await {
            return true;
        }
        let mut state = self.state();
        // Its lane goes on, unless it was woken at the last moment.
        if state.wake.remove(&place).is_some() {
            state.waiting.suspects.retain(|(_, other)| *other != place);
            state.waiting.active += 1;
        }
        false
    }

    /// Keeps the turn of a message. Returns false if the response was already sent.
    pub(super) fn keep(&self, place: usize, turn: Turn) -> bool {
        let mut state = self.state();
        if !state.is_answered && !flawed!("a turn ends at once") {
            state.turns.insert(place, turn);
        }
        !state.is_answered
    }

    /// Ends the turn of a message, if it has one.
    pub(super) fn end_turn(&self, place: usize) {
        let _ended = self.state().turns.remove(&place);
    }

    /// Ends every turn, because the response is about to be sent.
    pub(super) fn answered(&self) {
        let mut state = self.state();
        state.is_answered = true;
        state.turns.clear();
    }

    /// No panic can interrupt a change, so a poisoned lock is harmless.
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn start_next(&mut self) {
        while let Some(next) = next_suspect(&self.waiting) {
            self.waiting.suspects.retain(|(_, place)| *place != next);
            let woken = self.wake.remove(&next).map(|wake| wake.send(()));
            // If the suspect was dropped meanwhile, nothing starts.
            if woken == Some(Ok(())) {
                self.waiting.active += 1;
            }
        }
    }
}

//! [`Batch`]: workers that run the lanes of a batch until the deadline, and the result of each message.

use std::{
    collections::VecDeque,
    convert::Infallible,
    num::NonZeroUsize,
    sync::{Arc, Mutex, OnceLock, PoisonError},
    time::Duration,
};

use tokio::{
    sync::oneshot,
    task::JoinSet,
    time::{Instant, timeout_at},
};
use tracing::Instrument as _;

use super::{
    lanes::{self, Lane, LaneFacts},
    message::Message,
    processed::Processed,
};
use crate::{deadline::Deadline, once::Outcome};

/// The messages of one invocation, and the result of each.
pub(super) struct Batch {
    messages: Vec<Message>,
    started: Vec<OnceLock<Instant>>,
    processed: Vec<OnceLock<Processed>>,
    deadline: Deadline,
}

impl Batch {
    pub(super) fn new(messages: Vec<Message>, deadline: Deadline) -> Self {
        Self {
            started: messages.iter().map(|_| OnceLock::new()).collect(),
            processed: messages.iter().map(|_| OnceLock::new()).collect(),
            messages,
            deadline,
        }
    }

    pub(super) fn deadline(&self) -> Deadline {
        self.deadline
    }

    pub(super) fn message(&self, index: usize) -> &Message {
        &self.messages[index]
    }

    /// Runs the lanes, at most `workers` at a time, until all have ended or the batch must be
    /// answered.
    pub(super) async fn run<F>(
        self: &Arc<Self>,
        workers: NonZeroUsize,
        run_lane: impl Fn(Arc<Self>, Lane) -> F + Clone + Send + 'static,
    ) where
        F: Future<Output = ()> + Send + 'static,
    {
        let lanes = Arc::new(Mutex::new(VecDeque::from(self.lanes())));
        // Dropped by the last worker: one wake-up for the whole batch.
        let (working, done) = oneshot::channel::<Infallible>();
        let working = Arc::new(working);
        let mut running = JoinSet::new();
        for _ in 0..workers.get().min(self.messages.len()) {
            let (batch, run_lane) = (Arc::clone(self), run_lane.clone());
            let (lanes, working) = (Arc::clone(&lanes), Arc::clone(&working));
            let worker = async move {
                let next = || {
                    let mut lanes = lanes.lock().unwrap_or_else(PoisonError::into_inner);
                    lanes.pop_front()
                };
                while let Some(lane) = next() {
                    run_lane(Arc::clone(&batch), lane).await;
                }
                drop(working);
            };
            running.spawn(worker.in_current_span());
        }
        drop(working);
        // Handlers are cut off, and their outcomes written, before this. Dropping the workers ends
        // those that can be ended.
        let _in_time = timeout_at(self.deadline.answer(), done).await;
    }

    fn lanes(&self) -> Vec<Lane> {
        let facts = self.messages.iter().map(|message| LaneFacts {
            key: message.key(),
            fifo_group: message.fifo_group(),
            receive_count: message.receive_count(),
        });
        lanes::plan(&facts.collect::<Vec<_>>())
    }

    /// Records the start of a message. A message is in one lane, so it starts once.
    pub(super) fn start(&self, index: usize) {
        let _first = self.started[index].set(Instant::now());
    }

    /// Records and logs the result of a message. Returns false for a message that has a result already,
    /// as after [`close`](Self::close), and then does neither.
    pub(super) fn end(&self, index: usize, processed: Processed) -> bool {
        let started = self.started[index].get();
        let duration = started.map_or(Duration::ZERO, Instant::elapsed);
        let first = self.processed[index].set(processed).is_ok();
        if let Some(processed) = self.processed[index].get().filter(|_| first) {
            processed.log(&self.messages[index], duration);
        }
        first
    }

    /// Ends the messages without a result, and names in one log line those that the deadline ended.
    /// The handlers of `blocking` messages did not yield, so they could not be cut off.
    pub(super) fn close(&self) {
        let (mut cut_off, mut blocking, mut not_started) = (Vec::new(), Vec::new(), Vec::new());
        for (index, message) in self.messages.iter().enumerate() {
            let is_started = self.started[index].get().is_some();
            let outcome = if is_started {
                Outcome::OutOfTime
            } else {
                Outcome::NotStarted
            };
            let is_blocking = self.end(index, outcome.into()) && is_started;
            let processed = self.processed[index].get();
            let id = message.id().as_str();
            match processed.map(Processed::outcome) {
                Some(Outcome::OutOfTime) if is_blocking => blocking.push(id),
                Some(Outcome::OutOfTime) => cut_off.push(id),
                Some(Outcome::NotStarted) => not_started.push(id),
                _ => {}
            }
        }
        let unfinished = cut_off.len() + blocking.len() + not_started.len();
        if unfinished > 0 {
            tracing::warn!(
                unfinished,
                cut_off = ids(&cut_off),
                blocking = ids(&blocking),
                not_started = ids(&not_started),
                "messages did not finish before the deadline"
            );
        }
    }

    /// The result of each message, in the order of the event.
    pub(super) fn results(&self) -> Vec<(&Message, &Processed)> {
        let processed = self.processed.iter().map(OnceLock::get);
        let all = self.messages.iter().zip(processed);
        all.filter_map(|(message, processed)| Some((message, processed?)))
            .collect()
    }
}

/// Message ids of a log line. Each has a line of its own too, so the first hundred are enough.
fn ids(ids: &[&str]) -> String {
    ids[..ids.len().min(100)].join(" ")
}

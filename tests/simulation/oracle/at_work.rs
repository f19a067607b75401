//! [`AtWork`]: the batches whose invocations have not ended.

use std::{collections::BTreeMap, time::Duration};

use crate::ledger::{Event, Worker};

#[derive(Default)]
pub(super) struct AtWork(BTreeMap<usize, Batch>);

/// A batch, from its receive to the end of its invocation. Those of the relay have no messages.
#[derive(Default)]
pub(super) struct Batch {
    /// The worker, and when its invocation began. `None` before that.
    pub(super) invoked: Option<(Worker, Duration)>,
    /// In the order of the batch.
    pub(super) messages: Vec<String>,
}

impl AtWork {
    pub(super) fn event(&mut self, at: Duration, event: &Event) {
        match event {
            Event::Received { message, batch, .. } => {
                let batch = self.0.entry(*batch).or_default();
                batch.messages.push(message.clone());
            }
            Event::Invoked { batch, worker } => {
                self.0.entry(*batch).or_default().invoked = Some((*worker, at));
            }
            _ => {
                if let Some(batch) = event.ended_batch() {
                    self.0.remove(&batch);
                }
            }
        }
    }

    /// Returns when the invocation of the relay began.
    pub(super) fn relay_since(&self) -> Option<Duration> {
        let mut of_relay = self.0.values().filter(|batch| batch.messages.is_empty());
        of_relay.find_map(|batch| Some(batch.invoked?.1))
    }

    /// Returns the batches in which a worker has a message, and when the invocation of each began.
    pub(super) fn of<'a>(
        &'a self,
        worker: Worker,
        message: &'a str,
    ) -> impl Iterator<Item = (usize, Duration, &'a Batch)> {
        self.0.iter().filter_map(move |(number, batch)| {
            let (_, began) = batch.invoked.filter(|(of, _)| *of == worker)?;
            let has_message = batch.messages.iter().any(|id| id == message);
            has_message.then_some((*number, began, batch))
        })
    }
}

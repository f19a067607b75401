//! Settings that hold handlers back: how many run at a time, and groups that stop behind a permanent failure.

use std::collections::{BTreeMap, BTreeSet};

use super::Bench;
use crate::{
    ledger::{Event, Run, Worker},
    plan::{MOST_BY_MEMORY, Release},
};

/// Handlers of a batch that run whatever memory there is.
const LEAST: usize = 10;
/// What a message needs at least, in bytes.
const MEMORY_OF_MESSAGE: usize = 3 << 19;

#[derive(Default)]
pub(super) struct Limits {
    /// Runs that have not ended, by worker.
    running: BTreeMap<Worker, BTreeSet<Run>>,
    workers: BTreeMap<Run, Worker>,
    /// The messages of each batch in order, and the batch of each message.
    batches: BTreeMap<usize, Vec<String>>,
    batch_of: BTreeMap<String, usize>,
    /// The worker of each batch, and the messages whose handler it has started.
    started: BTreeMap<usize, (Worker, BTreeSet<String>)>,
}

impl Limits {
    pub(super) fn event(&mut self, event: &Event, bench: &mut Bench<'_>) {
        match event {
            Event::Received { message, batch, .. } => {
                let of_batch = self.batches.entry(*batch).or_default();
                of_batch.push(message.clone());
                self.batch_of.insert(message.clone(), *batch);
            }
            Event::Invoked { batch, worker } => {
                self.started.insert(*batch, (*worker, BTreeSet::new()));
            }
            Event::HandlerStarted {
                run,
                message,
                worker,
                ..
            } => {
                self.began(*run, *worker, bench);
                let batch = self.batch_of.get(message);
                let of_batch = batch.and_then(|batch| self.started.get_mut(batch));
                if let Some((_, started)) = of_batch.filter(|(of, _)| of == worker) {
                    started.insert(message.clone());
                }
            }
            Event::HandlerEnded { run, .. } => {
                if let Some(worker) = self.workers.remove(run) {
                    self.running.entry(worker).or_default().remove(run);
                }
            }
            Event::Outcome {
                message,
                outcome:
                    "permanent_failure" | "invalid" | "crashed" | "key_reused" | "failed_before",
                worker,
                ..
            } if bench.plan.stops_groups => self.failed(message, *worker, bench),
            Event::Answered { batch, .. }
            | Event::InvocationLost { batch }
            | Event::InvocationFailed { batch, .. }
            | Event::BadResponse { batch, .. } => {
                self.batches.remove(batch);
                self.started.remove(batch);
            }
            _ => {}
        }
    }

    fn began(&mut self, run: Run, worker: Worker, bench: &mut Bench<'_>) {
        let running = self.running.entry(worker).or_default();
        running.insert(run);
        self.workers.insert(run, worker);
        let most = bench.plan.invocations * most(bench.release_of(worker), bench.plan.invocations);
        let most = bench.plan.layer.unwrap_or(most).min(most);
        let number = running.len();
        bench.check(
            "handlers at a time are bounded",
            number <= most,
            &[],
            || format!("run {run} of worker {worker} is one of {number}: {running:?}"),
        );
    }

    /// Behind a permanent failure, nothing of its group has run in the batch.
    fn failed(&self, message: &String, worker: Worker, bench: &mut Bench<'_>) {
        let batch = self.batch_of.get(message);
        let of_batch =
            batch.and_then(|batch| Some((self.batches.get(batch)?, self.started.get(batch)?)));
        let Some((messages, (_, started))) = of_batch.filter(|(_, (of, _))| *of == worker) else {
            return;
        };
        let group = bench.messages[message].group.clone();
        let behind = messages.iter().skip_while(|id| *id != message).skip(1);
        let of_group = |id: &&String| bench.messages[*id].group == group;
        let ran = behind.filter(of_group).find(|id| started.contains(*id));
        let ran = ran.cloned();
        bench.check("a stopped group waits", ran.is_none(), &[message], || {
            format!("{ran:?} ran behind {message}, which had failed in the same batch")
        });
    }
}

/// Returns how many handlers of a batch run at a time, at most.
fn most(release: Release, invocations: usize) -> usize {
    match release.memory {
        Some(memory) => (memory / invocations / MEMORY_OF_MESSAGE).clamp(LEAST, MOST_BY_MEMORY),
        None => release.concurrency,
    }
}

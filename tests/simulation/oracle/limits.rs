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
    /// The messages of each batch whose handler was started.
    started: BTreeMap<usize, BTreeSet<String>>,
}

impl Limits {
    pub(super) fn event(&mut self, event: &Event, bench: &mut Bench<'_>) {
        if let Some(batch) = event.ended_batch() {
            self.started.remove(&batch);
        }
        match event {
            Event::HandlerStarted {
                run,
                message,
                worker,
                ..
            } => {
                self.began(*run, *worker, bench);
                for (batch, ..) in bench.at_work.of(*worker, message) {
                    self.started
                        .entry(batch)
                        .or_default()
                        .insert(message.clone());
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
        let group = &bench.messages[message].group;
        let mut is_at_work = false;
        let ran = bench
            .at_work
            .of(worker, message)
            .find_map(|(batch, _, of)| {
                is_at_work = true;
                let started = self.started.get(&batch)?;
                let behind = of.messages.iter().skip_while(|id| *id != message).skip(1);
                let mut of_group = behind.filter(|id| bench.messages[*id].group == *group);
                of_group.find(|id| started.contains(*id)).cloned()
            });
        if !is_at_work {
            return;
        }
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

//! Settings that hold handlers back: how many run at a time, and groups that stop behind a permanent failure.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use super::Bench;
use crate::{
    ledger::{Event, Run, Worker},
    plan::{MOST_BY_MEMORY, Message, Release},
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
    /// When each message was last claimed as a suspect, and by which worker.
    suspects: BTreeMap<String, (Worker, Duration)>,
}

impl Limits {
    pub(super) fn event(&mut self, at: Duration, event: &Event, bench: &mut Bench<'_>) {
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
            Event::Claimed {
                message,
                worker,
                attempts_alone: 1..,
                ..
            } => {
                self.suspects.insert(message.clone(), (*worker, at));
            }
            Event::Outcome {
                message,
                outcome,
                worker,
                ..
            } if self
                .suspects
                .get(message)
                .is_some_and(|(of, _)| of == worker) =>
            {
                if let Some((_, claimed)) = self.suspects.remove(message) {
                    suspect_ended(message, *worker, claimed, outcome, bench);
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
            } if bench.plan.stops_groups => {
                let group = &bench.messages[message].group;
                let behind = self.behind(message, *worker, bench, |other| other.group == *group);
                self.waits("a stopped group waits", message, behind, bench);
            }
            Event::Outcome {
                message,
                outcome: "conflict",
                worker,
                ..
            } => {
                let of = &bench.messages[message];
                let key = bench.key(of);
                let state = bench.states.of(&key);
                if of.group.is_some() && state.is_some_and(|state| state.is_in_the_way_of(of)) {
                    // One with its key may be the only one that can end the attempt.
                    let behind = self.behind(message, *worker, bench, |other| {
                        other.group == of.group && bench.key(other) != key
                    });
                    let check = "a group waits for another payload";
                    self.waits(check, message, behind.filter(|of| !of.is_empty()), bench);
                }
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

    /// Returns the messages behind one in its batch that match, and whether the handler of each was started. `None` if the
    /// worker no longer works on the message.
    fn behind(
        &self,
        message: &String,
        worker: Worker,
        bench: &Bench<'_>,
        matches: impl Fn(&Message) -> bool,
    ) -> Option<BTreeMap<String, bool>> {
        let mut batches = bench.at_work.of(worker, message).peekable();
        batches.peek()?;
        let behind = batches.flat_map(|(batch, _, of)| {
            let started = self.started.get(&batch);
            let behind = of.messages.iter().skip_while(|id| *id != message).skip(1);
            let behind = behind.filter(|id| matches(&bench.messages[*id]));
            behind.map(move |id| {
                let has_started = started.is_some_and(|started| started.contains(id));
                (id.clone(), has_started)
            })
        });
        Some(behind.collect())
    }

    fn waits(
        &self,
        check: &'static str,
        message: &str,
        behind: Option<BTreeMap<String, bool>>,
        bench: &mut Bench<'_>,
    ) {
        let Some(behind) = behind else { return };
        let ran = behind.iter().find(|(_, has_started)| **has_started);
        bench.check(check, ran.is_none(), &[message], || {
            format!("{ran:?} ran behind {message} in the same batch")
        });
    }
}

/// A suspect that has its turn waits for nothing else, and its handler runs if there is enough time. Of two deliveries in one
/// worker, one waits for the turn of the other.
fn suspect_ended(
    message: &str,
    worker: Worker,
    claimed: Duration,
    outcome: &str,
    bench: &mut Bench<'_>,
) {
    let batches = bench.at_work.of(worker, message);
    let deliveries = batches.flat_map(|(_, began, batch)| {
        let of_message = batch.messages.iter().filter(|id| *id == message);
        of_message.map(move |_| began)
    });
    let [began] = deliveries.collect::<Vec<_>>()[..] else {
        return;
    };
    let time = bench.plan.timeouts.function;
    let (half, enough) = (began + time / 2, began + time * 3 / 4);
    if claimed > half && claimed < enough {
        let check = "P7 a suspect runs in its turn";
        bench.check(check, outcome != "not_started", &[message], || {
            format!("{message} was not started in its turn of {claimed:?}, in an invocation since {began:?}")
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

//! Metrics equal the ledger: what the consumer counted in an invocation is what happened.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use super::Bench;
use crate::{
    ledger::{Event, Worker},
    plan::{Kind, Mode},
};

/// A metric has at most so many values in a line (*Amazon CloudWatch User Guide*, "Specification: Embedded metric
/// format").
const MOST_VALUES: u64 = 100;

#[derive(Default)]
pub(super) struct Counts {
    batches: BTreeMap<usize, OfBatch>,
    /// The keys that are completed, and whether by a message of the other queue.
    completed: BTreeMap<String, bool>,
    /// The same of records that are gone, and until when they were there.
    before: BTreeMap<String, Vec<(Duration, bool)>>,
}

/// What happened in an invocation, and what the consumer has counted.
#[derive(Default)]
struct OfBatch {
    messages: Vec<String>,
    runs: u64,
    completed: u64,
    copied: BTreeSet<String>,
    /// Duplicates of what a message of another queue has completed.
    of_other_queue: u64,
    /// Another batch of the worker has one of its messages too, so it is unclear what belongs to which.
    is_unclear: bool,
    counted: Option<BTreeMap<&'static str, u64>>,
}

impl Counts {
    pub(super) fn event(&mut self, event: &Event, bench: &mut Bench<'_>) {
        match event {
            Event::Received { message, batch, .. } => {
                let of_batch = self.batches.entry(*batch).or_default();
                of_batch.is_unclear |= of_batch.messages.contains(message);
                of_batch.messages.push(message.clone());
            }
            Event::Settled {
                key,
                worker,
                is: "COMPLETED",
                ..
            } => {
                if let Some(message) = bench.claimed_for(key).cloned() {
                    let in_other_queue = bench.messages[&message].in_other_queue;
                    self.completed.insert(key.clone(), in_other_queue);
                    self.in_batch_of(*worker, &message, bench, |batch| batch.completed += 1);
                }
            }
            Event::Deleted { key } | Event::Forgotten { key } => {
                if let Some(by_other) = self.completed.remove(key) {
                    let gone = (bench.now, by_other);
                    self.before.entry(key.clone()).or_default().push(gone);
                }
            }
            Event::Outcome {
                message,
                outcome: "duplicate",
                worker,
                ..
            } => {
                let of = &bench.messages[message];
                let key = bench.key(of);
                let is_other = |by_other: bool| by_other != of.in_other_queue;
                // A record that was deleted during the invocation may have answered.
                let began = bench
                    .at_work
                    .of(*worker, message)
                    .map(|(_, began, _)| began);
                let began = began.min();
                let before = self.before.get(&key).into_iter().flatten();
                let mut before = before.filter(|(until, _)| Some(*until) >= began);
                let completed = self.completed.get(&key).copied();
                if completed.is_some_and(is_other)
                    && before.all(|(_, by_other)| is_other(*by_other))
                {
                    self.in_batch_of(*worker, message, bench, |batch| batch.of_other_queue += 1);
                }
            }
            Event::HandlerStarted {
                message, worker, ..
            } => self.in_batch_of(*worker, message, bench, |batch| batch.runs += 1),
            Event::Copied { message, .. } => {
                let batches = self.batches.values_mut();
                for of_batch in batches.filter(|of| of.messages.contains(message)) {
                    of_batch.copied.insert(message.clone());
                }
            }
            Event::Metrics { batch, counts } => {
                let of_batch = self.batches.entry(*batch).or_default();
                of_batch.counted = Some(counts.clone());
                of_batch.compare(*batch, bench);
            }
            Event::Answered { batch, failed, .. } => {
                if let Some(of_batch) = self.batches.get(batch) {
                    of_batch.answered(*batch, failed, bench);
                }
            }
            _ => {}
        }
        if let Some(batch) = event.ended_batch() {
            self.batches.remove(&batch);
        }
    }

    /// Counts something for the batch in which a worker has a message.
    fn in_batch_of(
        &mut self,
        worker: Worker,
        message: &str,
        bench: &Bench<'_>,
        count: impl Fn(&mut OfBatch),
    ) {
        let batches = bench.at_work.of(worker, message);
        let batches: Vec<_> = batches.map(|(batch, ..)| batch).collect();
        for batch in &batches {
            let of_batch = self.batches.entry(*batch).or_default();
            of_batch.is_unclear |= batches.len() > 1;
            count(of_batch);
        }
    }
}

impl OfBatch {
    fn counted(&self, name: &str) -> u64 {
        let counted = self.counted.as_ref();
        let count = counted.and_then(|counted| counted.get(name));
        count.copied().unwrap_or(0)
    }

    /// Compares the line of an invocation with what happened in it.
    fn compare(&self, batch: usize, bench: &mut Bench<'_>) {
        let size = self.messages.len() as u64;
        let (counted, failed) = (self.counted("BatchSize"), self.counted("failed"));
        let names: Vec<_> = self.messages.iter().map(String::as_str).collect();
        let said = || format!("batch {batch}: {:?}", self.counted);
        bench.check(
            "metrics: messages and failures",
            counted == size,
            &names,
            || format!("{size} messages, {}", said()),
        );
        // Messages of one key may change an item at the same time.
        let is_shared = bench.plan.mode == Mode::Item && bench.plan.invocations > 1;
        if self.is_unclear || is_shared {
            return;
        }
        let successes = ["Completed", "Duplicates", "Reconciled"];
        let successes: u64 = successes.map(|name| self.counted(name)).iter().sum();
        let dead = self.counted("DeadLettered");
        // An item has no source.
        let of_other = self.of_other_queue;
        if of_other > 0 && bench.plan.mode != Mode::Item {
            let counted = self.counted("DuplicatesOfOtherQueue");
            bench.check(
                "metrics: duplicates of another queue",
                counted >= of_other,
                &names,
                || format!("{of_other} duplicates of another queue, {}", said()),
            );
        }
        bench.check(
            "metrics: messages and failures",
            successes + dead + failed == size,
            &names,
            || {
                format!(
                    "successes, dead letters and failures are not {size}: {}",
                    said()
                )
            },
        );
        if !self.copied.is_empty() {
            let copied = self.copied.len() as u64;
            bench.check("metrics: dead letters", dead <= copied, &names, || {
                format!("{copied} copies, {}", said())
            });
        }
        let sum = |names: &[&str]| names.iter().map(|name| self.counted(name)).sum::<u64>();
        // A completion whose answer was lost is recorded, and the consumer may not know.
        let unknown = sum(&["CompletionsUnrecorded", "LeasesLost", "RetryableFailures"]);
        let most = match bench.plan.mode {
            Mode::Claim => unknown,
            // So is a write that commits with its record.
            Mode::Commit | Mode::Inbox => unknown + sum(&["failed"]),
            // An item has the keys of its changes, but does not say whose request made one.
            Mode::Item => unknown + sum(&["failed", "Duplicates"]),
        };
        let completed = sum(&["Completed", "Reconciled"]);
        if completed + self.completed > 0 {
            let holds = completed <= self.completed && self.completed <= completed + most;
            bench.check("metrics: completions", holds, &names, || {
                format!("{} completions, {}", self.completed, said())
            });
        }
        // A body that cannot be decoded has no run, but a time. So has a lookup.
        let runs = self.counted("HandlerDuration");
        let undecodable = |id: &&String| {
            bench.messages[*id].kind == Kind::Undecodable || bench.plan.gateway.is_looked_up
        };
        let odd = self.messages.iter().filter(undecodable).count() as u64;
        bench.check(
            "metrics: runs of handlers",
            self.runs.min(MOST_VALUES) <= runs && runs <= self.runs + odd,
            &names,
            || format!("{} runs, {}", self.runs, said()),
        );
    }

    fn answered(&self, batch: usize, failed: &[String], bench: &mut Bench<'_>) {
        let names: Vec<_> = self.messages.iter().map(String::as_str).collect();
        let has_line = self.counted.is_some();
        bench.check("metrics: every answer has a line", has_line, &names, || {
            format!("batch {batch} was answered without a line")
        });
        if has_line {
            let (counted, failed) = (self.counted("failed"), failed.len() as u64);
            bench.check(
                "metrics: messages and failures",
                counted == failed,
                &names,
                || format!("batch {batch}: {failed} failed, and {counted} are counted"),
            );
        }
    }
}

//! Promise 3: after a run that succeeded, its operation is charged again only with a cause: something that kept the worker from
//! recording the success.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::Bench;
use crate::ledger::{Event, Run, Worker};

#[derive(Default)]
pub(super) struct Again {
    runs: BTreeMap<Run, OfRun>,
    /// Runs that have asked the gateway for a charge, by key.
    charges: HashMap<String, BTreeSet<Run>>,
    /// Runs whose end may still be recorded.
    open: BTreeSet<Run>,
}

struct OfRun {
    key: String,
    worker: Worker,
    /// Batches of its worker that had its message.
    batches: BTreeSet<usize>,
    has_succeeded: bool,
    /// Something may have kept its worker from recording a success.
    has_cause: bool,
}

impl Again {
    pub(super) fn event(&mut self, event: &Event, bench: &mut Bench<'_>) {
        if let Some(batch) = event.ended_batch() {
            self.ended(batch);
        }
        match event {
            Event::HandlerStarted {
                run,
                message,
                key,
                worker,
                ..
            } => self.started(*run, (message, key), *worker, bench),
            Event::HandlerEnded { run, how } => {
                if let Some(of_run) = self.runs.get_mut(run) {
                    of_run.has_succeeded = *how == "ok";
                }
                if *how != "ok" {
                    self.open.remove(run);
                }
            }
            // A process that stops may lose its lease, or the time to record the end.
            Event::Killed { worker } | Event::Frozen { worker, .. } => {
                self.cause(|of_run| of_run.worker == *worker);
            }
            Event::TimedOut { worker, .. } => self.cause(|of_run| of_run.worker == *worker),
            // Whether the other worker may claim it is another check.
            Event::Claimed { key, .. } => self.cause(|of_run| of_run.key == *key),
            Event::TableFault { key, worker, .. } => self.cause(|of_run| {
                of_run.has_succeeded && of_run.worker == *worker && of_run.key == *key
            }),
            // A new operation begins. A request for the old one may still arrive.
            Event::Deleted { key } | Event::Forgotten { key } => {
                for of_run in self.runs.values_mut().filter(|of| of.key == *key) {
                    of_run.has_cause = true;
                }
            }
            Event::Settled { key, worker, .. } => self.close(|of_run| {
                of_run.has_succeeded && of_run.worker == *worker && of_run.key == *key
            }),
            Event::Charged { run, key, .. } if !bench.orphans.contains(run) => {
                self.charged(*run, key, bench);
            }
            _ => {}
        }
    }

    fn ended(&mut self, batch: usize) {
        for run in &self.open {
            if let Some(of_run) = self.runs.get_mut(run) {
                of_run.batches.remove(&batch);
            }
        }
        self.close(|of_run| of_run.batches.is_empty());
    }

    fn started(
        &mut self,
        run: Run,
        (message, key): (&str, &str),
        worker: Worker,
        bench: &Bench<'_>,
    ) {
        let batches = bench.at_work.of(worker, message);
        let of_run = OfRun {
            key: key.to_owned(),
            worker,
            batches: batches.map(|(batch, ..)| batch).collect(),
            has_succeeded: false,
            has_cause: false,
        };
        self.runs.insert(run, of_run);
        self.open.insert(run);
    }

    fn cause(&mut self, is_met: impl Fn(&OfRun) -> bool) {
        for run in &self.open {
            if let Some(of_run) = self.runs.get_mut(run) {
                of_run.has_cause |= is_met(of_run);
            }
        }
    }

    fn close(&mut self, is_over: impl Fn(&OfRun) -> bool) {
        let is_open = |run: &Run| !self.runs.get(run).is_some_and(&is_over);
        self.open.retain(is_open);
    }

    /// A request for a charge, also one that the gateway knows already.
    fn charged(&mut self, run: Run, key: &str, bench: &mut Bench<'_>) {
        let of_key = self.charges.entry(key.to_owned()).or_default();
        // A request of one run that the network doubled or delayed has no other cause.
        let earlier = of_key.range(..run).next_back().copied();
        of_key.insert(run);
        let Some((earlier, of_run)) = earlier.and_then(|one| Some((one, self.runs.get(&one)?)))
        else {
            return;
        };
        bench.check(
            "P3 charged again only with a cause",
            !of_run.has_succeeded || of_run.has_cause,
            &[key],
            || format!("run {run} charged {key} again after run {earlier} had succeeded"),
        );
    }
}

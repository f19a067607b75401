//! Promise 4: a write to the application's own items is applied once, together with the record of its operation. A charge
//! does not commit with its record, but there is no record without it: an operation is completed by a run that charged, or by
//! a lookup that found a charge.

use std::collections::{BTreeMap, HashMap};

use super::{Bench, replays::run_of};
use crate::{
    gateway::FOUND,
    ledger::{Event, Run, Worker},
    plan::Mode,
};

#[derive(Default)]
pub(super) struct Effects {
    keys: BTreeMap<String, OfKey>,
    /// The last claim of each key, and what was done under each claim. A copy of a claim may arrive once more after a deletion.
    claims: HashMap<String, ClaimId>,
    done: HashMap<ClaimId, Done>,
    claims_of_runs: HashMap<Run, ClaimId>,
}

/// The key, the worker, and when it made the claim.
type ClaimId = (String, Worker, u64);

#[derive(Default)]
struct OfKey {
    applied: usize,
    is_completed: bool,
}

/// The runs and the lookup under one claim.
#[derive(Default)]
struct Done {
    runs: BTreeMap<Run, OfRun>,
    /// A lookup has found a charge.
    has_found: bool,
}

#[derive(Default)]
struct OfRun {
    has_charged: bool,
    has_succeeded: bool,
}

impl Effects {
    pub(super) fn event(&mut self, event: &Event, bench: &mut Bench<'_>) {
        match event {
            Event::Applied { key } => {
                let of_key = self.keys.entry(key.clone()).or_default();
                of_key.applied += 1;
                let applied = of_key.applied;
                bench.check("P4 a write is applied once", applied == 1, &[key], || {
                    format!("the write of {key} was applied {applied} times")
                });
            }
            Event::Settled {
                key,
                is: "COMPLETED",
                output,
                ..
            } => {
                if bench.plan.mode.claims() {
                    self.completed(key, output.as_deref(), bench);
                }
                if bench.plan.mode == Mode::Claim {
                    return;
                }
                let of_key = self.keys.entry(key.clone()).or_default();
                of_key.is_completed = true;
                let applied = of_key.applied;
                let check = "P4 a write commits with its record";
                bench.check(check, applied > 0, &[key], || {
                    format!("{key} is completed, and its write was not applied")
                });
            }
            Event::Claimed {
                key,
                worker,
                made_ms,
                ..
            } => {
                let id = (key.clone(), *worker, *made_ms);
                self.claims.insert(key.clone(), id);
            }
            Event::LookedUp {
                key,
                worker,
                found: true,
            } => {
                if let Some(id) = self.claim(key, *worker) {
                    self.done.entry(id).or_default().has_found = true;
                }
            }
            // A request under way may arrive after other claims.
            Event::Charged { run, .. } => self.of_run(*run, |of_run| of_run.has_charged = true),
            Event::HandlerEnded { run, how: "ok" } => {
                self.of_run(*run, |of_run| of_run.has_succeeded = true);
            }
            // A new operation begins.
            Event::Deleted { key } | Event::Forgotten { key } => {
                self.keys.remove(key);
            }
            Event::HandlerStarted {
                run, key, worker, ..
            } => {
                if let Some(id) = self.claim(key, *worker) {
                    let done = self.done.entry(id.clone()).or_default();
                    done.runs.insert(*run, OfRun::default());
                    self.claims_of_runs.insert(*run, id);
                }
            }
            _ => {}
        }
    }

    /// Returns the last claim of a key, if it is of this worker.
    fn claim(&self, key: &str, worker: Worker) -> Option<ClaimId> {
        let claim = self.claims.get(key);
        claim.filter(|(_, of, _)| *of == worker).cloned()
    }

    fn of_run(&mut self, run: Run, change: impl FnOnce(&mut OfRun)) {
        let claim = self.claims_of_runs.get(&run);
        let done = claim.and_then(|claim| self.done.get_mut(claim));
        if let Some(of_run) = done.and_then(|done| done.runs.get_mut(&run)) {
            change(of_run);
        }
    }

    /// Compares a completion with what was done under its claim.
    fn completed(&self, key: &str, output: Option<&str>, bench: &mut Bench<'_>) {
        let (mut runs, mut has_found) = (Vec::new(), false);
        let claim = self.claims.get(key);
        if let Some(done) = claim.and_then(|claim| self.done.get(claim)) {
            let has_charged = |of_run: &OfRun| of_run.has_charged && of_run.has_succeeded;
            let charged = done.runs.iter().filter(|(_, of_run)| has_charged(of_run));
            runs.extend(charged.map(|(run, _)| *run));
            has_found = done.has_found;
        }
        let is_charged = has_found || !runs.is_empty();
        bench.check(
            "a completed operation was charged",
            is_charged,
            &[key],
            || format!("{key} is completed, and under its claim no run charged it and no lookup found a charge"),
        );
        if let Some(output) = output {
            let is_its_own = has_found && output == FOUND
                || run_of(output).is_some_and(|run| runs.contains(&run));
            let check = "an output is of the charge";
            bench.check(check, is_its_own, &[key], || {
                format!("{key} is completed with {output:?} (runs {runs:?}, found: {has_found})")
            });
        }
    }

    pub(super) fn end(&self, bench: &mut Bench<'_>) {
        for (key, of_key) in &self.keys {
            let holds = of_key.applied == 0 || of_key.is_completed;
            let check = "P4 a write commits with its record";
            bench.check(check, holds, &[key], || {
                format!("the write of {key} was applied, and {key} is not completed")
            });
        }
    }
}

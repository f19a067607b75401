//! Promise 3: what a handler is told. Of the earliest attempt that may have had its effect, of nothing if there is none, and the
//! call key.

use std::collections::{BTreeMap, HashMap};

use super::{Bench, state::State};
use crate::ledger::{Event, Run, Told, Worker};

#[derive(Default)]
pub(super) struct History {
    keys: HashMap<String, OfKey>,
}

#[derive(Default)]
struct OfKey {
    /// Claims that are not undone, of which the last one may have no end yet.
    claims: Vec<OfClaim>,
    /// The end of the last claim is recorded.
    is_settled: bool,
    /// The run of each claim, and how it ended. A copy of a claim may arrive once more after a deletion.
    runs: BTreeMap<(Worker, u64), (Run, &'static str)>,
}

struct OfClaim {
    message: String,
    worker: Worker,
    made_ms: u64,
}

impl History {
    pub(super) fn event(&mut self, event: &Event, bench: &mut Bench<'_>) {
        if !bench.plan.mode.claims() {
            return;
        }
        match event {
            Event::Claimed {
                key,
                message,
                worker,
                was,
                made_ms,
                ..
            } => {
                let of_key = self.keys.entry(key.clone()).or_default();
                if *was == "nothing" {
                    of_key.forget();
                }
                of_key.is_settled = false;
                of_key.claims.push(OfClaim {
                    message: message.clone(),
                    worker: *worker,
                    made_ms: *made_ms,
                });
            }
            Event::Settled { key, is, .. } => {
                if let Some(of_key) = self.keys.get_mut(key) {
                    of_key.settled(is);
                }
            }
            Event::Deleted { key } | Event::Forgotten { key } => {
                if let Some(of_key) = self.keys.get_mut(key) {
                    of_key.forget();
                }
            }
            Event::HandlerStarted {
                run,
                key,
                worker,
                told,
                message,
                call_key,
                ..
            } => {
                let of_key = self.keys.get_mut(key);
                if let Some(of_key) = of_key.filter(|of| of.is_claimed_for(message, *worker)) {
                    of_key.started((*run, key), *worker, *told, bench);
                    has_call_key(message, key, call_key, bench);
                }
            }
            Event::HandlerEnded { run, how } => {
                let key = bench.keys.get(run);
                let of_key = key.and_then(|key| self.keys.get_mut(key));
                let mut runs = of_key
                    .into_iter()
                    .flat_map(|of_key| of_key.runs.values_mut());
                if let Some((_, end)) = runs.find(|(of_claim, _)| of_claim == run) {
                    *end = how;
                }
            }
            _ => {}
        }
    }
}

impl OfKey {
    fn forget(&mut self) {
        *self = Self {
            runs: std::mem::take(&mut self.runs),
            ..Self::default()
        };
    }

    /// Ends the last claim as its worker has recorded it.
    fn settled(&mut self, is: &str) {
        if std::mem::replace(&mut self.is_settled, true) {
            return;
        }
        let Some(claim) = self.claims.last() else {
            return;
        };
        let run = self.runs.get(&(claim.worker, claim.made_ms));
        match (run.map(|(_, end)| *end), is) {
            (_, "COMPLETED") => self.claims.clear(),
            (Some("declined"), "FAILED") => {
                self.claims.clear();
            }
            (None | Some("no effect"), _) => drop(self.claims.pop()),
            _ => {}
        }
    }

    fn started(
        &mut self,
        (run, key): (Run, &str),
        worker: Worker,
        told: Option<Told>,
        bench: &mut Bench<'_>,
    ) {
        let Some((claim, earlier)) = self.claims.split_last() else {
            return;
        };
        let id = (worker, claim.made_ms);
        self.runs.insert(id, (run, "running"));
        // The earliest by the clocks of their workers.
        let open = earlier.iter().map(|claim| claim.made_ms).min();
        match told {
            Some(told) => {
                let since = told.since_ms;
                let check = "P3 told of open attempts only";
                bench.check(check, open.is_some(), &[key], || {
                    format!("run {run} of {key} was told of an attempt since {since:?}, and none is open")
                });
                let is_earliest = open.is_none() || since == open;
                let check = "P3 told of the earliest open attempt";
                bench.check(check, is_earliest, &[key], || {
                    format!("run {run} of {key} was told of {since:?} in place of {open:?}")
                });
            }
            None => bench.check(
                "P3 told of the earliest open attempt",
                open.is_none(),
                &[key],
                || format!("run {run} of {key} was not told of an open attempt"),
            ),
        }
    }

    /// The run of a deleted claim may start beside another claim of its worker.
    fn is_claimed_for(&self, message: &str, worker: Worker) -> bool {
        let last = self.claims.last();
        last.is_some_and(|claim| claim.worker == worker && claim.message == message)
            && !self.is_settled
    }
}

/// Compares the call key of a run with that of its operation: another one after each recorded decline.
fn has_call_key(message: &str, key: &str, call_key: &str, bench: &mut Bench<'_>) {
    let generation = bench.states.of(key).map_or(0, State::generation);
    let expected = bench.call_key(&bench.messages[message], generation);
    bench.check(
        "P3 only a decline changes the call key",
        expected.as_deref() == Some(call_key),
        &[key, message],
        || format!("{message} got the call key {call_key} in place of {expected:?} ({generation} declines)"),
    );
}

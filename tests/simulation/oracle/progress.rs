//! Promise 7: everything ends, answers come in time, a message needs few receives once nothing goes wrong, and bodies
//! do not stay in memory.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    time::Duration,
};

use super::Bench;
use crate::{
    ledger::{Event, Run, Worker},
    plan::{Kind, Message, Mode},
};

/// Most receives of a good message in which nothing goes wrong: it may be behind others, wait for a lease, or be
/// delivered again.
const MOST_CALM: usize = 20;
/// Longest body of a message.
const BODY: usize = 64;

#[derive(Default)]
pub(super) struct Progress {
    /// Batches during which something stopped the process.
    stopped: BTreeSet<usize>,
    /// Batches that are at work, by worker, and those in which something went wrong.
    at_work: BTreeSet<(Worker, usize)>,
    troubled: BTreeSet<usize>,
    worker_of_run: HashMap<Run, Worker>,
    message_of_run: HashMap<Run, String>,
    /// Messages that failed permanently.
    declined: BTreeSet<String>,
    /// Batches of each message.
    batches: BTreeMap<String, Vec<usize>>,
}

impl Progress {
    pub(super) fn event(&mut self, at: Duration, event: &Event, bench: &mut Bench<'_>) {
        match event {
            Event::Received { message, batch, .. } => {
                bench.verdict.receives += 1;
                let batches = self.batches.entry(message.clone()).or_default();
                batches.push(*batch);
                // Whatever the consumer called or would have called.
                let mut outages = bench.plan.outages.iter();
                if outages.any(|outage| outage.during.contains(&at)) {
                    self.troubled.insert(*batch);
                }
            }
            Event::Invoked { batch, worker } => {
                self.at_work.insert((*worker, *batch));
            }
            Event::TableFault { worker, .. }
            | Event::SqsFault { worker }
            | Event::S3Fault { worker }
            | Event::LookUpFailed { worker } => self.trouble(*worker),
            Event::Throttled { batch }
            | Event::InvocationLost { batch }
            | Event::InvocationFailed { batch, .. } => {
                self.troubled.insert(*batch);
                self.at_work.retain(|(_, at_work)| at_work != batch);
            }
            Event::HandlerStarted {
                run,
                worker,
                message,
                ..
            } => {
                self.worker_of_run.insert(*run, *worker);
                self.message_of_run.insert(*run, message.clone());
            }
            Event::HandlerEnded {
                run,
                how: "permanent" | "declined",
            } => self.declined.extend(self.message_of_run.get(run).cloned()),
            // The failure of another message of its key is its own, and another payload has its key for good.
            Event::Outcome {
                message,
                outcome: "failed_before" | "key_reused",
                ..
            } => {
                let of = &bench.messages[message];
                let mut states = bench.states.since(&bench.key(of), bench.at_work_since());
                if states.any(|state| state.answers(of, bench.skew())) {
                    self.declined.insert(message.clone());
                }
            }
            Event::Outcome {
                message,
                outcome: "conflict",
                worker,
                ..
            } => no_own_claim(message, *worker, bench),
            Event::GatewayRefused { run }
            | Event::GatewaySilent { run }
            | Event::HandlerEnded {
                run,
                how: "retryable" | "no effect" | "panicked" | "dropped",
            } => {
                if let Some(worker) = self.worker_of_run.get(run) {
                    self.trouble(*worker);
                }
            }
            Event::Killed { worker } | Event::Frozen { worker, .. } => {
                self.trouble(*worker);
                let of_worker = self.at_work.iter().filter(|(of, _)| of == worker);
                self.stopped.extend(of_worker.map(|(_, batch)| *batch));
            }
            Event::Answered { batch, took, .. } => {
                self.at_work.retain(|(_, at_work)| at_work != batch);
                let limit = bench.plan.timeouts.function;
                bench.check("response is sound", true, &[], String::new);
                // A worker may thaw for another invocation in the instant in which this one times out.
                let is_timely = *took < limit || *took == limit && self.stopped.contains(batch);
                bench.check("P7 answer in time", is_timely, &[], || {
                    format!("batch {batch} was answered after {took:?}")
                });
            }
            Event::TimedOut {
                batch,
                worker,
                frozen,
            } => {
                let excused = *frozen || self.stopped.contains(batch);
                bench.check("P7 answer in time", excused, &[], || {
                    format!(
                        "batch {batch} was not answered in time, and nothing had stopped worker {worker}"
                    )
                });
            }
            Event::BadResponse { batch, why } => {
                bench.check("response is sound", false, &[], || {
                    format!("batch {batch}: {why}")
                });
            }
            Event::Held { worker, most, now } => {
                bench.check("bodies are let go", *now == 0, &[], || {
                    format!("worker {worker} holds {now} bytes of bodies between invocations")
                });
                let limit = bench.plan.invocations * bench.plan.batch * BODY;
                bench.check(
                    "bodies of a process are bounded",
                    *most <= limit,
                    &[],
                    || format!("worker {worker} held {most} bytes of bodies"),
                );
            }
            Event::Quiet { left } => {
                let left = *left;
                bench.check("P7 everything ends", left == 0, &[], || {
                    format!("{left} messages are still in the queue")
                });
            }
            _ => {}
        }
    }

    /// Notes that something went wrong for the batches of a worker.
    fn trouble(&mut self, worker: Worker) {
        let of_worker = self.at_work.iter().filter(|(of, _)| *of == worker);
        self.troubled.extend(of_worker.map(|(_, batch)| *batch));
    }

    /// Returns whether a message of its group has no key, so that nothing records its failure.
    fn is_behind_unreadable(&self, message: &Message, bench: &Bench<'_>) -> bool {
        let mut of_group = (bench.messages.values()).filter(|other| other.group == message.group);
        of_group.any(|other| other.kind == Kind::Undecodable)
    }

    pub(super) fn end(&self, bench: &mut Bench<'_>) {
        for id in bench.order.clone() {
            let message = &bench.messages[&id];
            // See [`Fates::has_cause`](super::fates::Fates::has_cause).
            let is_behind = message.group.is_some()
                && (bench.plan.mode == Mode::Item
                    || bench.plan.stops_groups
                    || !bench.plan.records_unreadable()
                        && self.is_behind_unreadable(message, bench));
            let is_touched = bench.touched.contains(&bench.key(message));
            let is_excused = is_touched || is_behind || self.declined.contains(&id);
            if message.kind.fails_always() || is_excused {
                continue;
            }
            let batches = self.batches.get(&id).map_or(&[][..], Vec::as_slice);
            let calm = batches
                .iter()
                .filter(|batch| !self.troubled.contains(batch));
            let calm = calm.count();
            bench.verdict.most_calm = bench.verdict.most_calm.max(calm);
            let holds = calm <= MOST_CALM || waits_for_attempt(message, bench);
            bench.check("P7 progress", holds, &[&id], || {
                format!("{id} needed {calm} receives in which nothing went wrong")
            });
        }
    }
}

/// Returns whether a message, or one of its group, waits for an open attempt with another payload: that of a message that rests
/// because it ends its process, or one that nobody is left to end.
fn waits_for_attempt(message: &Message, bench: &Bench<'_>) -> bool {
    let messages = || bench.messages.values();
    let deadly = messages().filter(|of| matches!(of.kind, Kind::Killer | Kind::Kills(_)));
    let keys: BTreeSet<_> = deadly.map(|other| bench.key(other)).collect();
    let waits = |other: &Message| {
        let key = bench.key(other);
        let state = bench.states.of(&key);
        keys.contains(&key) || state.is_some_and(|state| state.is_in_the_way_of(other))
    };
    let mut of_group = messages().filter(|other| other.group == message.group);
    waits(message) || message.group.is_some() && of_group.any(waits)
}

/// Checks a conflict: a worker whose claim was applied, but whose answer was lost, must find its claim and go on.
fn no_own_claim(message: &String, worker: Worker, bench: &mut Bench<'_>) {
    let key = bench.key(&bench.messages[message]);
    let mut at_work = bench.at_work.of(worker, message);
    let (Some((_, began, batch)), None) = (at_work.next(), at_work.next()) else {
        return;
    };
    let is_once = batch.messages.iter().filter(|id| *id == message).count() == 1;
    // A late copy of a claim may be from an earlier invocation.
    let is_own = bench.claims.get(&key).is_some_and(|claim| {
        claim.is_live
            && (claim.worker, &claim.message) == (worker, message)
            && claim.made + bench.skew() >= began
    });
    drop(at_work);
    let check = "P7 no worker waits for its own claim";
    bench.check(check, !(is_once && is_own), &[&key, message], || {
        format!("worker {worker} answered {message} with a conflict, and holds {key} itself")
    });
}

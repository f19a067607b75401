//! The oracle: every promise as a check over the ledger. Each check counts how often it was exercised.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    time::Duration,
};

use crate::{
    ledger::{Event, Run},
    plan::{Kind, Message, Plan},
};

/// What the oracle says about one world.
#[derive(Debug, Default)]
pub struct Verdict {
    /// What is wrong, with the names of the message or key.
    pub violations: Vec<Violation>,
    /// How often each check could have failed.
    pub exercised: BTreeMap<&'static str, usize>,
    pub receives: usize,
    /// Most receives of a good message in which nothing went wrong.
    pub most_calm: usize,
}

/// Most receives of a good message in which nothing goes wrong: it may be behind others, wait for a lease, or be
/// delivered again.
const MOST_CALM: usize = 40;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    pub check: &'static str,
    pub what: String,
    /// Names in the ledger.
    pub names: Vec<String>,
}

/// An earlier run under a key that may have had its effect.
struct Open {
    run: Run,
    asked: bool,
}

#[derive(Default)]
struct OfKey {
    completed: bool,
    failed: BTreeSet<String>,
    open: Vec<Open>,
    charges: usize,
}

/// Difference of two clocks that the lease margin covers, in milliseconds.
const MARGIN_MS: i64 = 1000;

pub fn judge(plan: &Plan, events: &[(Duration, Event)]) -> Verdict {
    let mut judge = Judge {
        plan,
        messages: plan
            .messages
            .iter()
            .map(|message| (&*message.id, message))
            .collect(),
        keys: HashMap::new(),
        key_of_run: HashMap::new(),
        last_claim: HashMap::new(),
        acknowledged: BTreeSet::new(),
        given_up: BTreeSet::new(),
        copied: BTreeMap::new(),
        settled: BTreeSet::new(),
        doomed: BTreeSet::new(),
        at_work: BTreeSet::new(),
        troubled: BTreeSet::new(),
        worker_of_run: HashMap::new(),
        batches: BTreeMap::new(),
        verdict: Verdict::default(),
    };
    for (at, event) in events {
        judge.event(*at, event);
    }
    judge.end();
    judge.verdict
}

struct Judge<'a> {
    plan: &'a Plan,
    messages: HashMap<&'a str, &'a Message>,
    keys: HashMap<String, OfKey>,
    key_of_run: HashMap<Run, String>,
    /// Message of the last claim of each key.
    last_claim: HashMap<String, String>,
    acknowledged: BTreeSet<String>,
    given_up: BTreeSet<String>,
    /// Messages with a copy in the dead-letter queue, and the reason.
    copied: BTreeMap<String, String>,
    /// Messages behind which their group may go on.
    settled: BTreeSet<String>,
    /// Workers that something stopped.
    doomed: BTreeSet<usize>,
    /// Batches that are at work, by worker, and those in which something went wrong.
    at_work: BTreeSet<(usize, usize)>,
    troubled: BTreeSet<usize>,
    worker_of_run: HashMap<Run, usize>,
    /// Batches of each message.
    batches: BTreeMap<String, Vec<usize>>,
    verdict: Verdict,
}

impl Judge<'_> {
    fn check(
        &mut self,
        check: &'static str,
        holds: bool,
        names: &[&str],
        what: impl FnOnce() -> String,
    ) {
        *self.verdict.exercised.entry(check).or_default() += 1;
        if !holds {
            self.verdict.violations.push(Violation {
                check,
                what: what(),
                names: names.iter().map(|&name| name.to_owned()).collect(),
            });
        }
    }

    fn event(&mut self, at: Duration, event: &Event) {
        match event {
            Event::Received { message, batch, .. } => {
                self.verdict.receives += 1;
                self.batches
                    .entry(message.clone())
                    .or_default()
                    .push(*batch);
                // Whatever the consumer called or would have called.
                if self
                    .plan
                    .outages
                    .iter()
                    .any(|outage| outage.during.contains(&at))
                {
                    self.troubled.insert(*batch);
                }
            }
            Event::Invoked { batch, worker } => {
                self.at_work.insert((*worker, *batch));
            }
            Event::TableFault { worker, .. } | Event::SqsFault { worker } => self.trouble(*worker),
            Event::Throttled { batch }
            | Event::InvocationLost { batch }
            | Event::InvocationFailed { batch, .. } => {
                self.troubled.insert(*batch);
                self.at_work.retain(|(_, at_work)| at_work != batch);
            }
            Event::GatewaySilent { run } => self.trouble_of(*run),
            Event::Claimed {
                key,
                message,
                was,
                lease_left_ms,
                ..
            } => {
                let left = lease_left_ms.unwrap_or(i64::MIN);
                if *was == "IN_PROGRESS" {
                    self.check("P1 one live claim", left < MARGIN_MS, &[key, message], || {
                        format!("{key} was claimed for {message} while another's lease had {left} ms left")
                    });
                }
                let of_key = self.keys.entry(key.clone()).or_default();
                let (completed, failed) = (of_key.completed, of_key.failed.contains(message));
                self.check(
                    "P2 completed is never claimed",
                    !completed,
                    &[key, message],
                    || format!("{key} was claimed for {message} after its completion"),
                );
                self.check(
                    "P2 failed message is never claimed",
                    !failed,
                    &[key, message],
                    || format!("{key} was claimed for {message}, whose failure is recorded"),
                );
                self.last_claim.insert(key.clone(), message.clone());
            }
            Event::Settled { key, was, is, .. } => {
                self.check(
                    "P5 no result is overwritten",
                    *was != "COMPLETED",
                    &[key],
                    || format!("{key} became {is} after its completion"),
                );
                let message = self.last_claim.get(key).cloned();
                let of_key = self.keys.entry(key.clone()).or_default();
                if *is == "COMPLETED" {
                    of_key.completed = true;
                    of_key.open.clear();
                    self.settled.extend(message);
                } else if *is == "FAILED" {
                    of_key.failed.extend(message.clone());
                    self.settled.extend(message);
                }
            }
            Event::HandlerStarted {
                run,
                message,
                key,
                told,
                ..
            } => {
                self.started(*run, message, key, *told);
            }
            Event::Charged { run, key, taken } => {
                let of_key = self.keys.entry(key.clone()).or_default();
                of_key.charges += usize::from(*taken);
                of_key
                    .open
                    .iter_mut()
                    .filter(|open| open.run == *run)
                    .for_each(|open| open.asked = true);
            }
            Event::GatewayRefused { run } => {
                self.asked(*run);
                self.trouble_of(*run);
            }
            Event::Killed { worker } | Event::Frozen { worker, .. } => {
                self.doomed.insert(*worker);
                self.trouble(*worker);
            }
            Event::HandlerEnded {
                run,
                how: "retryable",
            } => self.trouble_of(*run),
            Event::Answered { batch, took, .. } => {
                self.at_work.retain(|(_, at_work)| at_work != batch);
                let limit = self.plan.timeouts.function;
                self.check("P7 answer in time", *took < limit, &[], || {
                    format!("batch {batch} was answered after {took:?}")
                });
            }
            Event::TimedOut {
                batch,
                worker,
                frozen,
            } => {
                let excused = *frozen || self.doomed.contains(worker);
                self.check("P7 answer in time", excused, &[], || {
                    format!("batch {batch} was not answered in time, and nothing had stopped worker {worker}")
                });
            }
            Event::BadResponse { batch, why } => {
                self.check("response is sound", false, &[], || {
                    format!("batch {batch}: {why}")
                });
            }
            Event::Acknowledged { message, completed } => {
                let copied = self.copied.contains_key(message);
                self.acknowledged.insert(message.clone());
                self.settled.insert(message.clone());
                self.check(
                    "P5 acknowledged only when recorded",
                    *completed || copied,
                    &[message],
                    || format!("{message} was acknowledged, and is neither completed nor copied"),
                );
            }
            Event::Copied { message, reason } => {
                self.copied.insert(message.clone(), reason.clone());
                self.settled.insert(message.clone());
            }
            Event::ReceivesUsedUp { message } => {
                self.given_up.insert(message.clone());
                self.settled.insert(message.clone());
            }
            Event::Outcome {
                message, outcome, ..
            } => {
                if matches!(*outcome, "invalid" | "crashed" | "key_reused") {
                    self.settled.insert(message.clone());
                }
            }
            Event::Quiet { left } => {
                let left = *left;
                self.check("P7 everything ends", left == 0, &[], || {
                    format!("{left} messages are still in the queue")
                });
            }
            _ => {}
        }
    }

    /// Notes that something went wrong for the batches of a worker.
    fn trouble(&mut self, worker: usize) {
        let of_worker = self.at_work.iter().filter(|(of, _)| *of == worker);
        self.troubled.extend(of_worker.map(|(_, batch)| *batch));
    }

    fn trouble_of(&mut self, run: Run) {
        if let Some(worker) = self.worker_of_run.get(&run) {
            self.trouble(*worker);
        }
    }

    fn is_completed(&self, message: &Message) -> bool {
        let part = if self.plan.keyed_by_order {
            &message.order
        } else {
            &message.id
        };
        self.keys
            .get(&format!("orders#{part}"))
            .is_some_and(|key| key.completed)
    }

    fn asked(&mut self, run: Run) {
        let key = self.key_of_run.get(&run);
        let of_key = key.and_then(|key| self.keys.get_mut(key));
        for open in of_key.into_iter().flat_map(|of_key| &mut of_key.open) {
            open.asked |= open.run == run;
        }
    }

    fn started(&mut self, run: Run, message: &str, key: &str, told: bool) {
        let of_key = self.keys.entry(key.to_owned()).or_default();
        let (completed, failed) = (of_key.completed, of_key.failed.contains(message));
        let untold = of_key
            .open
            .iter()
            .find(|open| open.asked)
            .map(|open| open.run);
        of_key.open.push(Open { run, asked: false });
        self.key_of_run.insert(run, key.to_owned());
        self.check(
            "P2 completed never runs again",
            !completed,
            &[key, message],
            || format!("{message} ran as run {run} after {key} was completed"),
        );
        self.check(
            "P2 failed message never runs again",
            !failed,
            &[key, message],
            || format!("{message} ran as run {run} after its failure was recorded"),
        );
        if let Some(earlier) = untold {
            self.check("P3 told of earlier attempts", told, &[key, message], || {
                format!("run {run} of {key} was not told of run {earlier}")
            });
        }
        let Some(group) = self
            .messages
            .get(message)
            .and_then(|message| message.group.clone())
        else {
            return;
        };
        let ahead = self
            .plan
            .messages
            .iter()
            .take_while(|other| other.id != message);
        let waiting = ahead
            // An undecodable message has no record that its group could wait for.
            .filter(|other| other.group.as_ref() == Some(&group) && other.kind != Kind::Undecodable)
            .find(|other| !self.settled.contains(&other.id) && !self.is_completed(other))
            .map(|other| other.id.clone());
        self.check("order of a group", waiting.is_none(), &[message], || {
            format!("{message} ran before {waiting:?} of its group was settled")
        });
    }

    fn end(&mut self) {
        for message in &self.plan.messages {
            let Message { id, kind, .. } = message;
            let (acknowledged, copied) =
                (self.acknowledged.contains(id), self.copied.get(id).cloned());
            let given_up = self.given_up.contains(id);
            self.check("nothing is lost", acknowledged || given_up, &[id], || {
                format!("{id} is neither acknowledged nor in the dead-letter queue")
            });
            let dead = given_up || copied.is_some();
            match kind {
                Kind::Good | Kind::Panics(_) | Kind::Refused(_) | Kind::Kills(_) => {
                    let batches = self.batches.get(id).map_or(&[][..], Vec::as_slice);
                    let calm = batches
                        .iter()
                        .filter(|batch| !self.troubled.contains(batch))
                        .count();
                    self.verdict.most_calm = self.verdict.most_calm.max(calm);
                    self.check("P7 progress", calm <= MOST_CALM, &[id], || {
                        format!("{id} needed {calm} receives in which nothing went wrong")
                    });
                    self.check("P7 no dead letter without a cause", !dead, &[id], || {
                        format!("{id} ({kind:?}) is in the dead-letter queue: {copied:?}")
                    });
                }
                Kind::Declined | Kind::Undecodable | Kind::Killer => {
                    self.check("a permanent failure is a dead letter", dead, &[id], || {
                        format!("{id} ({kind:?}) is not in the dead-letter queue")
                    });
                }
            }
        }
        if self.plan.gateway_remembers {
            let charges: Vec<_> = self
                .keys
                .iter()
                .map(|(key, of)| (key.clone(), of.charges))
                .collect();
            for (key, charges) in charges {
                self.check("charged once", charges <= 1, &[&key], || {
                    format!("{key} was charged {charges} times")
                });
            }
        }
    }
}

//! The part of the oracle that follows the runs of handlers: one at a time for each key, suspects alone, and what the
//! worker makes of the end of a run.
//!
//! An operator explains some of what these checks forbid, for the keys that the operator touched, and from then on:
//!
//! | check | of each | what an operator explains |
//! | --- | --- | --- |
//! | P1 one handler at a time, P1 no work after the lease | key | a release ends the lease of a run, and a deletion its claim |
//! | P7 a suspect rests | key | a release ends a rest; the next result begins anew |
//! | P6 deaths are counted | key | nothing: a deletion begins a new count |
//! | P5 recorded before its copy | message | nothing: a redrive is a message of its own |
//! | a result is sent until the end | invocation | nothing |
//! | a success closes the circuit | worker | nothing |

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use sqs_once::internal::FAILURES_TO_OPEN;

use crate::{
    ledger::{Event, Run, Worker},
    oracle::Verdict,
    plan::{Kind, Message, Mode, Plan, Service},
};

/// Runs of a message that ends its process each time: one beside others, and alone one more than there are rests.
pub(super) const DEADLY_RUNS: usize = 5;

/// How long a message that ends its process rests after its second, third and fourth run.
pub(super) const RESTS: [Duration; 3] = [
    Duration::from_secs(20 * 60),
    Duration::from_secs(2 * 3600),
    Duration::from_secs(10 * 3600),
];

/// How long a result is sent that is denied each time.
const LONGEST_DENIAL: Duration = Duration::from_secs(60);

/// Judges the runs of a world.
pub fn judge(plan: &Plan, events: &[(Duration, Event)], verdict: &mut Verdict) {
    let messages = plan.messages.iter();
    let mut runs = Runs {
        messages: messages
            .map(|message| (message.id.clone(), message.clone()))
            .collect(),
        touched: BTreeSet::new(),
        keys: BTreeMap::new(),
        open: BTreeMap::new(),
        frozen: BTreeSet::new(),
        workers: BTreeMap::new(),
        failed: BTreeSet::new(),
        worked_on_for: BTreeMap::new(),
        batches: BTreeMap::new(),
        batch_of: BTreeMap::new(),
        plan,
        verdict,
    };
    for (at, event) in events {
        runs.event(*at, event);
    }
}

struct Runs<'a> {
    plan: &'a Plan,
    verdict: &'a mut Verdict,
    /// Those of the plan, and redriven ones.
    messages: BTreeMap<String, Message>,
    /// Keys whose record an operator has released or deleted.
    touched: BTreeSet<String>,
    keys: BTreeMap<String, OfKey>,
    /// Runs that have not ended.
    open: BTreeMap<Run, Open>,
    frozen: BTreeSet<Worker>,
    workers: BTreeMap<Worker, OfWorker>,
    /// Messages whose permanent failure is recorded.
    failed: BTreeSet<String>,
    /// How long before the recorded failure of a message its key was first claimed. Not if an operator has ended a lease
    /// meanwhile.
    worked_on_for: BTreeMap<String, Option<Duration>>,
    /// When each batch began.
    batches: BTreeMap<usize, Duration>,
    /// By message and its receive count.
    batch_of: BTreeMap<(String, u32), usize>,
}

#[derive(Default)]
struct OfKey {
    /// Message of the last claim.
    claimed_for: String,
    /// When its last failure was recorded, and when an operator has deleted that record.
    failed: Option<Duration>,
    deleted: Option<Duration>,
    table_faults: usize,
    /// Runs since the last recorded result that ended their process, as they always do.
    deaths: usize,
    /// First claim since the last recorded result.
    first_claim: Option<Duration>,
    /// An operator has ended a lease since then.
    is_released: bool,
}

struct Open {
    key: String,
    worker: Worker,
    /// Another worker has claimed the key while the process of this run was frozen.
    is_replaced: bool,
}

/// What the circuit breaker of a process should know.
#[derive(Default)]
struct OfWorker {
    failures: usize,
    succeeded_in_batch: bool,
}

impl Runs<'_> {
    fn event(&mut self, at: Duration, event: &Event) {
        match event {
            Event::Received {
                message,
                count,
                batch,
            } => {
                self.batch_of.insert((message.clone(), *count), *batch);
            }
            Event::Invoked { batch, worker } => {
                self.batches.insert(*batch, at);
                self.workers.entry(*worker).or_default().succeeded_in_batch = false;
            }
            Event::Frozen { worker, .. } => {
                self.frozen.insert(*worker);
            }
            Event::Thawed { worker } => {
                self.frozen.remove(worker);
            }
            Event::Killed { worker } => self.killed(*worker),
            Event::TableFault { key, .. } => self.key(key).table_faults += 1,
            Event::Claimed { key, message, .. } => self.claimed(at, key, message),
            Event::Forgotten { key } => {
                self.keys.remove(key);
            }
            Event::Redriven { message, .. } => {
                self.messages.insert(message.id.clone(), message.clone());
            }
            Event::Released { key } => {
                self.key(key).is_released = true;
                self.touched.insert(key.clone());
            }
            Event::Deleted { key } => {
                self.deleted(at, key);
                self.touched.insert(key.clone());
            }
            Event::Settled { key, is, .. } if *is != "IN_PROGRESS" => {
                self.settled(at, key, *is == "FAILED");
            }
            Event::HandlerStarted {
                run,
                message,
                key,
                worker,
                kind,
                ..
            } => {
                self.started(*run, key, *worker);
                if *kind == Kind::Killer {
                    self.died(key, message);
                }
            }
            Event::HandlerEnded { run, how } => self.ended(*run, how),
            Event::Copied {
                message, reason, ..
            } => self.copied(message, reason),
            Event::Outcome {
                message,
                count,
                outcome,
                worker,
            } => self.outcome(at, (message, *count), outcome, *worker),
            _ => {}
        }
    }

    fn key(&mut self, key: &str) -> &mut OfKey {
        self.keys.entry(key.to_owned()).or_default()
    }

    fn key_of(&mut self, message: &str) -> Option<(&mut OfKey, String)> {
        let key = self.plan.key(self.messages.get(message)?);
        Some((self.key(&key), key))
    }

    /// Begins anew. An invocation at work may still answer with the failure that it found.
    fn deleted(&mut self, at: Duration, key: &str) {
        let of_key = self.key(key);
        *of_key = OfKey {
            failed: of_key.failed,
            deleted: Some(at),
            ..OfKey::default()
        };
    }

    /// Returns when the last invocation with a message began.
    fn began(&self, message: &str) -> Option<Duration> {
        let of_message = (message.to_owned(), 0)..=(message.to_owned(), u32::MAX);
        let (_, batch) = self.batch_of.range(of_message).next_back()?;
        self.batches.get(batch).copied()
    }

    fn killed(&mut self, worker: Worker) {
        self.open.retain(|_, run| run.worker != worker);
    }

    fn claimed(&mut self, at: Duration, key: &str, message: &str) {
        let of_key = self.key(key);
        message.clone_into(&mut of_key.claimed_for);
        of_key.first_claim.get_or_insert(at);
        for run in self.open.values_mut().filter(|run| run.key == key) {
            run.is_replaced = true;
        }
    }

    fn settled(&mut self, at: Duration, key: &str, failed: bool) {
        let of_key = self.key(key);
        of_key.deaths = 0;
        let began = of_key.first_claim.take().unwrap_or(at);
        let is_released = std::mem::take(&mut of_key.is_released);
        if failed {
            (of_key.failed, of_key.deleted) = (Some(at), None);
            let message = of_key.claimed_for.clone();
            let took = (!is_released).then_some(at - began);
            self.worked_on_for.insert(message.clone(), took);
            self.failed.insert(message);
        }
    }

    fn started(&mut self, run: Run, key: &str, worker: Worker) {
        let mut open = self.open.iter();
        let other =
            open.find(|(_, other)| other.key == key && !self.frozen.contains(&other.worker));
        let other = other.map(|(other, _)| *other);
        if self.plan.mode.claims() && !self.touched.contains(key) {
            self.verdict
                .check("P1 one handler at a time", other.is_none(), &[key], || {
                    format!("run {run} of {key} began during run {other:?}")
                });
        }
        self.open.insert(
            run,
            Open {
                key: key.to_owned(),
                worker,
                is_replaced: false,
            },
        );
    }

    fn died(&mut self, key: &str, message: &str) {
        let of_key = self.key(key);
        // Its claim was deleted before it began, and nothing counts it.
        if of_key.deleted.is_some() && of_key.claimed_for != message {
            return;
        }
        of_key.deaths += 1;
        let (deaths, most) = (of_key.deaths, DEADLY_RUNS + of_key.table_faults);
        self.verdict.check(
            "P6 deaths are counted",
            deaths <= most,
            &[key, message],
            || format!("{key} has ended {deaths} processes"),
        );
    }

    fn ended(&mut self, run: Run, how: &str) {
        let Some(Open {
            key,
            worker,
            is_replaced,
            ..
        }) = self.open.remove(&run)
        else {
            return;
        };
        let of_worker = self.workers.entry(worker).or_default();
        if matches!(how, "ok" | "permanent" | "declined") {
            of_worker.succeeded_in_batch = true;
            of_worker.failures = 0;
        } else {
            of_worker.failures += 1;
        }
        if !self.plan.mode.claims() || self.touched.contains(&key) {
            return;
        }
        let stopped = !is_replaced || how == "dropped";
        self.verdict
            .check("P1 no work after the lease", stopped, &[&key], || {
                format!("run {run} of {key} went on after another worker's claim")
            });
    }

    fn copied(&mut self, message: &str, reason: &str) {
        let sent = self.messages.get(message).map(|message| message.sent);
        let skew = Duration::from_millis(self.plan.skew_ms + 1);
        let began = self.began(message);
        let failed = self.key_of(message).and_then(|(key, _)| {
            let is_gone = key.deleted.is_some_and(|at| Some(at) < began);
            key.failed.filter(|_| !is_gone)
        });
        // The failure of a message of its key that came later.
        let before = reason == "failed_before" && failed.map(|at| at + skew) >= sent;
        let has_record =
            self.plan.mode != Mode::Item && !matches!(reason, "invalid" | "key_reused");
        let recorded = self.failed.contains(message) || before;
        let holds = recorded || !has_record;
        self.verdict
            .check("P5 recorded before its copy", holds, &[message], || {
                format!("{message} was copied ({reason}), and its failure is not recorded")
            });
    }

    fn outcome(
        &mut self,
        at: Duration,
        (message, count): (&str, u32),
        outcome: &str,
        worker: Worker,
    ) {
        let names = &[message];
        match outcome {
            "crashed" => {
                let took = self.worked_on_for.get(message).copied();
                if took == Some(None) {
                    return;
                }
                let took = took.flatten();
                let rested = took.is_some_and(|took| took >= RESTS.iter().sum::<Duration>());
                self.verdict.check("P7 a suspect rests", rested, names, || {
                    format!("{message} was given up after {took:?}")
                });
            }
            // Without a claim, the handler can run again at once, and the next delivery records its end.
            "completion_unrecorded" | "failure_unrecorded" if self.plan.mode.claims() => {
                let began = self.batch_of.get(&(message.to_owned(), count));
                let began = began.and_then(|batch| self.batches.get(batch));
                let tried = at.saturating_sub(began.copied().unwrap_or_default());
                let plan = self.plan;
                let is_denied = plan.rates.denied > 0.0 || plan.has_outage(Service::Credentials);
                let enough = plan.timeouts.function / 4;
                let enough = if is_denied {
                    enough.min(LONGEST_DENIAL)
                } else {
                    enough
                };
                let check = "a result is sent until the end";
                self.verdict.check(check, tried >= enough, names, || {
                    format!("the result of {message} was given up after {tried:?}")
                });
            }
            // With several invocations, the circuit may have been closed after the message was refused. A lookup is a
            // call of the handler's system too.
            "circuit_open" if self.plan.invocations == 1 && !self.plan.gateway.is_looked_up => {
                let of_worker = self.workers.entry(worker).or_default();
                // A failure may be counted after a success that came later.
                let concurrency = self.plan.releases.iter().map(|of| of.concurrency).max();
                let enough =
                    of_worker.failures + concurrency.unwrap_or_default() >= FAILURES_TO_OPEN;
                let failures = of_worker.failures;
                let holds = enough || of_worker.succeeded_in_batch;
                self.verdict
                    .check("a success closes the circuit", holds, names, || {
                        format!(
                            "{message} was refused by worker {worker} after {failures} failures"
                        )
                    });
            }
            _ => {}
        }
    }
}

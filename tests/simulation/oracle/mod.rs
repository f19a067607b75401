//! The oracle: every promise as a check over the ledger. Each check counts how often it was exercised.

mod again;
mod at_work;
mod costs;
mod effects;
mod fates;
mod limits;
mod metrics;
mod outbox;
mod progress;
mod records;
mod replays;
mod runs;
mod state;
mod told;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use sqs_once::protocol::{Key, Timestamp};

use crate::{
    ledger::{Event, Run, Worker},
    plan::{Message, Plan, Release},
    world::{EPOCH, namespace},
};

/// Every check, and every fault. A run of many seeds must exercise each of them.
pub const CHECKS: &[&str] = &[
    "P1 one live claim",
    "P2 completed is never claimed",
    "P2 failed message is never claimed",
    "P2 message sent before a failure is never claimed",
    "P2 no worker deletes a record",
    "P2 completed never runs again",
    "P2 failed message never runs again",
    "P2 message sent before a failure never runs",
    "P3 told of earlier attempts",
    "P3 told of open attempts only",
    "P3 told of the earliest open attempt",
    "P3 only a decline changes the call key",
    "P3 told of another payload",
    "P3 another payload does not take over",
    "a call key is not used beyond its lifetime",
    "P3 charged again only with a cause",
    "P4 a write is applied once",
    "P4 a write commits with its record",
    "P4 a duplicate gets its operation's output",
    "a completed operation was charged",
    "an output is of the charge",
    "on_duplicate is called once",
    "on_duplicate gets its operation's call key",
    "P5 no result is overwritten",
    "P5 only the claimant settles",
    "P5 acknowledged only when recorded",
    "P1 one handler at a time",
    "P1 no work after the lease",
    "P5 recorded before its copy",
    "P6 suspect runs alone",
    "P6 suspect is claimed in its turn",
    "P6 attempt alone is counted in its claim",
    "P6 deaths are counted",
    "P7 a suspect rests",
    "P7 a suspect runs in its turn",
    "a result is sent until the end",
    "a success closes the circuit",
    "a handler gets its message's key",
    "P7 answer in time",
    "P7 everything ends",
    "P7 progress",
    "P7 no worker waits for its own claim",
    "P7 no dead letter without a cause",
    "a dead letter names its reason",
    "a copy has its message's attributes",
    "a second copy keeps the deduplication id",
    "a later duplicate costs a read",
    "a record is forgotten in its time",
    "an item keeps its keys",
    "nothing is lost",
    "a permanent failure is a dead letter",
    "charged once",
    "charged once, by looking up",
    "order of a group",
    "a stopped group waits",
    "a group waits for another payload",
    "handlers at a time are bounded",
    "events commit with their record",
    "a sent event was committed",
    "an event is sent as it was published",
    "a dead event has a cause",
    "an event is repeated only with a cause",
    "order of a group's events",
    "every event is sent",
    "response is sound",
    "bodies are let go",
    "bodies of a process are bounded",
    "metrics: every answer has a line",
    "metrics: messages and failures",
    "metrics: completions",
    "metrics: dead letters",
    "metrics: runs of handlers",
    "metrics: duplicates of another queue",
    "fault: a table's request",
    "fault: a call to SQS",
    "fault: a call to S3",
    "fault: a lookup gets no answer",
    "fault: the gateway refuses",
    "fault: the gateway is silent",
    "fault: a process is killed",
    "fault: a process is frozen",
    "fault: a process is too slow",
    "fault: an invocation is throttled",
    "fault: a message expires",
    "fault: too many messages in flight",
    "fault: an old receipt deletes nothing",
    "fault: a copy is refused",
    "fault: an event is refused",
    "fault: an event is throttled",
    "fault: a batch of events is read again",
    "fault: an event is given up",
    "fault: receives are used up",
    "wire: writes in one request",
    "a lookup finds a charge",
    "a lookup finds no charge",
    "a record's time to live is over",
    "operator: redrives",
    "operator: releases",
    "operator: deletes",
];

/// Returns the fault, or another rare thing, that an event is.
fn fault(event: &Event) -> Option<&'static str> {
    Some(match event {
        Event::TableFault { .. } => "fault: a table's request",
        Event::SqsFault { .. } => "fault: a call to SQS",
        Event::S3Fault { .. } => "fault: a call to S3",
        Event::LookUpFailed { .. } => "fault: a lookup gets no answer",
        Event::LookedUp { found: true, .. } => "a lookup finds a charge",
        Event::LookedUp { found: false, .. } => "a lookup finds no charge",
        Event::Forgotten { .. } => "a record's time to live is over",
        Event::GatewayRefused { .. } => "fault: the gateway refuses",
        Event::GatewaySilent { .. } => "fault: the gateway is silent",
        Event::Killed { .. } => "fault: a process is killed",
        Event::Frozen { .. } => "fault: a process is frozen",
        Event::TimedOut { .. } => "fault: a process is too slow",
        Event::Throttled { .. } => "fault: an invocation is throttled",
        Event::QueueFull => "fault: too many messages in flight",
        Event::NotDeleted { .. } => "fault: an old receipt deletes nothing",
        Event::CopyRefused { .. } => "fault: a copy is refused",
        Event::EventRefused { .. } => "fault: an event is refused",
        Event::EventThrottled { .. } => "fault: an event is throttled",
        Event::ReadAgain { .. } => "fault: a batch of events is read again",
        Event::Relayed {
            dead: Some(reason), ..
        } if reason != "NoTarget" => "fault: an event is given up",
        Event::Expired { .. } => "fault: a message expires",
        Event::ReceivesUsedUp { .. } => "fault: receives are used up",
        Event::BatchedWrites { .. } => "wire: writes in one request",
        Event::Redriven { .. } => "operator: redrives",
        Event::Released { .. } => "operator: releases",
        Event::Deleted { .. } => "operator: deletes",
        _ => return None,
    })
}

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

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    pub check: &'static str,
    pub what: String,
    /// Names in the ledger.
    pub names: Vec<String>,
}

impl Verdict {
    /// Notes that a check was exercised, and a violation unless it holds.
    pub fn check(
        &mut self,
        check: &'static str,
        holds: bool,
        names: &[&str],
        what: impl FnOnce() -> String,
    ) {
        *self.exercised.entry(check).or_default() += 1;
        if !holds {
            self.violations.push(Violation {
                check,
                what: what(),
                names: names.iter().map(|&name| name.to_owned()).collect(),
            });
        }
    }
}

pub fn judge(plan: &Plan, events: &[(Duration, Event)]) -> Verdict {
    let mut bench = Bench::new(plan);
    let mut records = records::Records::default();
    let mut fates = fates::Fates::default();
    let mut progress = progress::Progress::default();
    let mut metrics = metrics::Counts::default();
    let mut costs = costs::Costs::default();
    let mut effects = effects::Effects::default();
    let mut replays = replays::Replays::default();
    let mut outbox = outbox::Outbox::default();
    let mut again = again::Again::default();
    let mut history = told::History::default();
    let mut limits = limits::Limits::default();
    for (at, event) in events {
        bench.event(*at, event);
        if let Some(fault) = fault(event) {
            *bench.verdict.exercised.entry(fault).or_default() += 1;
        }
        records.event(*at, event, &mut bench);
        fates.event(*at, event, &mut bench);
        progress.event(*at, event, &mut bench);
        metrics.event(event, &mut bench);
        costs.event(*at, event, &mut bench);
        effects.event(event, &mut bench);
        replays.event(event, &mut bench);
        outbox.event(*at, event, &mut bench);
        again.event(event, &mut bench);
        history.event(event, &mut bench);
        limits.event(*at, event, &mut bench);
    }
    effects.end(&mut bench);
    outbox.end(&mut bench);
    fates.end(&mut bench);
    progress.end(&mut bench);
    runs::judge(plan, events, &mut bench.verdict);
    bench.verdict
}

/// What every part of the oracle knows, and where it says what it has found.
struct Bench<'a> {
    plan: &'a Plan,
    /// Messages by id, and in the order in which they were sent.
    messages: BTreeMap<String, Message>,
    order: Vec<String>,
    /// The last claim of each key, and the keys of runs.
    claims: BTreeMap<String, Claim>,
    keys: BTreeMap<Run, String>,
    states: state::States,
    at_work: at_work::AtWork,
    /// Keys whose record an operator has released or deleted.
    touched: BTreeSet<String>,
    /// Runs whose claim an operator has taken away: before they began, or by deleting the record.
    orphans: BTreeSet<Run>,
    now: Duration,
    releases: BTreeMap<Worker, usize>,
    verdict: Verdict,
}

struct Claim {
    message: String,
    worker: Worker,
    /// Nothing has ended it.
    is_live: bool,
    /// When the worker made it, by its clock. An inbox sends the same write for as long as an outage lasts.
    made: Duration,
    /// Its failure is recorded.
    has_failed: bool,
    /// How its handler ended and when, once it began.
    run: Option<(&'static str, Duration)>,
}

impl<'a> Bench<'a> {
    fn new(plan: &'a Plan) -> Self {
        let mut bench = Self {
            plan,
            messages: BTreeMap::new(),
            order: Vec::new(),
            claims: BTreeMap::new(),
            keys: BTreeMap::new(),
            states: state::States::new(plan.tells_payloads_apart()),
            at_work: at_work::AtWork::default(),
            touched: BTreeSet::new(),
            orphans: BTreeSet::new(),
            now: Duration::ZERO,
            releases: BTreeMap::new(),
            verdict: Verdict::default(),
        };
        plan.messages.iter().for_each(|message| bench.add(message));
        bench
    }

    fn event(&mut self, at: Duration, event: &Event) {
        self.now = at;
        if let Event::Settled { key, .. }
        | Event::Released { key }
        | Event::Deleted { key }
        | Event::Forgotten { key } = event
            && let Some(claim) = self.claims.get_mut(key)
        {
            claim.is_live = false;
        }
        self.states.event(at, event, &self.messages);
        self.at_work.event(at, event);
        match event {
            Event::Redriven { message, .. } => self.add(message),
            Event::Started { worker, release } => {
                self.releases.insert(*worker, *release);
            }
            Event::Released { key } => {
                self.touched.insert(key.clone());
            }
            Event::Deleted { key } => {
                self.touched.insert(key.clone());
                let of_key = self.keys.iter().filter(|(_, of)| *of == key);
                self.orphans.extend(of_key.map(|(run, _)| *run));
            }
            Event::Claimed {
                key,
                message,
                worker,
                made_ms,
                ..
            } => {
                let claim = Claim {
                    message: message.clone(),
                    worker: *worker,
                    is_live: true,
                    made: EPOCH.until(Timestamp::from_millis(*made_ms)),
                    has_failed: false,
                    run: None,
                };
                self.claims.insert(key.clone(), claim);
            }
            Event::Failed { key, .. } => {
                if let Some(claim) = self.claims.get_mut(key) {
                    claim.has_failed = true;
                }
            }
            Event::HandlerStarted {
                run,
                key,
                worker,
                message,
                ..
            } => {
                let state = self.states.of(key);
                let holds = state.is_some_and(|state| state.is_claimed_for(message, *worker));
                if self.touched.contains(key) && !holds {
                    self.orphans.insert(*run);
                }
                self.keys.insert(*run, key.clone());
                if let Some(claim) = self.claims.get_mut(key) {
                    claim.run = Some(("running", at));
                }
            }
            Event::HandlerEnded { run, how } => {
                let key = self.keys.get(run);
                if let Some(claim) = key.and_then(|key| self.claims.get_mut(key)) {
                    claim.run = Some((how, at));
                }
            }
            _ => {}
        }
    }

    /// Returns the settings of a process.
    fn release_of(&self, worker: Worker) -> Release {
        let release = self.releases.get(&worker);
        let release = release.and_then(|release| self.plan.releases.get(*release));
        release.copied().unwrap_or_default()
    }

    /// Returns the message of a key's last claim.
    fn claimed_for(&self, key: &str) -> Option<&String> {
        self.claims.get(key).map(|claim| &claim.message)
    }

    /// Returns whether a record that became `FAILED` has a failure of its last claim. An undo makes it `FAILED` again.
    fn has_failed(&self, key: &str) -> bool {
        self.claims.get(key).is_some_and(|claim| claim.has_failed)
    }

    /// Returns the earliest time, by any clock, of the failure that the last claim of a key has recorded.
    fn failed_at(&self, key: &str) -> Option<Duration> {
        let claim = self.claims.get(key)?;
        let at = claim.run.map_or(claim.made, |(_, at)| at);
        Some(at.saturating_sub(self.skew()))
    }

    /// Returns the earliest time at which an invocation began that is at work.
    fn at_work_since(&self) -> Duration {
        self.now.saturating_sub(self.plan.timeouts.function)
    }

    /// Most by which a clock is wrong, and a millisecond, because clocks count those.
    fn skew(&self) -> Duration {
        Duration::from_millis(self.plan.skew_ms + 1)
    }

    fn add(&mut self, message: &Message) {
        let sent = |id: &String| self.messages[id].sent;
        let place = self.order.partition_point(|id| sent(id) <= message.sent);
        self.order.insert(place, message.id.clone());
        self.messages.insert(message.id.clone(), message.clone());
    }

    /// Returns the call key of a message's operation.
    fn call_key(&self, message: &Message, generation: u64) -> Option<String> {
        let key = Key::new(&namespace(), self.plan.parts_of_key(message)).ok()?;
        Some(key.call_key(generation))
    }

    fn key(&self, message: &Message) -> String {
        self.plan.key(message)
    }

    /// Returns the messages of a message's group that were sent before it.
    fn ahead_in_group<'b>(&'b self, message: &'b Message) -> impl Iterator<Item = &'b Message> {
        let ahead = self.order.iter().take_while(|id| **id != message.id);
        let ahead = ahead.map(|id| &self.messages[id]);
        ahead.filter(|other| other.group.is_some() && other.group == message.group)
    }

    fn check(
        &mut self,
        check: &'static str,
        holds: bool,
        names: &[&str],
        what: impl FnOnce() -> String,
    ) {
        self.verdict.check(check, holds, names, what);
    }
}

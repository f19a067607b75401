//! State shared by the workers of one execution: the table, the requests in flight to it, and the
//! choices. Owners are random, so this module maps each to the worker that made it.

use std::{
    collections::BTreeMap,
    hash::{DefaultHasher, Hash, Hasher},
    sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use sqs_once::{
    internal::Refused,
    protocol::{Fingerprint, Key, Namespace, Owner, Record, State, Swap, Timestamp},
    store::{StoreError, Swapped},
};

use crate::schedules::{
    chooser::Chooser,
    clock::{START, from_now, since_start, wall},
    handler::MARGIN,
    network::InFlight,
    promises::{Promises, lives},
    records::{self, failed_messages, left_by_a_crash},
    request::{Answer, Request},
    scenario::{Effect, Scenario},
    table::{Circumstances, Table},
    timeline::Timeline,
};

/// The one operation of all messages.
pub static KEY: LazyLock<Key> =
    LazyLock::new(|| Key::new(&Namespace::new("payments").unwrap(), ["order-1"]).unwrap());
static FINGERPRINTS: LazyLock<[Fingerprint; 2]> =
    LazyLock::new(|| [b"amount: 1", b"amount: 2"].map(|payload| Fingerprint::of(payload)));

/// The fingerprint of a payload.
pub fn fingerprint(payload: usize) -> &'static Fingerprint {
    &FINGERPRINTS[payload]
}

/// A message of the one operation.
#[derive(Clone, Debug)]
pub struct Message {
    pub payload: usize,
    /// Since its first delivery.
    pub sent: Option<Timestamp>,
}

/// How long the message rests after each death of its process while it ran alone.
const RESTS: [Duration; 3] = [
    Duration::from_secs(20 * 60),
    Duration::from_secs(2 * 60 * 60),
    Duration::from_secs(10 * 60 * 60),
];

/// A worker holds this for as long as one step takes.
pub type Shared = Arc<Mutex<World>>;

/// A panicking handler poisons nothing: no step is left half done.
pub fn lock(world: &Shared) -> MutexGuard<'_, World> {
    world.lock().unwrap_or_else(PoisonError::into_inner)
}

#[derive(Debug)]
pub struct World {
    pub chooser: Chooser,
    table: Table,
    pub messages: Vec<Message>,
    /// Content of the table, after the last write.
    pub record: Option<Record>,
    effect: Effect,
    /// True if a refused claim over nothing comes without the record.
    pub groups: bool,
    pub clocks_differ: bool,
    /// Quarantine of handlers with a lookup.
    pub quarantine: Option<Duration>,
    /// Charges on their way to a gateway: each one's worker, the time by which it arrives.
    pub on_their_way: Vec<(usize, Timestamp)>,
    /// The workers whose charges have arrived.
    charged: Vec<usize>,
    /// The answers of a gateway that remembers: the payload, and whether it charged, by generation of the call key.
    pub answered: BTreeMap<u64, (usize, bool)>,
    pub deleted: bool,
    pub in_flight: Vec<InFlight>,
    pub workers: Vec<Worker>,
    pub promises: Promises,
    pub timeline: Timeline,
}

/// One delivery of a message, and its worker.
#[derive(Debug, Default)]
pub struct Worker {
    pub message: usize,
    pub live: bool,
    /// For a response that has not arrived: polling it has no effect.
    pub waiting: bool,
    /// Pause before the retry of a conflict: polling it lets time pass.
    pub pausing: bool,
    pub collisions: u32,
    pub started: Duration,
    pub owner: Option<Owner>,
    pub calls: usize,
    pub answer: Option<(usize, Result<Answer, StoreError>)>,
    /// Hash of all responses so far, which determine the worker's next step.
    pub received: u64,
}

impl Worker {
    pub fn receives_answer(&mut self, what: impl Hash) {
        let mut hasher = DefaultHasher::new();
        (self.received, what).hash(&mut hasher);
        self.received = hasher.finish();
    }

    /// Longest pause before a retry: 20 ms at first, doubled each time, up to a second.
    pub fn pause(&self) -> Option<Duration> {
        let longest = Duration::from_millis(20 << self.collisions.saturating_sub(1).min(6));
        let pause = longest.min(Duration::from_secs(1));
        // Tokio rounds timers up.
        self.pausing.then(|| pause + Duration::from_millis(1))
    }
}

impl World {
    pub fn new(chooser: Chooser, scenario: &Scenario, timeline: Timeline) -> Self {
        let mut world = Self {
            chooser,
            table: Table::new(scenario.flaw),
            messages: scenario.messages(),
            effect: scenario.effect,
            groups: scenario.groups,
            clocks_differ: scenario.clocks_differ,
            quarantine: scenario.quarantine,
            on_their_way: Vec::new(),
            charged: Vec::new(),
            answered: BTreeMap::new(),
            deleted: false,
            record: None,
            in_flight: Vec::new(),
            workers: Vec::new(),
            promises: Promises::default(),
            timeline,
        };
        if scenario.begins_after_a_crash {
            world.begin_after_a_crash();
        }
        world
    }

    /// The first message was claimed, had its effect, and its worker crashed.
    fn begin_after_a_crash(&mut self) {
        let lease_until = Timestamp::from_millis(START.as_millis() - 1);
        let now = Timestamp::from_millis(START.as_millis() - 12_000);
        self.table.records.record = Some(left_by_a_crash(now, lease_until));
        self.messages[0].sent = Some(now);
        self.record.clone_from(&self.table.records.record);
        self.promises.crashed(now);
    }

    /// An operator ends the lease of the record, live or not.
    pub fn release(&mut self) {
        self.table.records.release(wall());
        self.promises.released();
        self.record.clone_from(&self.table.records.record);
        self.note("an operator releases the record");
    }

    /// The record is deleted, by an operator or after its retention.
    pub fn delete(&mut self) {
        self.deleted = true;
        self.table.records.record = None;
        self.promises.deleted();
        self.record = None;
        self.note("the record is deleted");
    }

    /// The payload of a worker's message.
    pub fn payload(&self, worker: usize) -> usize {
        self.messages[self.workers[worker].message].payload
    }

    /// Time until which any worker's claim is exclusive.
    pub fn live_lease(&self) -> Option<Timestamp> {
        match self.record.as_ref()?.state {
            State::InProgress { lease_until } => Some(lease_until).filter(|until| lives(*until)),
            _ => None,
        }
    }

    /// Time until which no other worker takes over: the end of the lease, and of its quarantine.
    pub fn no_takeover_until(&self) -> Option<Timestamp> {
        let wait = self.quarantine.map_or(Duration::ZERO, |wait| MARGIN + wait);
        let quarantined_from = match self.record.as_ref()?.state {
            State::InProgress { lease_until } => Some(lease_until),
            State::Failed if self.quarantine.is_some() => {
                let record = self.record.as_ref()?;
                record
                    .last_failure()
                    .filter(|_| record.first_claimed_at.is_some())
            }
            _ => None,
        };
        quarantined_from
            .map(|from| from + wait)
            .filter(|until| lives(*until))
    }

    /// The worker whose charge arrived first.
    pub fn charged_by(&self) -> Option<usize> {
        self.charged.first().copied()
    }

    pub fn charge_arrives(&mut self, worker: usize) {
        self.charged.push(worker);
        self.promises.charges(worker);
    }

    pub fn send_on_its_way(&mut self, worker: usize, at_most: Duration) {
        self.on_their_way.push((worker, wall() + at_most));
    }

    /// A charge on its way arrives.
    pub fn charge_on_its_way_arrives(&mut self, index: usize) {
        let (worker, _) = self.on_their_way.remove(index);
        self.log(worker, || "its charge arrives".into());
        self.charge_arrives(worker);
    }

    /// The charges arrive whose time is over at `at`.
    pub fn charges_arrive_before(&mut self, at: Timestamp) {
        while let Some(due) = (self.on_their_way.iter()).position(|(_, latest)| *latest < at) {
            self.charge_on_its_way_arrives(due);
        }
    }

    /// One of a number of possible events for `worker`; all but the first are deviations.
    pub fn choose(&mut self, worker: usize, of: usize) -> usize {
        let taken = self.chooser.choose(1, of);
        self.workers[worker].receives_answer(taken);
        taken
    }

    /// A line of the time line.
    pub fn log(&mut self, worker: usize, what: impl FnOnce() -> String) {
        let message = self.workers[worker].message;
        self.line(|| format!("w{worker} (m-{message})"), what);
    }

    /// A line about no single worker.
    pub fn note(&mut self, what: &str) {
        self.line(|| "-".into(), || what.into());
    }

    fn line(&mut self, who: impl FnOnce() -> String, what: impl FnOnce() -> String) {
        if self.timeline.is_written() {
            let record = self.in_words(self.record.as_ref());
            self.timeline.line(&who(), &what(), &record);
        }
    }

    /// A request reaches the table.
    pub fn apply(
        &mut self,
        worker: usize,
        request: &Request,
        finds: Circumstances,
        how: &str,
    ) -> Result<Answer, StoreError> {
        let answer = match request {
            Request::Commit(commit) => {
                let known = self.table.knows(commit);
                let forgotten = known && self.chooser.choose(1, 2) == 1;
                let finds = Circumstances { forgotten, ..finds };
                let answer = self.table.commit(worker, commit, finds);
                answer.map(Answer::Swapped)
            }
            Request::Get => Ok(Answer::Got(self.table.records.get())),
            Request::Swap(swap) => Ok(Answer::Swapped(self.swap(worker, swap))),
        };
        let after = self.table.records.record.clone();
        if self.effect == Effect::InTable {
            let holder = self.live_lease().and(self.record.as_ref());
            let holder = holder.and_then(|record| self.worker_of(&record.stamp.owner));
            let made = &self.table.effects;
            self.promises.made(made, holder, after.as_ref());
        }
        let before = std::mem::replace(&mut self.record, after);
        let owner = self.record.as_ref().map(|record| &record.stamp.owner);
        let owner = owner.and_then(|owner| self.worker_of(owner));
        let failed = self
            .record
            .as_ref()
            .map(|record| failed_messages(record, &self.messages));
        let (before, after) = (before.as_ref(), self.record.as_ref());
        (self.promises).wrote(before, after, failed.unwrap_or_default(), owner);
        let seen = self.hash_of_answer(&answer);
        self.workers[worker].receives_answer(seen);
        self.log(worker, || {
            let became = answer.as_ref().map_or("failed", |answer| answer.tells().0);
            format!("{} {became} ({how})", request.name())
        });
        answer
    }

    /// A swap reaches the table.
    fn swap(&mut self, worker: usize, swap: &Swap) -> Swapped<Refused> {
        let before = self.table.records.record.as_ref();
        let counted = before.map_or(0, |record| record.exclusive_attempts);
        let answer = self.table.records.swap(swap);
        let to = &swap.to;
        if answer == Swapped::Applied && to.is_claim() && to.exclusive_attempts > counted {
            let rest = usize::try_from(to.exclusive_attempts).ok();
            let rest = rest.and_then(|n| RESTS.get(n - 1)).copied();
            (self.promises).renews(worker, to.updated_at, rest, self.clocks_differ);
        }
        answer
    }

    /// Hash of a response.
    pub fn hash_of_answer(&self, answer: &Result<Answer, StoreError>) -> u64 {
        let mut hasher = DefaultHasher::new();
        let (word, record) = match answer {
            Ok(answer) => answer.tells(),
            Err(_) => ("failed", None),
        };
        word.hash(&mut hasher);
        self.hash_record(record, &mut hasher);
        hasher.finish()
    }

    /// Hash of the table and of the requests in flight to it.
    pub fn hash_table(&self, hasher: &mut DefaultHasher) {
        self.hash_record(self.record.as_ref(), hasher);
        self.messages
            .iter()
            .map(|message| message.sent.map(from_now))
            .for_each(|sent| sent.hash(hasher));
        (&self.table.effects, &self.charged).hash(hasher);
        (&self.answered, self.deleted).hash(hasher);
        for (worker, latest) in &self.on_their_way {
            (worker, from_now(*latest)).hash(hasher);
        }
        for (owner, round) in self.table.made() {
            (self.worker_of(owner), round).hash(hasher);
        }
        for request in &self.in_flight {
            let message = self.workers[request.worker].message;
            (request.worker, message, request.call).hash(hasher);
            (request.request).hash_of_its_worker(|owner| self.worker_of(owner), hasher);
        }
    }

    fn hash_record(&self, record: Option<&Record>, hasher: &mut DefaultHasher) {
        let Some(record) = record else {
            return 0.hash(hasher);
        };
        self.worker_of(&record.stamp.owner).hash(hasher);
        records::hash(record, hasher);
    }

    fn worker_of(&self, owner: &Owner) -> Option<usize> {
        let mut workers = self.workers.iter();
        workers.position(|worker| worker.owner.as_ref() == Some(owner))
    }

    fn in_words(&self, record: Option<&Record>) -> String {
        let Some(record) = record else {
            return "none".into();
        };
        let worker = self.worker_of(&record.stamp.owner);
        let owner = worker.map_or("nobody".into(), |worker| format!("w{worker}"));
        match &record.state {
            // A claim's lease is longer than nothing.
            State::InProgress { .. } if !record.is_claim() => {
                format!("IN_PROGRESS {owner}, lease ended")
            }
            State::InProgress { lease_until } => {
                format!("IN_PROGRESS {owner} until {}", since_start(*lease_until))
            }
            State::Completed { result } => format!("COMPLETED {owner}, {result:?}"),
            State::Failed => {
                let failed = failed_messages(record, &self.messages).into_iter();
                format!("FAILED {}", failed.collect::<Vec<_>>().join(", "))
            }
        }
    }
}

//! State shared by the workers of one execution: the table, the requests in flight to it, and the
//! choices. Owners are random, so this module maps each to the worker that made it.

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use sqs_once::{
    protocol::{
        ClaimRequest, Fingerprint, Key, Namespace, Owner, Record, Settlement, State, Timestamp,
    },
    store::StoreError,
};

use crate::schedules::{
    chooser::Chooser,
    clock::{START, from_now, since_start, wall},
    flaw::Flaw,
    handler::MARGIN,
    items::{self, Item, ItemAnswer, ItemRequest},
    network::InFlight,
    promises::{Promises, lives},
    request::{Answer, Request},
    scenario::{Effect, Scenario},
    table::{Circumstances, Table},
    timeline::Timeline,
};

/// The one operation of all messages.
pub static KEY: LazyLock<Key> =
    LazyLock::new(|| Key::new(&Namespace::new("payments").unwrap(), ["order-1"]).unwrap());
pub static FINGERPRINT: LazyLock<Fingerprint> = LazyLock::new(|| Fingerprint::of(b"amount: 1"));

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
    /// Content of the table, after the last write.
    pub record: Option<Record>,
    /// The item that changes, in scenarios with the effect on an item.
    pub item: Item,
    /// Number of changes by other programs.
    meddled: usize,
    flaw: Option<Flaw>,
    effect: Effect,
    /// True if claims and settlements are sent in groups first.
    pub groups: bool,
    pub clocks_differ: bool,
    /// Quarantine of handlers with a look-up.
    pub quarantine: Option<Duration>,
    /// Charges on their way to a gateway: each one's worker, the time by which it arrives.
    pub on_their_way: Vec<(usize, Timestamp)>,
    /// The workers whose charges have arrived.
    charged: Vec<usize>,
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
    /// Its last change was refused by an item that knew the operation.
    pub met_its_own: bool,
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

pub fn claim_of_the_first_message(now: Timestamp, lease_until: Timestamp) -> ClaimRequest {
    let expires_at = lease_until.as_secs_ceil() + 3600;
    let key = KEY.clone();
    let mut request = ClaimRequest::new(key, Owner::fresh(), "m-0", now, lease_until, expires_at);
    request.fingerprint = Some(FINGERPRINT.clone());
    request
}

impl World {
    pub fn new(chooser: Chooser, scenario: &Scenario, timeline: Timeline) -> Self {
        let mut world = Self {
            chooser,
            table: Table::new(scenario.flaw),
            item: scenario.item.clone(),
            meddled: 0,
            flaw: scenario.flaw,
            effect: scenario.effect,
            groups: scenario.groups,
            clocks_differ: scenario.clocks_differ,
            quarantine: scenario.quarantine,
            on_their_way: Vec::new(),
            charged: Vec::new(),
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
        let request = claim_of_the_first_message(now, lease_until);
        let _ = self.table.records.claim(&request).unwrap();
        self.record = self.table.records.record(&KEY);
        self.promises.crashed(now);
    }

    /// Workers whose requests have made the effect in DynamoDB.
    pub fn effects(&self) -> &[usize] {
        &self.table.effects
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
        match self.record.as_ref()?.state {
            State::InProgress { lease_until } => {
                let wait = self.quarantine.map_or(Duration::ZERO, |wait| MARGIN + wait);
                Some(lease_until + wait).filter(|until| lives(*until))
            }
            _ => None,
        }
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
            let record = match &self.item {
                Some(item) => item.clone(),
                None => self.in_words(self.record.as_ref()),
            };
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
            Request::Claim(claim) => self.table.records.claim(claim).map(Answer::Claim),
            Request::Insert(claim) => self.table.records.insert(claim).map(Answer::Claim),
            Request::Settle(fence, settlement, now) | Request::Update(fence, settlement, now) => {
                let answer = self.table.records.settle(fence, settlement, *now);
                answer.map(Answer::Settle)
            }
            Request::Commit(commit) => {
                let known = self.table.knows(commit);
                let forgotten = known && self.chooser.choose(1, 2) == 1;
                let finds = Circumstances { forgotten, ..finds };
                let answer = self.table.commit(worker, commit, finds);
                answer.map(Answer::Commit)
            }
            Request::Item(request) => Ok(Answer::Item(self.change(worker, request, finds))),
        };
        let after = self.table.records.record(&KEY);
        if let Request::Settle(fence, renewal, now) = request
            && let Settlement::Renew {
                lease_until,
                exclusive_attempts,
                ..
            } = renewal
            && let Some(record) = &after
            && record.owner.as_ref() == Some(&fence.owner)
            && matches!(record.state, State::InProgress { lease_until: kept } if kept == *lease_until)
        {
            let rest = usize::try_from(*exclusive_attempts)
                .ok()
                .and_then(|n| RESTS.get(n - 1));
            self.promises
                .renews(worker, *now, rest.copied(), self.clocks_differ);
        }
        if self.effect == Effect::InTable {
            let holder = self.live_lease().and(self.record.as_ref());
            let holder = holder.and_then(|record| self.worker_of(record.owner.as_ref()));
            let made = &self.table.effects;
            self.promises.made(made, holder, after.as_ref());
        }
        let before = std::mem::replace(&mut self.record, after);
        let owner = self
            .record
            .as_ref()
            .and_then(|record| record.owner.as_ref());
        let owner = owner.and_then(|owner| self.worker_of(Some(owner)));
        self.promises
            .wrote(before.as_ref(), self.record.as_ref(), owner);
        let seen = self.hash_of_answer(&answer);
        self.workers[worker].receives_answer(seen);
        self.log(worker, || {
            let became = answer.as_ref().map_or("failed", |answer| answer.tells().0);
            format!("{} {became} ({how})", request.name())
        });
        answer
    }

    /// A request reaches the item.
    fn change(&mut self, worker: usize, request: &ItemRequest, finds: Circumstances) -> ItemAnswer {
        let (found, stays) = if finds.sold_out {
            items::change_by_other(&self.item, request)
        } else {
            (self.item.clone(), true)
        };
        let with_flaw = self.flaw.map(|flaw| request.with_flaw(flaw));
        let request = with_flaw.as_ref().unwrap_or(request);
        let (answer, left) = items::answer(&found, request);
        let made = answer.said.is_ok() && !request.reads();
        if made || stays {
            self.item = left;
        }
        self.meddled += usize::from(finds.sold_out && stays);
        if made {
            self.table.effects.push(worker);
        }
        let (tells, made) = (items::tells(&self.item), &self.table.effects);
        self.promises.changed(made, tells, self.meddled);
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
        if let Ok(Answer::Item(answer)) = answer {
            format!("{answer:?}").hash(&mut hasher);
        }
        self.hash_record(record, &mut hasher);
        hasher.finish()
    }

    /// Hash of the table and of the requests in flight to it.
    pub fn hash_table(&self, hasher: &mut DefaultHasher) {
        self.hash_record(self.record.as_ref(), hasher);
        (&self.item, &self.table.effects, &self.charged).hash(hasher);
        for (worker, latest) in &self.on_their_way {
            (worker, from_now(*latest)).hash(hasher);
        }
        for (owner, round) in self.table.made() {
            (self.worker_of(Some(owner)), round).hash(hasher);
        }
        for request in &self.in_flight {
            let message = self.workers[request.worker].message;
            (request.worker, message, request.call).hash(hasher);
            request.request.hash_of_its_worker(hasher);
        }
    }

    fn hash_record(&self, record: Option<&Record>, hasher: &mut DefaultHasher) {
        let Some(record) = record else {
            return 0.hash(hasher);
        };
        self.worker_of(record.owner.as_ref()).hash(hasher);
        record.message_id.hash(hasher);
        match &record.state {
            State::InProgress { lease_until } => {
                (1, from_now(*lease_until)).hash(hasher);
            }
            State::Completed { result } => format!("{result:?}").hash(hasher),
            State::Failed => 3.hash(hasher),
        }
        (record.attempts == 1, record.last_end).hash(hasher);
        record.exclusive_attempts.hash(hasher);
        record.first_claimed_at.map(from_now).hash(hasher);
        (&record.error, &record.failed_message_ids).hash(hasher);
    }

    fn worker_of(&self, owner: Option<&Owner>) -> Option<usize> {
        let mut workers = self.workers.iter();
        workers.position(|worker| worker.owner.is_some() && worker.owner.as_ref() == owner)
    }

    fn in_words(&self, record: Option<&Record>) -> String {
        let Some(record) = record else {
            return "none".into();
        };
        let worker = self.worker_of(record.owner.as_ref());
        let owner = worker.map_or("nobody".into(), |worker| format!("w{worker}"));
        match &record.state {
            // A claim's lease is longer than nothing.
            State::InProgress { lease_until } if Some(*lease_until) == record.updated_at => {
                format!("IN_PROGRESS {owner}, lease ended")
            }
            State::InProgress { lease_until } => {
                format!("IN_PROGRESS {owner} until {}", since_start(*lease_until))
            }
            State::Completed { result } => format!("COMPLETED {owner}, {result:?}"),
            State::Failed => {
                let ids: Vec<_> = record.failed_message_ids.iter().cloned().collect();
                format!("FAILED {}", ids.join(", "))
            }
        }
    }
}

//! What the workers of one execution share: the table, what is under way to it, and the
//! choices. Owners are random, so they are told by the worker that made them.

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use sqs_once::{
    protocol::{Fingerprint, Key, Namespace, Owner, Record, State, Timestamp},
    store::{ClaimAnswer, SettleAnswer, StoreError},
};

use crate::{
    chooser::Chooser,
    clock::{from_now, since_start},
    network::{Answer, InFlight, Request},
    promises::{Promises, lives},
    scenario::Scenario,
    table::Table,
    timeline::Timeline,
};

/// The one operation that everything is about.
pub static KEY: LazyLock<Key> =
    LazyLock::new(|| Key::new(&Namespace::new("payments").unwrap(), ["order-1"]).unwrap());
pub static FINGERPRINT: LazyLock<Fingerprint> = LazyLock::new(|| Fingerprint::of(b"amount: 1"));

/// A worker holds this for as long as one step takes.
pub type Shared = Arc<Mutex<World>>;

/// A handler that panics poisons nothing: no step is left half done.
pub fn lock(world: &Shared) -> MutexGuard<'_, World> {
    world.lock().unwrap_or_else(PoisonError::into_inner)
}

#[derive(Debug)]
pub struct World {
    pub chooser: Chooser,
    table: Table,
    /// What is in the table, after the last write.
    pub record: Option<Record>,
    pub in_flight: Vec<InFlight>,
    pub workers: Vec<Worker>,
    pub promises: Promises,
    pub timeline: Timeline,
}

/// One delivery of a message, and who handles it.
#[derive(Debug, Default)]
pub struct Worker {
    pub message: usize,
    pub live: bool,
    /// For an answer that has not come: polling it leads nowhere.
    pub waiting: bool,
    pub started: Duration,
    pub owner: Option<Owner>,
    pub calls: usize,
    pub answer: Option<(usize, Result<Answer, StoreError>)>,
    /// All that it was told so far, hashed. What it does next follows from this alone.
    pub told: u64,
}

impl Worker {
    pub fn is_told(&mut self, what: impl Hash) {
        let mut hasher = DefaultHasher::new();
        (self.told, what).hash(&mut hasher);
        self.told = hasher.finish();
    }
}

impl World {
    pub fn new(chooser: Chooser, scenario: &Scenario, timeline: Timeline) -> Self {
        Self {
            chooser,
            table: Table::new(scenario.flaw),
            record: None,
            in_flight: Vec::new(),
            workers: Vec::new(),
            promises: Promises::default(),
            timeline,
        }
    }

    /// Until when somebody's claim is exclusive.
    pub fn live_lease(&self) -> Option<Timestamp> {
        match self.record.as_ref()?.state {
            State::InProgress { lease_until } => Some(lease_until).filter(|until| lives(*until)),
            _ => None,
        }
    }

    /// One of so many things that may happen to `worker`; all but the first are deviations.
    pub fn choose(&mut self, worker: usize, of: usize) -> usize {
        let taken = self.chooser.choose(1, of);
        self.workers[worker].is_told(taken);
        taken
    }

    /// A line of the time line.
    pub fn log(&mut self, worker: usize, what: impl FnOnce() -> String) {
        let message = self.workers[worker].message;
        self.line(|| format!("w{worker} (m-{message})"), what);
    }

    /// A line about nobody in particular.
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
        how: &str,
    ) -> Result<Answer, StoreError> {
        let answer = match request {
            Request::Claim(claim) => self.table.claim(claim).map(Answer::Claim),
            Request::Settle(fence, settlement, now) => {
                let answer = self.table.settle(fence, settlement, *now);
                answer.map(Answer::Settle)
            }
        };
        let before = std::mem::replace(&mut self.record, self.table.record(&KEY));
        self.promises.wrote(before.as_ref(), self.record.as_ref());
        let seen = self.what_it_says(&answer);
        self.workers[worker].is_told(seen);
        self.log(worker, || {
            let admitted = match &answer {
                Ok(Answer::Claim(ClaimAnswer::Applied { .. })) => "admitted",
                Ok(Answer::Settle(SettleAnswer::Applied)) => "applied",
                Ok(_) => "refused",
                Err(_) => "failed",
            };
            format!("{} {admitted} ({how})", request.name())
        });
        answer
    }

    /// A hash of an answer.
    fn what_it_says(&self, answer: &Result<Answer, StoreError>) -> u64 {
        let mut hasher = DefaultHasher::new();
        let (code, record) = match answer {
            Ok(Answer::Claim(ClaimAnswer::Applied { replaced })) => (0, replaced.as_ref()),
            Ok(Answer::Claim(ClaimAnswer::Refused(record))) => (1, Some(record)),
            Ok(Answer::Settle(SettleAnswer::Applied)) => (2, None),
            Ok(Answer::Settle(SettleAnswer::Refused(record))) => (3, record.as_ref()),
            Err(_) => (4, None),
        };
        code.hash(&mut hasher);
        self.hash_record(record, &mut hasher);
        hasher.finish()
    }

    pub fn hash_record(&self, record: Option<&Record>, hasher: &mut DefaultHasher) {
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
            State::Failed { error } => (3, error).hash(hasher),
        }
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
            State::InProgress { lease_until } if lease_until.as_millis() == 0 => {
                format!("IN_PROGRESS {owner}, abandoned")
            }
            State::InProgress { lease_until } => {
                format!("IN_PROGRESS {owner} until {}", since_start(*lease_until))
            }
            State::Completed { result } => format!("COMPLETED {owner}, {result:?}"),
            State::Failed { .. } => {
                format!("FAILED {}", record.message_id.as_deref().unwrap_or("-"))
            }
        }
    }
}

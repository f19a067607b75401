//! [`Table`]: the idempotency table, and [`Records`], the store that a process sees.

use std::{fmt::Debug, sync::Arc};

use sqs_once::{
    internal::{Refused, RequestErrorKind, Writes},
    protocol::{Expect, Key, Record, State, StoredResult, Swap, Timestamp},
    store::{
        AnyStore, Batched, DynamoStore, MemoryStore, RequestContext, Store, StoreError, Swapped,
        With,
    },
};

use crate::{
    ledger::{Event, Worker},
    plan::{Level, Mode, Release, Service},
    wire::{Dynamo, OUTBOX, TABLE, client},
    world::{CLIENT_TIMEOUT, Member, World},
};

/// The records: they are read, and compared and swapped.
#[derive(Debug)]
pub enum Table {
    Memory(MemoryStore),
    Wire(Box<Dynamo>),
}

impl Table {
    pub fn new(level: Level) -> Self {
        match level {
            Level::Store => Self::Memory(MemoryStore::default()),
            Level::Wire => Self::Wire(Box::new(Dynamo::new())),
        }
    }

    pub fn at_the_wire(&self) -> Option<&Dynamo> {
        match self {
            Self::Memory(_) => None,
            Self::Wire(dynamo) => Some(dynamo),
        }
    }

    fn in_memory(&self) -> &MemoryStore {
        match self {
            Self::Memory(records) => records,
            Self::Wire(_) => unreachable!("a line leads to records in memory"),
        }
    }

    pub fn get(&self, key: &Key) -> Option<Record> {
        match self {
            Self::Memory(records) => records.record(key),
            Self::Wire(dynamo) => dynamo.get(key),
        }
    }

    /// Returns whether an operation is completed, by its record or by the item that has its key.
    pub fn has_completed(&self, mode: Mode, key: &Key) -> bool {
        match (mode, self) {
            (Mode::Item, Self::Wire(dynamo)) => dynamo.has_applied(key),
            _ => self
                .get(key)
                .is_some_and(|record| record.state.name() == "COMPLETED"),
        }
    }

    /// Ends the lease of a record, as an operator does. Returns false if there is none.
    pub fn release(&self, key: &Key, now: Timestamp) -> bool {
        let records = match self {
            Self::Memory(records) => records,
            Self::Wire(dynamo) => return dynamo.release(key, now),
        };
        let record = records.record(key).filter(|record| has_lease(record, now));
        let released = record.map(|record| record.released(now));
        let is_released = released.is_some();
        if is_released {
            records.put(key, released);
        }
        is_released
    }

    /// Deletes a record, as an operator does. Returns false if there is none.
    pub fn delete(&self, key: &Key) -> bool {
        match self {
            Self::Memory(records) => {
                let was = records.record(key);
                records.put(key, None);
                was.is_some()
            }
            Self::Wire(dynamo) => dynamo.delete(key),
        }
    }
}

/// The store of a process: the shipped one, or records in memory behind a line that fails.
#[derive(Clone, Debug)]
pub enum Records {
    Memory(Line),
    Wire(Box<AnyStore>),
}

impl Records {
    pub fn new(world: &Arc<World>, member: &Member, release: Release) -> Self {
        match world.plan.level {
            Level::Store => Self::Memory(Line {
                world: Arc::clone(world),
                member: member.clone(),
            }),
            Level::Wire => Self::Wire(Box::new(at_the_wire(world, member, release))),
        }
    }
}

/// Returns the shipped store of a process.
pub fn at_the_wire(world: &Arc<World>, member: &Member, release: Release) -> AnyStore {
    let outbox = world.plan.outbox.map(|_| OUTBOX.to_owned());
    let store = DynamoStore::new(client(world, member), TABLE).outbox(outbox);
    if release.batches_writes {
        AnyStore::Batched(Batched::new(store))
    } else {
        AnyStore::DynamoDb(store)
    }
}

impl Store for Records {
    type With = Writes;

    async fn get(&self, key: &Key, context: &RequestContext) -> Result<Option<Record>, StoreError> {
        match self {
            Self::Memory(line) => line.get(key, context).await,
            Self::Wire(store) => store.get(key, context).await,
        }
    }

    async fn swap(
        &self,
        swap: &Swap,
        with: &Writes,
        context: &RequestContext,
    ) -> Result<Swapped<Refused>, StoreError> {
        match self {
            Self::Memory(line) => line.swap(swap, with, context).await,
            Self::Wire(store) => store.swap(swap, with, context).await,
        }
    }
}

/// The way of one process to records in memory.
#[derive(Clone, Debug)]
pub struct Line {
    world: Arc<World>,
    member: Member,
}

const NO_ANSWER: &str = "no answer";

type Fault = (RequestErrorKind, &'static str);

impl Line {
    async fn request<T: Send + 'static>(
        &self,
        action: &'static str,
        key: &Key,
        apply: impl Fn(&World) -> T + Send + 'static,
    ) -> Result<T, StoreError> {
        let (worker, key_name) = (self.member.worker, key.to_string());
        let noted = key_name.clone();
        let served = move |world: &World| match fault(world) {
            Some((kind, fault)) => {
                let key = noted.clone();
                world.note(Event::TableFault { key, worker, fault });
                Err((kind, fault))
            }
            None => Ok(apply(world)),
        };
        let mut silence = Silence {
            line: self,
            key: Some(key_name),
        };
        let answer = self.world.exchange(&self.member, CLIENT_TIMEOUT, served);
        let answer = answer.await;
        if answer.is_some() {
            silence.key = None;
        }
        let (kind, why) = match answer {
            Some(Ok(answer)) => return Ok(answer),
            Some(Err(fault)) => fault,
            None => (RequestErrorKind::Unanswered, NO_ANSWER),
        };
        Err(StoreError::unavailable(kind, action, key, "the table", why))
    }
}

/// Notes a request that got no answer as long as its process waited for one.
struct Silence<'a> {
    line: &'a Line,
    key: Option<String>,
}

impl Drop for Silence<'_> {
    fn drop(&mut self) {
        let Line { world, member } = self.line;
        if let Some(key) = self.key.take().filter(|_| !member.process.is_dead()) {
            world.note(Event::TableFault {
                key,
                worker: member.worker,
                fault: NO_ANSWER,
            });
        }
    }
}

fn fault(world: &World) -> Option<Fault> {
    let rates = &world.plan.rates;
    if world.is_out(Service::Credentials) || world.strikes(rates.denied) {
        return Some((RequestErrorKind::Denied, "denied"));
    }
    if world.is_out(Service::Table) {
        return Some((RequestErrorKind::Unanswered, "out of service"));
    }
    if world.strikes(rates.throttled) {
        Some((RequestErrorKind::Contended, "throttled"))
    } else if world.strikes(rates.server_error) {
        Some((RequestErrorKind::Unanswered, "server error"))
    } else {
        None
    }
}

impl Store for Line {
    type With = Writes;

    async fn get(&self, key: &Key, _: &RequestContext) -> Result<Option<Record>, StoreError> {
        let wanted = key.clone();
        let read = move |world: &World| world.table.in_memory().record(&wanted);
        self.request("read", key, read).await
    }

    async fn swap(
        &self,
        swap: &Swap,
        with: &Writes,
        _: &RequestContext,
    ) -> Result<Swapped<Refused>, StoreError> {
        assert!(with.is_empty(), "memory commits a record alone");
        let (sent, worker) = (swap.clone(), self.member.worker);
        let key = swap.key.to_string();
        if is_claim_alone(swap) {
            let key = key.clone();
            self.world.note(Event::ClaimsAlone { key, worker });
        }
        let apply = move |world: &World| {
            let records = world.table.in_memory();
            let was = records.record(&sent.key);
            let swapped = records.apply(&sent).widened();
            if swapped == Swapped::Applied {
                let key = sent.key.as_str();
                let was = was.filter(|was| !world.forgets(key, was.expires_at));
                note_applied(world, worker, was.as_ref(), &sent);
            }
            swapped
        };
        let swapped = self.request(swap.to.action(), &swap.key, apply).await?;
        if let Swapped::Found(found) = &swapped {
            let (message, found) = (swap.to.message_id.clone(), status(found.as_ref()));
            self.world.note(Event::Refused {
                key,
                message,
                worker,
                found,
            });
        }
        Ok(swapped)
    }
}

/// Returns whether a swap counts an attempt alone.
fn is_claim_alone(swap: &Swap) -> bool {
    let Expect::Unchanged(replaced) = &swap.expect else {
        return false;
    };
    swap.to.is_claim() && swap.to.exclusive_attempts > replaced.exclusive_attempts
}

/// A record gets another owner by a claim only.
fn note_applied(world: &World, worker: Worker, was: Option<&Record>, swap: &Swap) {
    let (key, to) = (swap.key.to_string(), &swap.to);
    if let Some(was) = was.filter(|was| was.stamp.owner == to.stamp.owner) {
        if let Some(failure) = to.failures.first().filter(|_| to.failures != was.failures) {
            world.note(Event::Failed {
                key: key.clone(),
                message: failure.message_id.clone(),
                error: failure.error.clone(),
            });
        }
        world.note(Event::Settled {
            key,
            worker,
            was: was.state.name(),
            is: to.state.name(),
            output: match &to.state {
                State::Completed { result } => output(world, result),
                _ => None,
            },
        });
        return;
    }
    world.note(Event::Claimed {
        key,
        message: to.message_id.clone(),
        worker,
        was: status(was),
        lease_left_ms: lease_left(was, world.wall()),
        attempts_alone: to.exclusive_attempts,
        made_ms: to.updated_at.as_millis(),
    });
}

/// Returns the text of an output. `None` if it is not stored.
pub fn output(world: &World, result: &StoredResult) -> Option<String> {
    let json = match result {
        StoredResult::Json(json) => json.clone(),
        StoredResult::InS3(pointer) => world.objects.output(pointer).unwrap_or_default(),
        StoredResult::Omitted(_) => return None,
    };
    Some(serde_json::from_str(&json).unwrap_or(json))
}

/// Returns whether the lease of a record has not ended.
pub fn has_lease(record: &Record, now: Timestamp) -> bool {
    record.lease_until().is_some_and(|until| until >= now)
}

fn status(record: Option<&Record>) -> &'static str {
    record.map_or("nothing", |record| record.state.name())
}

/// Returns how many milliseconds of a record's lease are left. Negative once it has ended.
fn lease_left(record: Option<&Record>, now: Timestamp) -> Option<i64> {
    let State::InProgress { lease_until } = record?.state else {
        return None;
    };
    let signed = |time: Timestamp| i64::try_from(time.as_millis()).unwrap_or(i64::MAX);
    Some(signed(lease_until) - signed(now))
}

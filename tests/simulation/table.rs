//! [`Table`]: the idempotency table, and [`Records`], the store that a process sees.

use std::{fmt::Debug, sync::Arc};

use futures_util::FutureExt as _;
use sqs_once::{
    internal::RequestErrorKind,
    protocol::{ClaimRequest, FencingToken, Key, Record, Settlement, State, Timestamp},
    store::{
        AnyStore, Batched, ClaimResponse, MemoryStore, RequestContext, SettleResponse, Store,
        StoreError,
    },
};

use crate::{
    ledger::Event,
    plan::{Level, Service},
    wire::{Dynamo, store},
    world::{CLIENT_TIMEOUT, Member, World},
};

/// The records, with atomic conditional writes.
#[derive(Debug)]
pub enum Table {
    Memory(MemoryStore),
    Wire(Box<Dynamo>),
}

impl Table {
    pub fn new(level: Level) -> Self {
        match level {
            Level::Store => Self::Memory(MemoryStore::default()),
            Level::Wire | Level::Batched => Self::Wire(Box::new(Dynamo::new())),
        }
    }

    pub fn at_the_wire(&self) -> Option<&Dynamo> {
        match self {
            Self::Memory(_) => None,
            Self::Wire(dynamo) => Some(dynamo),
        }
    }

    pub fn get(&self, key: &Key) -> Option<Record> {
        match self {
            Self::Memory(records) => records.get(key),
            Self::Wire(dynamo) => dynamo.get(key),
        }
    }

    /// Ends the lease of a record, as an operator does. Returns false if there is none.
    pub fn release(&self, key: &Key, now: Timestamp) -> bool {
        let records = match self {
            Self::Memory(records) => records,
            Self::Wire(dynamo) => return dynamo.release(key, now),
        };
        let Some(mut record) = records.get(key) else {
            return false;
        };
        match &mut record.state {
            State::InProgress { lease_until } if *lease_until >= now => *lease_until = now,
            _ => return false,
        }
        record.updated_at = Some(now);
        record.exclusive_attempts = 0;
        records.put(key.clone(), record);
        true
    }

    /// Deletes a record, as an operator does. Returns false if there is none.
    pub fn delete(&self, key: &Key) -> bool {
        match self {
            Self::Memory(records) => records.remove(key).is_some(),
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
    pub fn new(world: &Arc<World>, member: &Member) -> Self {
        let line = || Line {
            world: Arc::clone(world),
            member: member.clone(),
        };
        match world.plan.level {
            Level::Store => Self::Memory(line()),
            Level::Wire => Self::Wire(Box::new(AnyStore::DynamoDb(store(world, member)))),
            Level::Batched => Self::Wire(Box::new(AnyStore::Batched(Batched::new(store(
                world, member,
            ))))),
        }
    }
}

impl Store for Records {
    async fn claim(
        &self,
        request: &ClaimRequest,
        context: &RequestContext,
    ) -> Result<ClaimResponse, StoreError> {
        match self {
            Self::Memory(line) => line.claim(request, context).await,
            Self::Wire(store) => store.claim(request, context).await,
        }
    }

    async fn settle(
        &self,
        fence: &FencingToken,
        settlement: &Settlement,
        now: Timestamp,
        context: &RequestContext,
    ) -> Result<SettleResponse, StoreError> {
        match self {
            Self::Memory(line) => line.settle(fence, settlement, now, context).await,
            Self::Wire(store) => store.settle(fence, settlement, now, context).await,
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
        let answer = self.world.exchange(&self.member, CLIENT_TIMEOUT, served);
        let (kind, why) = match answer.await {
            Some(Ok(answer)) => return Ok(answer),
            Some(Err(fault)) => fault,
            None => (RequestErrorKind::Unanswered, NO_ANSWER),
        };
        if why == NO_ANSWER {
            let (key, fault) = (key_name, why);
            self.world.note(Event::TableFault { key, worker, fault });
        }
        Err(StoreError::unavailable(kind, action, key, "the table", why))
    }
}

fn fault(world: &World) -> Option<Fault> {
    if world.is_out(Service::Table) {
        return Some((RequestErrorKind::Unanswered, "out of service"));
    }
    let rates = &world.plan.rates;
    if world.strikes(rates.throttled) {
        Some((RequestErrorKind::Contended, "throttled"))
    } else if world.strikes(rates.server_error) {
        Some((RequestErrorKind::Unanswered, "server error"))
    } else {
        None
    }
}

impl Store for Line {
    async fn claim(
        &self,
        request: &ClaimRequest,
        context: &RequestContext,
    ) -> Result<ClaimResponse, StoreError> {
        let (request, context) = (request.clone(), context.clone());
        let (key, worker) = (request.key.clone(), self.member.worker);
        let apply = move |world: &World| {
            let Table::Memory(records) = &world.table else {
                unreachable!("a line leads to records in memory")
            };
            let was = records.get(&request.key);
            let claim = records.claim(&request, &context);
            let response = claim.now_or_never().expect("memory does not wait");
            if matches!(response, Ok(ClaimResponse::Applied { .. })) {
                world.note(Event::Claimed {
                    key: request.key.to_string(),
                    owner: request.owner.as_str().to_owned(),
                    message: request.message_id.clone(),
                    worker,
                    was: status(was.as_ref()),
                    lease_left_ms: lease_left(was.as_ref(), world.wall()),
                });
            }
            response
        };
        self.request("claim", &key, apply).await?
    }

    async fn settle(
        &self,
        fence: &FencingToken,
        settlement: &Settlement,
        now: Timestamp,
        context: &RequestContext,
    ) -> Result<SettleResponse, StoreError> {
        let (fence, settlement) = (fence.clone(), settlement.clone());
        let (context, worker) = (context.clone(), self.member.worker);
        let key = fence.key.clone();
        let apply = move |world: &World| {
            let Table::Memory(records) = &world.table else {
                unreachable!("a line leads to records in memory")
            };
            let was = records.get(&fence.key);
            let settle = records.settle(&fence, &settlement, now, &context);
            let response = settle.now_or_never().expect("memory does not wait");
            if matches!(response, Ok(SettleResponse::Applied)) {
                world.note(Event::Settled {
                    key: fence.key.to_string(),
                    worker,
                    was: status(was.as_ref()),
                    is: status(records.get(&fence.key).as_ref()),
                });
            }
            response
        };
        self.request("settle", &key, apply).await?
    }
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

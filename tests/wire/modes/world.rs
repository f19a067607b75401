//! A DynamoDB, and workers of each mode, whose effects can be counted.

use std::{cell::Cell, collections::HashMap, sync::Mutex, time::Duration};

use aws_config::{retry::RetryConfig, timeout::TimeoutConfig};
use aws_sdk_dynamodb::{Client, types::AttributeValue};
use serde::{Deserialize, Serialize};
use serde_json::json;
use sqs_once::{
    Change, Deadline, Done, Inbox, ItemMode, Once, Operation, Outcome, Write,
    internal::Delivery,
    protocol::{Fingerprint, Key, Timestamp},
    store::{Batched, DynamoStore, Store},
};
use support::{
    clock,
    consumer::namespace,
    dynamo::{Dynamo, number},
};
use tokio::{sync::Notify, task::yield_now, time::sleep};

pub const RECORDS: &str = "idempotency";
pub const THINGS: &str = "things";
pub const SECOND: Duration = Duration::from_secs(1);
pub const RETENTION: Duration = Duration::from_secs(24 * 3600);

thread_local! {
    /// A test runs on one thread, which has its own clock.
    static AHEAD: Cell<Duration> = const { Cell::new(Duration::ZERO) };
    static CLOCK: Cell<fn() -> Timestamp> = const { Cell::new(Timestamp::now) };
}

/// Clock of the workers.
pub fn now() -> Timestamp {
    CLOCK.get()() + AHEAD.get()
}

/// Moves the clock of the workers.
pub fn pass(time: Duration) {
    AHEAD.set(AHEAD.get() + time);
}

/// The clock of the workers follows paused time from now on.
pub fn use_paused_clock() {
    CLOCK.set(clock::now);
}

/// The mode that makes the effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EffectMode {
    Claim,
    /// The same with claims in batches.
    BatchedClaim,
    Inbox,
    Create,
    Update,
    Modify,
}

impl EffectMode {
    pub const ALL: [Self; 6] = [
        Self::Claim,
        Self::BatchedClaim,
        Self::Inbox,
        Self::Create,
        Self::Update,
        Self::Modify,
    ];

    /// Requests of one operation. The last makes the effect.
    pub const fn requests(self) -> &'static [&'static str] {
        match self {
            Self::Claim => &["Claim", "TransactWriteItems"],
            Self::BatchedClaim => &["ClaimGroup", "TransactWriteItems"],
            Self::Inbox => &["TransactWriteItems"],
            Self::Create => &["PutItem"],
            Self::Update => &["UpdateItem"],
            Self::Modify => &["GetItem", "PutItem"],
        }
    }

    pub fn commit(self) -> &'static str {
        self.requests().last().unwrap()
    }

    pub fn is_claim(self) -> bool {
        matches!(self, Self::Claim | Self::BatchedClaim)
    }

    pub fn is_transaction(self) -> bool {
        self.commit() == "TransactWriteItems"
    }
}

/// An item whose `n` counts how often the effect has happened.
#[derive(Debug, Deserialize, Serialize)]
pub struct Thing {
    pub id: String,
    pub n: i64,
}

/// One attempt of a worker.
pub struct Attempt<'a> {
    pub way: EffectMode,
    pub id: &'a str,
    pub client: &'a Client,
    pub deadline: Deadline,
}

pub struct World {
    pub dynamo: Dynamo,
    /// Number of times that each item was seen as new.
    made: Mutex<HashMap<String, i64>>,
    /// The handler runs.
    pub running: Notify,
}

impl World {
    /// A world on real time, for tests with other services.
    pub async fn start() -> Self {
        Self::with(Dynamo::start().await).await
    }

    /// A world on paused time.
    pub async fn start_paused() -> Self {
        use_paused_clock();
        Self::with(Dynamo::in_memory()).await
    }

    async fn with(dynamo: Dynamo) -> Self {
        for table in [RECORDS, THINGS] {
            dynamo.create_table(table).await;
        }
        Self {
            dynamo,
            made: Mutex::default(),
            running: Notify::new(),
        }
    }

    /// A client without timeouts and without retries.
    pub fn no_timeout_client(&self) -> Client {
        self.dynamo
            .client_with(RetryConfig::disabled(), TimeoutConfig::disabled())
    }

    /// A client that gives up after two attempts of 300 ms.
    pub fn short_timeout_client(&self) -> Client {
        let retries = RetryConfig::standard().with_max_attempts(2);
        self.dynamo.client_with(
            retries.with_initial_backoff(Duration::from_millis(10)),
            TimeoutConfig::builder()
                .operation_attempt_timeout(Duration::from_millis(300))
                .build(),
        )
    }

    pub fn once(&self, client: &Client) -> Once<DynamoStore> {
        claim_mode(DynamoStore::new(client.clone(), RECORDS))
    }

    pub fn batched(&self, client: &Client) -> Once<Batched> {
        let store = DynamoStore::new(client.clone(), RECORDS);
        claim_mode(Batched::with_lone_calls(store))
    }

    pub fn inbox(&self, client: &Client) -> Inbox<DynamoStore> {
        self.once(client).inbox()
    }

    pub fn item_mode(&self, client: &Client) -> ItemMode {
        ItemMode::new(client.clone()).clock(now)
    }

    /// Increments the thing `id`.
    pub async fn run(&self, attempt: &Attempt<'_>) -> Outcome {
        let Attempt {
            way,
            id,
            client,
            deadline,
        } = *attempt;
        let operation = operation(id, deadline);
        let done = async |_| {
            self.running.notify_one();
            Ok(Done::new(id.len()).with(one_more(id)))
        };
        let update = async |_| {
            self.running.notify_one();
            Ok(Change::update(id.len(), one_more(id)))
        };
        let item_mode = self.item_mode(client);
        match way {
            EffectMode::Claim => self.once(client).run(operation, done).await,
            EffectMode::BatchedClaim => self.batched(client).run(operation, done).await,
            EffectMode::Inbox => self.inbox(client).run(operation, done).await,
            EffectMode::Update => item_mode.run(operation, update).await,
            EffectMode::Create => {
                let put = Write::put(THINGS, json!({"id": id, "n": 1}));
                let create = async |_| {
                    self.running.notify_one();
                    Ok(Change::create((), "id", put))
                };
                item_mode.run(operation, create).await
            }
            EffectMode::Modify => {
                let modify = async |_| {
                    self.running.notify_one();
                    let id = id.to_owned();
                    let key = json!({ "id": id });
                    Ok(Change::modify(THINGS, key, move |thing: Option<Thing>| {
                        let n = thing.map_or(0, |thing| thing.n) + 1;
                        Ok((Thing { id: id.clone(), n }, n))
                    }))
                };
                item_mode.run(operation, modify).await
            }
        }
    }

    /// As [`run`](Self::run), by a worker with ample time and a client without timeouts.
    pub async fn deliver(&self, way: EffectMode, id: &str) -> Outcome {
        let client = &self.no_timeout_client();
        let deadline = ample();
        self.run(&Attempt {
            way,
            id,
            client,
            deadline,
        })
        .await
    }

    /// Number of times that the effect has happened.
    pub async fn effect(&self, way: EffectMode, id: &str) -> i64 {
        let Some(mut thing) = self.dynamo.record(THINGS, id).await else {
            return 0;
        };
        if way != EffectMode::Create {
            return number(&thing, "n");
        }
        // A re-created item looks new, so it is marked when it is seen.
        let seen = thing.insert("seen".into(), AttributeValue::Bool(true));
        if seen.is_none() {
            self.dynamo.put(THINGS, thing).await;
            *self.made.lock().unwrap().entry(id.to_owned()).or_default() += 1;
        }
        self.made.lock().unwrap()[id]
    }

    /// Returns when the proxy has met a request for `operation` since the counts were reset.
    pub async fn met(&self, operation: &str) {
        until(|| self.dynamo.counts().contains_key(operation)).await;
    }
}

/// Returns at the first request after which the condition holds.
pub async fn until(condition: impl Fn() -> bool) {
    let mut tries = 0;
    while !condition() {
        tries += 1;
        if tries % 100 == 0 {
            // Paused time passes only if all tasks wait.
            sleep(Duration::from_millis(1)).await;
        } else {
            yield_now().await;
        }
    }
}

fn claim_mode<S: Store>(store: S) -> Once<S> {
    Once::new(store).retention(RETENTION).clock(now)
}

pub fn one_more(id: &str) -> Write<aws_sdk_dynamodb::types::Update> {
    Write::update(THINGS, "ADD n :one")
        .key("id", id)
        .value(":one", 1)
}

pub fn operation(id: &str, deadline: Deadline) -> Operation {
    Operation::new(
        Key::new(&namespace(), [id]).unwrap(),
        Some(Fingerprint::of(id.as_bytes())),
        Delivery::new(id),
        deadline,
    )
}

/// One second, for a request that meets a fault until then.
pub fn short() -> Deadline {
    Deadline::after(now(), SECOND, SECOND * 3 / 10)
}

/// More than any test needs.
pub fn ample() -> Deadline {
    Deadline::after(now(), 60 * SECOND, SECOND)
}

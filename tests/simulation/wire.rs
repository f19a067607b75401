//! [`Dynamo`]: the idempotency table at the wire. The shipped store sends its requests through the SDK over a connector
//! in memory, and dynoxide serves them in this thread.

use std::{
    fmt,
    future::{pending, ready},
    sync::Arc,
    time::Duration,
};

use aws_sdk_dynamodb::Client;
use aws_smithy_runtime_api::client::http::HttpConnectorFuture;
use dynoxide::Database;
use futures_util::FutureExt as _;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use sqs_once::{
    internal::StoredRecord,
    protocol::{Key, Record, Timestamp},
    store::DynamoStore,
};

use crate::{
    ledger::{Event, Worker},
    plan::Service,
    sdk::{Request, config, response},
    table::has_lease,
    world::{Member, World},
};

const TABLE: &str = "records";
/// Longer than the SDK waits.
const FOREVER: Duration = Duration::from_secs(3600);

type Answer = (u16, Value);

/// The table of records.
pub struct Dynamo {
    database: Database,
    /// The store of the operator, whose requests always get a response.
    operator: DynamoStore,
}

impl fmt::Debug for Dynamo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Dynamo")
    }
}

/// What the ledger notes of a record.
#[derive(Clone, Debug, PartialEq)]
struct Seen {
    status: &'static str,
    owner: String,
    message: String,
    lease_until: Option<u64>,
    version: String,
    attempts_alone: u64,
}

impl Dynamo {
    pub fn new() -> Self {
        let database = Database::memory().expect("a database");
        let table = json!({
            "TableName": TABLE,
            "AttributeDefinitions": [{ "AttributeName": "id", "AttributeType": "S" }],
            "KeySchema": [{ "AttributeName": "id", "KeyType": "HASH" }],
            "BillingMode": "PAY_PER_REQUEST",
        });
        let created = database.create_table(parsed(table));
        created.expect("a table");
        let served = database.clone();
        let config = config(move |Request { operation, body }| {
            HttpConnectorFuture::new(ready(response(ask(&served, &operation, body))))
        });
        Self {
            database,
            operator: DynamoStore::new(Client::new(&config), TABLE),
        }
    }

    /// Reads a record as the operator does.
    fn show(&self, key: &Key) -> Option<StoredRecord> {
        self.operator.show(key.as_str()).now_or_never()?.ok()?
    }

    pub fn get(&self, key: &Key) -> Option<Record> {
        self.show(key)?.record.ok()
    }

    pub fn release(&self, key: &Key, now: Timestamp) -> bool {
        let Some(shown) = self.show(key) else {
            return false;
        };
        let record = shown.record.as_ref();
        let release = self.operator.release(&shown, now);
        record.is_ok_and(|record| has_lease(record, now))
            && matches!(release.now_or_never(), Some(Ok(true)))
    }

    pub fn delete(&self, key: &Key) -> bool {
        let Some(shown) = self.show(key) else {
            return false;
        };
        let delete = self.operator.delete_record(&shown);
        matches!(delete.now_or_never(), Some(Ok(true)))
    }

    fn see(&self, key: &str) -> Option<Seen> {
        let read = json!({ "TableName": TABLE, "Key": { "id": { "S": key } } });
        let (_, answer) = ask(&self.database, "GetItem", read);
        let item = answer.get("Item")?;
        let text =
            |name: &str, kind: &str| item[name][kind].as_str().unwrap_or_default().to_owned();
        let status = text("status", "S");
        let known = ["IN_PROGRESS", "COMPLETED", "FAILED"].into_iter();
        Some(Seen {
            status: known
                .clone()
                .find(|known| *known == status)
                .unwrap_or("unknown"),
            owner: text("owner", "S"),
            message: text("message_id", "S"),
            lease_until: text("lease_until", "N").parse().ok(),
            version: text("version", "N"),
            attempts_alone: text("exclusive_attempts", "N").parse().unwrap_or(0),
        })
    }

    /// Serves a request, and notes what it changes.
    fn serve(
        &self,
        world: &World,
        worker: Worker,
        operation: &str,
        body: &Value,
    ) -> Option<Answer> {
        let keys = keys(body);
        let note = |fault| {
            for key in &keys {
                let key = key.clone();
                world.note(Event::TableFault { key, worker, fault });
            }
        };
        if world.is_out(Service::Table) {
            note("out of service");
            let silent = world.dice().chance(0.5);
            return (!silent).then(|| error(500, "InternalServerError"));
        }
        let rates = &world.plan.rates;
        let mut served = body.clone();
        let mut throttled = Vec::new();
        if world.strikes(rates.throttled) {
            note("throttled");
            let statements = served["Statements"].as_array_mut();
            match statements.filter(|_| world.dice().chance(0.5)) {
                // Each statement has a response of its own.
                Some(statements) => {
                    throttled = statements
                        .iter()
                        .map(|_| world.dice().chance(0.5))
                        .collect();
                    let mut these = throttled.iter();
                    statements.retain(|_| these.next() == Some(&false));
                }
                None => return Some(error(400, world.dice().pick(&THROTTLED))),
            }
        } else if world.strikes(rates.server_error) {
            note("server error");
            return Some(error(500, "InternalServerError"));
        }
        if keys.len() > 1 {
            let keys = keys.clone();
            world.note(Event::BatchedWrites { worker, keys });
        }
        let before: Vec<_> = keys.iter().map(|key| self.see(key)).collect();
        let mut answer = if served["Statements"].as_array().is_some_and(Vec::is_empty) {
            (200, json!({ "Responses": [] }))
        } else {
            ask(&self.database, operation, served)
        };
        for (key, was) in keys.iter().zip(before) {
            let is = self.see(key);
            if is != was {
                note_change(world, worker, key, was, is);
            }
        }
        if let Some(responses) = answer.1["Responses"].as_array_mut() {
            for (place, _) in throttled
                .iter()
                .enumerate()
                .filter(|(_, refused)| **refused)
            {
                let refused =
                    json!({ "Error": { "Code": "ThrottlingError", "Message": "throttled" } });
                responses.insert(place, refused);
            }
        }
        Some(answer)
    }
}

/// A record gets another owner by a claim only.
fn note_change(world: &World, worker: Worker, key: &str, was: Option<Seen>, is: Option<Seen>) {
    let key = key.to_owned();
    let status = |seen: &Option<Seen>| seen.as_ref().map_or("nothing", |seen| seen.status);
    let (before, after) = (status(&was), status(&is));
    let is_same = |is: &Seen| was.as_ref().is_some_and(|was| was.owner == is.owner);
    let event = match is.filter(|is| !is_same(is)) {
        Some(is) => {
            let signed = |at: u64| i64::try_from(at).unwrap_or(i64::MAX);
            let lease = was.and_then(|was| was.lease_until);
            let left = lease.map(|lease| signed(lease) - signed(world.wall().as_millis()));
            Event::Claimed {
                key,
                message: is.message,
                worker,
                was: before,
                lease_left_ms: left,
                attempts_alone: is.attempts_alone,
            }
        }
        None => Event::Settled {
            key,
            worker,
            was: before,
            is: after,
        },
    };
    world.note(event);
}

/// Returns the store of a process.
pub fn store(world: &Arc<World>, member: &Member) -> DynamoStore {
    let (world, member) = (Arc::clone(world), member.clone());
    let config = config(move |Request { operation, body }| {
        let (world, member) = (Arc::clone(&world), member.clone());
        HttpConnectorFuture::new(async move {
            let mut silence = Silence {
                world: Arc::clone(&world),
                worker: member.worker,
                keys: keys(&body),
            };
            let worker = member.worker;
            let served = move |world: &World| {
                let table = world.table.at_the_wire();
                table.and_then(|table| table.serve(world, worker, &operation, &body))
            };
            match world.exchange(&member, FOREVER, served).await.flatten() {
                Some(answer) => {
                    silence.keys.clear();
                    response(answer)
                }
                None => pending().await,
            }
        })
    });
    DynamoStore::new(Client::new(&config), TABLE)
}

/// Notes a request that got no response when its future is dropped.
struct Silence {
    world: Arc<World>,
    worker: Worker,
    keys: Vec<String>,
}

impl Drop for Silence {
    fn drop(&mut self) {
        for key in self.keys.drain(..) {
            self.world.note(Event::TableFault {
                key,
                worker: self.worker,
                fault: "no answer",
            });
        }
    }
}

/// Returns the keys of the records that a request writes.
fn keys(body: &Value) -> Vec<String> {
    let id = |item: &Value| item["id"]["S"].as_str().map(str::to_owned);
    let of_statement = |statement: &Value| {
        let values = statement["Parameters"].as_array()?;
        let mut texts = values.iter().filter_map(|value| value["S"].as_str());
        let key = texts.find(|text| text.starts_with("orders#"));
        key.map(str::to_owned)
    };
    let statements = body["Statements"].as_array().into_iter().flatten();
    let keys = statements.filter_map(of_statement);
    keys.chain(id(&body["Key"]))
        .chain(id(&body["Item"]))
        .collect()
}

/// Codes of a request that fails only because of other requests.
const THROTTLED: [&str; 4] = [
    "ProvisionedThroughputExceededException",
    "RequestLimitExceeded",
    "ThrottlingException",
    "TransactionConflictException",
];

fn error(status: u16, code: &str) -> Answer {
    let kind = format!("com.amazonaws.dynamodb.v20120810#{code}");
    (status, json!({ "__type": kind, "message": "simulated" }))
}

fn ask(database: &Database, operation: &str, body: Value) -> Answer {
    match operation {
        "BatchExecuteStatement" => said(database.batch_execute_statement(parsed(body))),
        "DeleteItem" => said(database.delete_item(parsed(body))),
        "GetItem" => said(database.get_item(parsed(body))),
        "PutItem" => said(database.put_item(parsed(body))),
        "UpdateItem" => said(database.update_item(parsed(body))),
        other => unreachable!("the store does not send {other}"),
    }
}

fn parsed<T: DeserializeOwned>(body: Value) -> T {
    serde_json::from_value(body).expect("the SDK's request is valid")
}

fn said<T: Serialize>(answer: dynoxide::Result<T>) -> Answer {
    match answer {
        Ok(answer) => (200, serde_json::to_value(answer).expect("JSON")),
        Err(error) => (400, serde_json::from_str(&error.to_json()).expect("JSON")),
    }
}

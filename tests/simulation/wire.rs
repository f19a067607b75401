//! [`Dynamo`]: DynamoDB at the wire, with the idempotency table, the application's own items and the outbox. The shipped
//! stores and modes send their requests through the SDK over a connector in memory, and dynoxide serves them in this
//! thread.

use std::{
    collections::BTreeSet,
    fmt,
    future::{pending, ready},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
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
    protocol::{Key, Record, StoredResult, Timestamp},
    store::DynamoStore,
};

use crate::{
    ledger::{Event, Worker},
    plan::{Mode, Service},
    sdk::{Request, config, response},
    table::{has_lease, output},
    world::{Member, World},
};

pub const TABLE: &str = "records";
/// The application's own items. Each counts the writes that were applied to it, and has the key of the last.
pub const ITEMS: &str = "items";
pub const OUTBOX: &str = "outbox";
/// Longer than the SDK waits.
const FOREVER: Duration = Duration::from_secs(3600);

type Answer = (u16, Value);

/// The table of records.
pub struct Dynamo {
    database: Database,
    /// Keys whose write to an item was applied.
    applied: Mutex<BTreeSet<String>>,
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
    expires_at: u64,
    updated_at: u64,
    result: Option<StoredResult>,
    failures: String,
}

/// An item's count of writes, and the key of the last.
type Count = (u64, String);

impl Dynamo {
    pub fn new() -> Self {
        let database = Database::memory().expect("a database");
        let tables = [
            (TABLE, &["id"][..]),
            (ITEMS, &["id"]),
            (OUTBOX, &["group", "sequence"]),
        ];
        for (name, key) in tables {
            let define = |name| json!({ "AttributeName": name, "AttributeType": "S" });
            let of_key = |(name, kind)| json!({ "AttributeName": name, "KeyType": kind });
            let table = json!({
                "TableName": name,
                "AttributeDefinitions": key.iter().map(define).collect::<Vec<_>>(),
                "KeySchema": key.iter().zip(["HASH", "RANGE"]).map(of_key).collect::<Vec<_>>(),
                "BillingMode": "PAY_PER_REQUEST",
            });
            let created = database.create_table(parsed(table));
            created.expect("a table");
        }
        let served = database.clone();
        let config = config(move |request: Request| {
            let (status, body) = ask(&served, &request.operation, request.json());
            HttpConnectorFuture::new(ready(response((status, body.to_string()))))
        });
        Self {
            database,
            applied: Mutex::default(),
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
        let record = shown.record.as_ref().ok();
        let Some(record) = record.filter(|record| has_lease(record, now)) else {
            return false;
        };
        let release = self.operator.replace(&shown, record.released(now));
        matches!(release.now_or_never(), Some(Ok(true)))
    }

    pub fn delete(&self, key: &Key) -> bool {
        let Some(shown) = self.show(key) else {
            return false;
        };
        let delete = self.operator.delete_record(&shown);
        matches!(delete.now_or_never(), Some(Ok(true)))
    }

    /// Returns whether the write of an operation to an item was applied.
    pub fn has_applied(&self, key: &Key) -> bool {
        self.applied().contains(key.as_str())
    }

    fn applied(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.applied.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn item(&self, table: &str, id: &str) -> Option<Value> {
        self.read(table, &json!({ "id": { "S": id } }))
    }

    /// Returns whether an item of the outbox is there.
    fn has(&self, item: &Value) -> bool {
        let key = json!({ "group": item["group"], "sequence": item["sequence"] });
        self.read(OUTBOX, &key).is_some()
    }

    fn read(&self, table: &str, key: &Value) -> Option<Value> {
        let read = json!({ "TableName": table, "Key": key });
        let (_, mut answer) = ask(&self.database, "GetItem", read);
        Some(answer.get_mut("Item")?.take())
    }

    fn count(&self, id: &str) -> Count {
        let item = self.item(ITEMS, id).unwrap_or_default();
        let count = item["applied"]["N"].as_str().and_then(|n| n.parse().ok());
        let last = item["last"]["S"].as_str().unwrap_or_default();
        (count.unwrap_or(0), last.to_owned())
    }

    /// Returns the keys that an item has.
    fn processed(&self, id: &str) -> Vec<String> {
        let item = self.item(ITEMS, id).unwrap_or_default();
        let entries = item["processed_events"]["L"].as_array();
        let keys = entries.into_iter().flatten();
        keys.filter_map(|entry| entry["S"].as_str().map(str::to_owned))
            .collect()
    }

    fn see(&self, key: &str) -> Option<Seen> {
        let item = self.item(TABLE, key)?;
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
            expires_at: text("expires_at", "N").parse().unwrap_or(u64::MAX),
            updated_at: ["updated_at", "first_claimed_at"]
                .iter()
                .find_map(|name| text(name, "N").parse().ok())
                .unwrap_or(0),
            result: match (&item["result"]["S"], &item["result_in_s3"]["S"]) {
                (Value::String(json), _) => Some(StoredResult::Json(json.clone())),
                (_, Value::String(pointer)) => {
                    serde_json::from_str(pointer).ok().map(StoredResult::InS3)
                }
                _ => None,
            },
            failures: text("failures", "S"),
        })
    }

    /// Serves a request, and notes what it changes.
    fn serve(
        &self,
        world: &World,
        worker: Worker,
        operation: &str,
        body: &Value,
        Names {
            keys,
            items,
            published,
        }: &Names,
    ) -> Option<Answer> {
        let note = |fault| {
            for key in keys {
                let key = key.clone();
                world.note(Event::TableFault { key, worker, fault });
            }
        };
        if world.is_out(Service::Credentials) || world.strikes(world.plan.rates.denied) {
            note("denied");
            return Some(error(400, world.dice().pick(&DENIED)));
        }
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
                Some(statements) if !statements.is_empty() => {
                    throttled = statements
                        .iter()
                        .map(|_| world.dice().chance(0.5))
                        .collect();
                    let mut these = throttled.iter();
                    statements.retain(|_| these.next() == Some(&false));
                }
                _ if operation == "TransactWriteItems" && world.dice().chance(0.5) => {
                    return Some(cancelled(body));
                }
                _ => return Some(error(400, world.dice().pick(&THROTTLED))),
            }
        } else if world.strikes(rates.server_error) {
            note("server error");
            return Some(error(500, "InternalServerError"));
        }
        if keys.len() > 1 {
            let keys = keys.clone();
            world.note(Event::BatchedWrites { worker, keys });
        }
        // A read changes nothing.
        if operation == "GetItem" {
            return Some(ask(&self.database, operation, served));
        }
        let before: Vec<_> = keys.iter().map(|key| self.see(key)).collect();
        let items: Vec<_> = items
            .iter()
            .map(|id| (id, self.count(id), self.processed(id)))
            .collect();
        let mut published: Vec<_> = published.iter().filter(|item| !self.has(item)).collect();
        let mut answer = if served["Statements"].as_array().is_some_and(Vec::is_empty) {
            (200, json!({ "Responses": [] }))
        } else {
            ask(&self.database, operation, served)
        };
        let changes = keys.iter().zip(before).filter_map(|(key, was)| {
            let is = self.see(key);
            (is != was).then(|| {
                (
                    key,
                    was.filter(|was| !world.forgets(key, was.expires_at)),
                    is,
                )
            })
        });
        let changes: Vec<_> = changes.collect();
        for (id, (before, _), mut forgotten) in items {
            let kept = self.processed(id);
            forgotten.retain(|key| !kept.contains(key));
            for key in forgotten {
                self.applied().remove(&key);
                world.note(Event::Forgotten { key });
            }
            let (count, key) = self.count(id);
            for _ in before..count {
                self.note_applied(world, worker, &key);
            }
        }
        // The stream may have the items of a transaction in any order.
        if published.len() > 1 && world.dice().chance(0.5) {
            published.reverse();
        }
        for item in published.into_iter().filter(|item| self.has(item)) {
            world.stream.append(world, item);
        }
        for (key, was, is) in changes {
            note_change(world, worker, key, was, is);
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

    /// Notes that a write to an item was applied. An item that has the keys of its changes is claimed and completed by
    /// each.
    fn note_applied(&self, world: &World, worker: Worker, key: &str) {
        let is_first = self.applied().insert(key.to_owned());
        let key = key.to_owned();
        world.note(Event::Applied { key: key.clone() });
        if world.plan.mode != Mode::Item {
            return;
        }
        world.note(Event::Claimed {
            key: key.clone(),
            message: world.gateway.message_of(&key, worker),
            worker,
            was: if is_first { "nothing" } else { "COMPLETED" },
            lease_left_ms: None,
            attempts_alone: 0,
            made_ms: 0,
        });
        world.note(Event::Settled {
            key,
            worker,
            was: "IN_PROGRESS",
            is: "COMPLETED",
            output: None,
        });
    }
}

/// A record gets another owner by a claim, and in an inbox by its end.
fn note_change(world: &World, worker: Worker, key: &str, was: Option<Seen>, is: Option<Seen>) {
    let key = key.to_owned();
    let status = |seen: &Option<Seen>| seen.as_ref().map_or("nothing", |seen| seen.status);
    let (before, after) = (status(&was), status(&is));
    let failures = |seen: &Option<Seen>| seen.as_ref().map(|seen| seen.failures.clone());
    let failed = failures(&is).filter(|_| after == "FAILED" && failures(&is) != failures(&was));
    let is_same = |is: &Seen| was.as_ref().is_some_and(|was| was.owner == is.owner);
    let result = is.as_ref().and_then(|is| is.result.as_ref());
    let output = result.and_then(|result| output(world, result));
    let claimed = is.filter(|is| !is_same(is));
    if let Some(is) = &claimed {
        let signed = |at: u64| i64::try_from(at).unwrap_or(i64::MAX);
        let lease = was.and_then(|was| was.lease_until);
        let left = lease.map(|lease| signed(lease) - signed(world.wall().as_millis()));
        world.note(Event::Claimed {
            key: key.clone(),
            message: is.message.clone(),
            worker,
            was: before,
            lease_left_ms: left,
            attempts_alone: is.attempts_alone,
            made_ms: is.updated_at,
        });
    }
    if let Some(failures) = failed {
        let failures: Value = serde_json::from_str(&failures).unwrap_or_default();
        let newest = |name: &str| failures[0][name].as_str().unwrap_or_default().to_owned();
        world.note(Event::Failed {
            key: key.clone(),
            message: newest("message_id"),
            error: newest("error"),
        });
    }
    if claimed.is_none_or(|is| is.status != "IN_PROGRESS") {
        world.note(Event::Settled {
            key,
            worker,
            was: before,
            is: after,
            output,
        });
    }
}

/// Returns the client of a process.
pub fn client(world: &Arc<World>, member: &Member) -> Client {
    let (world, member) = (Arc::clone(world), member.clone());
    let config = config(move |request: Request| {
        let (operation, body) = (request.operation.clone(), request.json());
        let (world, member) = (Arc::clone(&world), member.clone());
        HttpConnectorFuture::new(async move {
            let names = Names::of(&body);
            let mut silence = Silence {
                world: Arc::clone(&world),
                worker: member.worker,
                keys: names.keys.clone(),
            };
            let worker = member.worker;
            let served = move |world: &World| {
                let table = world.table.at_the_wire();
                table.and_then(|table| table.serve(world, worker, &operation, &body, &names))
            };
            match world.exchange(&member, FOREVER, served).await.flatten() {
                Some((status, body)) => {
                    silence.keys.clear();
                    response((status, body.to_string()))
                }
                None => pending().await,
            }
        })
    });
    Client::new(&config)
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

/// What a request is about.
#[derive(Default)]
struct Names {
    /// Keys of operations, without repetition.
    keys: Vec<String>,
    /// Items of the application that it writes.
    items: BTreeSet<String>,
    /// Items that it puts into the outbox.
    published: Vec<Value>,
}

impl Names {
    fn of(body: &Value) -> Self {
        let mut names = Self::default();
        names.find(body);
        names
    }

    fn find(&mut self, value: &Value) {
        match value {
            Value::String(text) if text.starts_with("orders#") && !self.keys.contains(text) => {
                self.keys.push(text.clone());
            }
            Value::Array(values) => values.iter().for_each(|value| self.find(value)),
            Value::Object(_) if value["TableName"] == OUTBOX => {
                self.published.push(value["Item"].clone());
            }
            Value::Object(members) => {
                if value["TableName"] == ITEMS {
                    let ids = [&value["Key"], &value["Item"]].map(|item| item["id"]["S"].as_str());
                    self.items
                        .extend(ids.into_iter().flatten().map(str::to_owned));
                }
                // An item has the keys of earlier changes too.
                let is_list = |name: &&String| *name != "processed_events";
                let members = members.iter().filter(|(name, _)| is_list(name));
                members.for_each(|(_, value)| self.find(value));
            }
            _ => {}
        }
    }
}

/// Codes of a request that fails only because of other requests.
const THROTTLED: [&str; 4] = [
    "ProvisionedThroughputExceededException",
    "RequestLimitExceeded",
    "ThrottlingException",
    "TransactionConflictException",
];

/// Codes of a request that no permission covers, for now.
const DENIED: [&str; 2] = ["AccessDeniedException", "ExpiredTokenException"];

/// A transaction that met another one.
fn cancelled(body: &Value) -> Answer {
    let items = body["TransactItems"].as_array().map_or(0, Vec::len);
    let reason = |n| match n {
        0 => json!({ "Code": "TransactionConflict", "Message": "simulated" }),
        _ => json!({ "Code": "None" }),
    };
    let (status, mut error) = error(400, "TransactionCanceledException");
    error["CancellationReasons"] = (0..items).map(reason).collect();
    (status, error)
}

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
        "TransactWriteItems" => said(database.transact_write_items(parsed(body))),
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

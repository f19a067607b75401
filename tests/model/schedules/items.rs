//! The table of `ItemMode`: dynoxide, in this process, which evaluates the SDK's own requests.
//!
//! The result of a request depends only on the request and the item, and is cached: executions are
//! many, and distinct requests are few.

use std::{cell::RefCell, collections::HashMap};

use dynoxide::{
    Database,
    actions::{
        create_table::CreateTableRequest, delete_item::DeleteItemRequest, get_item::GetItemRequest,
        put_item::PutItemRequest, update_item::UpdateItemRequest,
    },
};
use serde_json::{Value, json};
use sqs_once::protocol::Timestamp;

use crate::schedules::{clock, flaw::Flaw, world::KEY};

pub const TABLE: &str = "items";
/// The item's `id`.
pub const ITEM: &str = "item";

/// A request as it crosses the wire.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ItemRequest {
    pub operation: String,
    /// JSON with sorted keys.
    pub body: String,
}

/// The response.
#[derive(Clone, Debug, PartialEq)]
pub struct ItemAnswer {
    /// In DynamoDB's format: a 200, or a 400.
    pub said: Result<Value, Value>,
    /// True if the item knew the operation before.
    pub knew: bool,
}

impl ItemAnswer {
    pub fn throttled() -> Self {
        let said = Err(json!({
            "__type": "com.amazonaws.dynamodb.v20120810#ThrottlingException",
            "message": "try again",
        }));
        Self { said, knew: false }
    }

    pub fn is_refusal(&self) -> bool {
        let code = self
            .said
            .as_ref()
            .err()
            .and_then(|error| error["__type"].as_str());
        code.is_some_and(|code| code.ends_with("#ConditionalCheckFailedException"))
    }
}

/// The item in JSON, if it exists.
pub type Item = Option<String>;

/// Beginning of the keys of other operations.
const OTHER: &str = "another-";
/// A key past its retention.
const OLD: &str = "old";

/// The workers' time for keys on the item. It stands still, so it distinguishes no states.
pub fn now() -> Timestamp {
    clock::START
}

/// An item with a key past its retention.
pub fn outdated() -> Item {
    let item = json!({
        "id": { "S": ITEM },
        "processed_events": { "L": [{ "N": "1" }, { "S": OLD }] },
    });
    Some(item.to_string())
}

/// Executes a request, and returns the item after it.
pub fn answer(item: &Item, request: &ItemRequest) -> (ItemAnswer, Item) {
    thread_local! {
        static ITEMS: RefCell<Items> = RefCell::new(Items::new());
    }
    ITEMS.with_borrow_mut(|items| items.answer(item, request))
}

impl ItemRequest {
    pub fn new(operation: String, body: &Value) -> Self {
        Self {
            operation,
            body: body.to_string(),
        }
    }

    pub fn reads(&self) -> bool {
        self.operation == "GetItem"
    }

    /// True if it removes old keys, if the item's keys are unchanged since a refusal.
    fn removes_keys(&self) -> bool {
        self.operation == "UpdateItem"
            && self.parsed()["ExpressionAttributeValues"][":sqs_once_found"].is_object()
    }

    /// True if it puts the item only if it is unchanged since the read.
    pub fn is_versioned(&self) -> bool {
        self.parsed()["Item"]["version"].is_object()
    }

    fn parsed(&self) -> Value {
        serde_json::from_str(&self.body).expect("a request is JSON")
    }

    /// The same from a program with a flaw.
    pub fn with_flaw(&self, flaw: Flaw) -> Self {
        let mut body = self.parsed();
        let fields = body.as_object_mut().expect("a request is an object");
        match (flaw, fields.get_mut("ConditionExpression")) {
            // DynamoDB requires every name and value to be used.
            (Flaw::ChangeWithoutCondition, Some(condition)) => {
                let any = format!("attribute_not_exists(nothing) OR ({condition})");
                *condition = any.replace('"', "").into();
            }
            (Flaw::RefusalWithoutItem, _) => {
                fields.remove("ReturnValuesOnConditionCheckFailure");
            }
            _ => {}
        }
        Self::new(self.operation.clone(), &body)
    }
}

/// The changes recorded in an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ItemHistory {
    /// Number of sales.
    pub sold: usize,
    /// True if the item remembers the operation.
    pub known: bool,
    /// Number of changes by other programs.
    pub others: usize,
}

pub fn tells(item: &Item) -> ItemHistory {
    let item: Value = item.as_ref().map_or(Value::Null, |item| {
        serde_json::from_str(item).expect("an item is JSON")
    });
    let sold = count(&item, "sold");
    let events = item["processed_events"]["L"].as_array();
    let keys = || {
        events
            .into_iter()
            .flatten()
            .filter_map(|key| key["S"].as_str())
    };
    let known = keys().any(|key| key == KEY.as_str());
    let others = count(&item, "others") + keys().filter(|key| key.starts_with(OTHER)).count();
    ItemHistory {
        sold,
        known,
        others,
    }
}

/// The item as another program has changed it, without a sale; and whether that change stays.
///
/// An update or a create is refused because of a mark, which is gone the next moment. A put that
/// counts versions is refused because of the version, as after any other change. An update that
/// removes old keys is refused because another operation has removed them meanwhile.
pub fn change_by_other(item: &Item, request: &ItemRequest) -> (Item, bool) {
    let mut item: Value = item.as_ref().map_or_else(
        || json!({ "id": { "S": ITEM } }),
        |item| serde_json::from_str(item).expect("an item is JSON"),
    );
    let stays = request.is_versioned() || request.removes_keys();
    if request.removes_keys() {
        let another = format!("{OTHER}{}", tells(&Some(item.to_string())).others);
        let events = item["processed_events"]["L"].as_array_mut();
        let events = events.expect("the item has keys");
        if events[1]["S"] == OLD {
            events.drain(..2);
        }
        events.extend([
            json!({ "N": now().as_secs().to_string() }),
            json!({ "S": another }),
        ]);
    } else if stays {
        for counted in ["version", "others"] {
            let next = count(&item, counted) + 1;
            item[counted] = json!({ "N": next.to_string() });
        }
    } else {
        item["sold_out"] = json!({ "BOOL": true });
    }
    (Some(item.to_string()), stays)
}

fn count(item: &Value, name: &str) -> usize {
    let number = item[name]["N"].as_str();
    number.map_or(0, |number| number.parse().expect("a count"))
}

struct Items {
    database: Database,
    known: HashMap<(Item, ItemRequest), (ItemAnswer, Item)>,
}

impl Items {
    fn new() -> Self {
        let database = Database::memory().unwrap();
        let table = json!({
            "TableName": TABLE,
            "AttributeDefinitions": [{ "AttributeName": "id", "AttributeType": "S" }],
            "KeySchema": [{ "AttributeName": "id", "KeyType": "HASH" }],
            "BillingMode": "PAY_PER_REQUEST",
        });
        let table: CreateTableRequest = serde_json::from_value(table).unwrap();
        database.create_table(table).unwrap();
        Self {
            database,
            known: HashMap::new(),
        }
    }

    fn answer(&mut self, item: &Item, request: &ItemRequest) -> (ItemAnswer, Item) {
        let asked = (item.clone(), request.clone());
        if let Some(known) = self.known.get(&asked) {
            return known.clone();
        }
        self.set(item);
        let body = request.parsed();
        let answer = ItemAnswer {
            said: self.ask(&request.operation, body),
            knew: tells(item).known,
        };
        let answered = (answer, self.get());
        self.known.insert(asked, answered.clone());
        answered
    }

    fn ask(&self, operation: &str, body: Value) -> Result<Value, Value> {
        fn parsed<T: serde::de::DeserializeOwned>(body: Value) -> T {
            serde_json::from_value(body).expect("the SDK's request is valid")
        }
        fn said<T: serde::Serialize>(answer: dynoxide::Result<T>) -> Result<Value, Value> {
            match answer {
                Ok(answer) => Ok(serde_json::to_value(answer).unwrap()),
                Err(error) => Err(serde_json::from_str(&error.to_json()).unwrap()),
            }
        }
        match operation {
            "PutItem" => said(self.database.put_item(parsed::<PutItemRequest>(body))),
            "UpdateItem" => said(self.database.update_item(parsed::<UpdateItemRequest>(body))),
            "GetItem" => said(self.database.get_item(parsed::<GetItemRequest>(body))),
            "DeleteItem" => said(self.database.delete_item(parsed::<DeleteItemRequest>(body))),
            other => unreachable!("ItemMode does not send {other}"),
        }
    }

    fn set(&self, item: &Item) {
        let set = match item {
            Some(item) => {
                let item: Value = serde_json::from_str(item).unwrap();
                self.ask("PutItem", json!({ "TableName": TABLE, "Item": item }))
            }
            None => self.ask("DeleteItem", key()),
        };
        set.unwrap();
    }

    fn get(&self) -> Item {
        let found = self.ask("GetItem", key()).unwrap();
        found.get("Item").map(Value::to_string)
    }
}

fn key() -> Value {
    json!({ "TableName": TABLE, "Key": { "id": { "S": ITEM } } })
}

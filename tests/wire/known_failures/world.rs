//! A table, and the workers that share it.
use std::{sync::Arc, time::Duration};

use serde_json::{Value, json};
use sqs_once::{
    Attempt, Consumer, Deadline, Failure, Handler, Once, handler_fn, protocol::Timestamp,
    store::DynamoStore,
};
use support::{
    consumer::{namespace, process, within},
    dynamo::{Dynamo, Item},
    event::{batch, record},
};

pub const TABLE: &str = "idempotency";
pub const TIME: Duration = Duration::from_secs(10);

pub type Worker<H> = Consumer<Once<DynamoStore>, H>;

/// A table, and the workers that share it.
pub struct World(pub Dynamo);

impl World {
    pub async fn new() -> Self {
        let dynamo = Dynamo::start().await;
        dynamo.create_table(TABLE).await;
        Self(dynamo)
    }

    pub fn once(&self) -> Once<DynamoStore> {
        Once::new(DynamoStore::new(self.0.client(), TABLE))
    }

    pub fn worker<H: Handler<Output: serde::Serialize>>(&self, handler: H) -> Worker<H> {
        worker(self.once(), handler)
    }

    /// Delivers once more and returns the ids reported as failed. No handler may run.
    pub async fn deliver_again(&self, order: &Value) -> Vec<String> {
        let never = async |_: Value, _: Attempt| -> Result<(), Failure> { panic!("it ran again") };
        process(
            &Arc::new(self.worker(handler_fn(never))),
            event(order),
            within(TIME),
        )
        .await
    }

    pub async fn the_record(&self) -> Item {
        let records = self.0.records(TABLE).await;
        assert_eq!(records.len(), 1, "{records:?}");
        records.into_iter().next().unwrap()
    }
}

pub fn worker<H: Handler<Output: serde::Serialize>>(
    once: Once<DynamoStore>,
    handler: H,
) -> Worker<H> {
    Consumer::without_aws(once, namespace(), handler).key("body:/orderId".parse().unwrap())
}

pub fn order() -> Value {
    json!({"orderId": "o-1", "customerId": "c-17"})
}

pub fn event(order: &Value) -> Value {
    batch([record("m-1", order)])
}

/// A time at which every current lease has ended, and no record has expired.
pub fn in_an_hour() -> Timestamp {
    Timestamp::now() + Duration::from_secs(3600)
}

/// As [`within`](support::consumer::within), by that clock.
pub fn an_hour_later(budget: Duration) -> Deadline {
    Deadline::after(in_an_hour(), budget, budget / 4)
}

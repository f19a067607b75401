//! The consumer on the local cloud of `make test`, with the variables of the function in `template.yaml`.

use std::sync::{Arc, Mutex};

use sqs_once::Settings;
use sqs_once::testing::process;

use crate::handler;

/// Outcomes of `events/orders.json` in a consumer that has just started.
async fn outcomes() -> Vec<&'static str> {
    let outcomes = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&outcomes);
    let consumer = handler::consumer(Settings::from_env()).await;
    let consumer = consumer.expect("`make test` starts a local cloud for this test");
    let consumer = consumer.on_outcome(move |message| {
        seen.lock().unwrap().push(message.outcome.name());
    });
    let orders = serde_json::from_str(include_str!("../events/orders.json")).unwrap();
    let failed = process(&Arc::new(consumer), orders).await.unwrap();
    assert!(failed.is_empty(), "failed: {failed:?}");
    let mut outcomes = std::mem::take(&mut *outcomes.lock().unwrap());
    outcomes.sort_unstable();
    outcomes
}

#[tokio::test]
#[ignore = "needs a local cloud: run `make test`"]
async fn orders_are_processed_once() {
    assert_eq!(outcomes().await, ["completed", "completed", "duplicate"]);
    // Another worker, in the same table.
    assert_eq!(outcomes().await, ["duplicate"; 3]);
}

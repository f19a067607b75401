//! A consumer in the test's own process.

use std::{sync::Arc, time::Duration};

use serde_json::Value;
use sqs_once::{
    Consumer, Deadline, Handler, Mode,
    protocol::{Namespace, Timestamp},
};

pub fn namespace() -> Namespace {
    Namespace::new("test").unwrap()
}

/// A deadline that keeps a quarter back.
pub fn within(budget: Duration) -> Deadline {
    Deadline::after(Timestamp::now(), budget, budget / 4)
}

/// Processes an event as Lambda sends it; answers the identifiers reported as failed.
pub async fn process<M: Mode<H::Output>, H: Handler>(
    consumer: &Arc<Consumer<M, H>>,
    event: Value,
    deadline: Deadline,
) -> Vec<String> {
    let event = serde_json::from_value(event).unwrap();
    let response = consumer.process(event, deadline).await.unwrap();
    super::event::failed(&serde_json::to_value(response).unwrap())
}

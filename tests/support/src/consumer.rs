//! A consumer in the test's own process.

use std::{collections::HashSet, sync::Arc, time::Duration};

use aws_lambda_events::sqs::SqsEvent;
use serde_json::Value;
use sqs_once::{
    BatchError, Consumer, Deadline, Handler, Mode,
    protocol::{Namespace, Timestamp},
};

pub fn namespace() -> Namespace {
    Namespace::new("test").unwrap()
}

/// A deadline that keeps a quarter back.
pub fn within(budget: Duration) -> Deadline {
    Deadline::after(Timestamp::now(), budget, budget / 4)
}

/// Processes an event as Lambda sends it, and returns the identifiers reported as failed. These are
/// all identifiers if the invocation fails because the store is unavailable.
pub async fn process<M: Mode<H::Output>, H: Handler>(
    consumer: &Arc<Consumer<M, H>>,
    event: Value,
    deadline: Deadline,
) -> Vec<String> {
    let event: SqsEvent = serde_json::from_value(event).unwrap();
    let ids = event.records.iter().map(|record| record.message_id.clone());
    let mut ids: Vec<String> = ids.collect::<Option<_>>().unwrap();
    match consumer.process(event, deadline).await {
        Ok(response) => super::event::failed(&serde_json::to_value(response).unwrap()),
        Err(BatchError::StoreUnavailable { messages, .. }) => {
            assert_eq!(messages, ids.len());
            let mut known = HashSet::new();
            ids.retain(|id| known.insert(id.clone()));
            ids
        }
        Err(error) => panic!("{error}"),
    }
}

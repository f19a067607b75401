//! Outages of DynamoDB, whose failed invocations show in Lambda's Errors metric.

use std::{sync::Arc, time::Duration};

use aws_config::{retry::RetryConfig, timeout::TimeoutConfig};
use aws_sdk_dynamodb::Client;
use axum::{Json, Router, http::StatusCode};
use serde_json::{Value, json};
use sqs_once::{
    Attempt, BatchError, Consumer, Done, Failure, Handler, Mode, Once, Write, handler_fn,
    sqs::Visibility, store::DynamoStore,
};
use support::{
    consumer::{namespace, within},
    dynamo::Dynamo,
    event::{self, batch, in_group, record},
    faults::Fault,
    sqs::{Sqs, SqsBehaviour},
};

const SECOND: Duration = Duration::from_secs(1);
const TABLE: &str = "idempotency";

async fn take(_: Value, _: Attempt) -> Result<(), Failure> {
    Ok(())
}

async fn plan(_: Value, _: Attempt) -> Result<Done<()>, Failure> {
    let write = Write::put("things", json!({"id": "thing"}));
    Ok(Done::new(()).with(write))
}

/// Store whose client gives up soon.
fn store(dynamo: &Dynamo, table: &str) -> DynamoStore {
    let timeouts = TimeoutConfig::builder()
        .operation_attempt_timeout(SECOND / 2)
        .build();
    let client = dynamo.client_with(RetryConfig::disabled(), timeouts);
    DynamoStore::new(client, table)
}

async fn dynamo() -> Dynamo {
    let dynamo = Dynamo::start().await;
    dynamo.create_table(TABLE).await;
    dynamo
}

/// Ids reported as failed, or the error of the invocation.
async fn process<M: Mode<H::Output>, H: Handler>(
    consumer: Consumer<M, H>,
    messages: impl IntoIterator<Item = Value>,
) -> Result<Vec<String>, BatchError> {
    let event = serde_json::from_value(batch(messages)).unwrap();
    let response = Arc::new(consumer)
        .process(event, within(10 * SECOND))
        .await?;
    Ok(event::failed(&serde_json::to_value(response).unwrap()))
}

fn messages() -> [Value; 3] {
    ["m-1", "m-2", "m-3"].map(|id| record(id, "{}"))
}

#[track_caller]
fn assert_fails(answer: Result<Vec<String>, BatchError>, because: &str) {
    let error = answer.unwrap_err();
    let is = matches!(error, BatchError::StoreUnavailable { messages: 3, .. });
    assert!(is, "{error:?}");
    assert!(error.to_string().contains(because), "{error}");
}

#[tokio::test]
async fn unreachable_dynamodb_fails_invocation() {
    let dynamo = dynamo().await;
    dynamo.fail_all("Claim", Fault::Refuse);
    let consumer = Consumer::without_aws(
        Once::new(store(&dynamo, TABLE)),
        namespace(),
        handler_fn(take),
    );
    assert_fails(process(consumer, messages()).await, "could not connect");
}

#[tokio::test]
async fn silent_dynamodb_fails_invocation() {
    let dynamo = dynamo().await;
    dynamo.fail_all("Claim", Fault::HoldRequest);
    dynamo.fail_all("UpdateItem", Fault::HoldRequest);
    let consumer = Consumer::without_aws(
        Once::new(store(&dynamo, TABLE)),
        namespace(),
        handler_fn(take),
    );
    assert_fails(process(consumer, messages()).await, "no answer in time");
}

#[tokio::test]
async fn missing_table_fails_invocation() {
    let dynamo = Dynamo::start().await;
    let store = || store(&dynamo, "no-such-table");
    let claims = Consumer::without_aws(Once::new(store()), namespace(), handler_fn(take));
    assert_fails(process(claims, messages()).await, "no such table");
    let commits = Consumer::without_aws(Once::new(store()).inbox(), namespace(), handler_fn(plan));
    assert_fails(process(commits, messages()).await, "no such table");
}

#[tokio::test]
async fn denied_access_fails_invocation() {
    let denied = json!({
        "__type": "com.amazon.coral.service#AccessDeniedException",
        "Message": "User: ... is not authorized to perform: dynamodb:PutItem",
    });
    let deny = move || async move { (StatusCode::BAD_REQUEST, Json(denied)) };
    let endpoint = support::serve(Router::new().fallback(deny)).await;
    let client = Client::new(&support::sdk_config(&format!("http://{endpoint}")));
    let once = Once::new(DynamoStore::new(client, TABLE));
    let consumer = Consumer::without_aws(once, namespace(), handler_fn(take));
    let reason = "the reason of AWS: User: ... is not authorized to perform: dynamodb:PutItem";
    assert_fails(process(consumer, messages()).await, reason);
}

#[tokio::test]
async fn visibility_is_set_before_invocation_fails() {
    let (dynamo, sqs) = (
        Dynamo::start().await,
        Sqs::start(SqsBehaviour::Willing).await,
    );
    let once = Once::new(store(&dynamo, "no-such-table"));
    let visibility = Visibility::new(sqs.client()).jitter(|most| most);
    let consumer =
        Consumer::without_aws(once, namespace(), handler_fn(take)).visibility(visibility);
    assert_fails(process(consumer, messages()).await, "no such table");
    let changes = sqs.changes();
    assert_eq!(changes.len(), 3);
    assert!(changes.iter().all(|(_, seconds)| *seconds == 10));
}

#[tokio::test]
async fn throttling_does_not_fail_invocation() {
    let dynamo = dynamo().await;
    for fault in [Fault::Throttle, Fault::ThroughputExceeded] {
        dynamo.fail_all("Claim", fault);
        dynamo.fail_all("UpdateItem", fault);
        let consumer = Consumer::without_aws(
            Once::new(store(&dynamo, TABLE)),
            namespace(),
            handler_fn(take),
        );
        let answer = process(consumer, messages()).await;
        assert_eq!(answer.unwrap(), ["m-1", "m-2", "m-3"], "{fault:?}");
    }
}

#[tokio::test]
async fn other_outcome_in_batch_prevents_failed_invocation() {
    let dynamo = Dynamo::start().await;
    let consumer = || {
        let once = Once::new(store(&dynamo, "no-such-table"));
        Consumer::without_aws(once, namespace(), handler_fn(take)).key("body:/id".parse().unwrap())
    };
    let messages = ["m-1", "m-2", "m-3"].map(|id| record(id, &json!({"id": id})));
    // It fails before its claim.
    let without_key = record("m-4", "{}");
    let answer = process(consumer(), messages.into_iter().chain([without_key])).await;
    assert_eq!(answer.unwrap(), ["m-1", "m-2", "m-3", "m-4"]);
    assert_eq!(process(consumer(), []).await.unwrap(), [""; 0]);
}

#[tokio::test]
async fn outage_counts_blocked_fifo_messages() {
    let dynamo = Dynamo::start().await;
    let once = Once::new(store(&dynamo, "no-such-table"));
    let consumer = Consumer::without_aws(once, namespace(), handler_fn(take));
    let group = messages().map(|message| in_group(message, "g"));
    assert_fails(process(consumer, group).await, "no such table");
}

#[tokio::test]
async fn outage_does_not_fail_invocation_if_set() {
    let dynamo = Dynamo::start().await;
    let once = Once::new(store(&dynamo, "no-such-table"));
    let consumer = Consumer::without_aws(once, namespace(), handler_fn(take))
        .fail_when_store_unavailable(false);
    let answer = process(consumer, messages()).await;
    assert_eq!(answer.unwrap(), ["m-1", "m-2", "m-3"]);
}

//! `examples/http_api.rs`, request by request.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "tests fail by panicking"
)]

#[path = "../examples/http_api.rs"]
#[allow(
    dead_code,
    unreachable_pub,
    reason = "an example has a main of its own"
)]
mod http_api;

use lambda_http::{Body, Request, http::StatusCode};
use sqs_once::{
    Failure, Once,
    protocol::{AfterFailure, Fingerprint, Key, Namespace},
    store::MemoryStore,
};

fn once(store: &MemoryStore) -> Once<MemoryStore> {
    Once::new(store.clone()).after_failure(AfterFailure::Replay)
}

async fn post(store: &MemoryStore, key: Option<&str>, body: &str) -> (StatusCode, String) {
    let mut request = Request::new(Body::Text(body.into()));
    if let Some(key) = key {
        request
            .headers_mut()
            .insert("Idempotency-Key", key.parse().unwrap());
    }
    let response = http_api::answer(&once(store), request).await.unwrap();
    let Body::Text(text) = response.body() else {
        panic!("no text: {response:?}")
    };
    (response.status(), text.clone())
}

#[tokio::test]
async fn the_same_request_gets_the_same_answer_and_another_payload_is_refused() {
    let store = MemoryStore::default();
    let first = post(&store, Some("\"k-1\""), r#"{"amount": 1}"#).await;
    assert_eq!(first.0, StatusCode::OK);
    assert_eq!(post(&store, Some("k-1"), r#"{"amount": 1}"#).await, first);
    assert_eq!(
        post(&store, Some("k-1"), r#"{"amount": 2}"#).await.0,
        StatusCode::UNPROCESSABLE_ENTITY
    );
    assert_eq!(store.len(), 1);
}

#[tokio::test]
async fn while_the_first_is_being_processed_the_second_is_a_conflict() {
    let store = MemoryStore::default();
    let body = r#"{"amount": 1}"#;
    let operation = sqs_once::Operation::new(
        Key::new(&Namespace::new("payments-api").unwrap(), ["k-1"]).unwrap(),
        Some(Fingerprint::of(body.as_bytes())),
        sqs_once::Delivery::new("first"),
        sqs_once::Deadline::after(
            sqs_once::protocol::Timestamp::now(),
            std::time::Duration::from_secs(30),
            std::time::Duration::ZERO,
        ),
    );
    let once = once(&store);
    let mut first =
        Box::pin(once.run(operation, |_| std::future::pending::<Result<(), Failure>>()));
    assert!(futures_util::poll!(&mut first).is_pending());
    assert_eq!(
        post(&store, Some("k-1"), body).await.0,
        StatusCode::CONFLICT
    );
}

#[tokio::test]
async fn a_failure_for_good_is_answered_alike_the_second_time() {
    let store = MemoryStore::default();
    let first = post(&store, Some("k-1"), r#"{"amount": 0}"#).await;
    assert_eq!(first.0, StatusCode::UNPROCESSABLE_ENTITY);
    assert!(first.1.contains("not more than 0"), "{}", first.1);
    assert_eq!(post(&store, Some("k-1"), r#"{"amount": 0}"#).await, first);
}

#[tokio::test]
async fn what_cannot_be_processed_once_is_refused_and_leaves_nothing() {
    let store = MemoryStore::default();
    for (key, body) in [
        (None, r#"{"amount": 1}"#),
        (Some("\"\""), r#"{"amount": 1}"#),
        (Some("k-1"), "{}"),
    ] {
        assert_eq!(post(&store, key, body).await.0, StatusCode::BAD_REQUEST);
    }
    assert!(store.is_empty());
}

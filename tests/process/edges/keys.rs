//! Several messages under one key, and messages that only look as if they shared one.

use aws_sdk_dynamodb::types::AttributeValue;
use serde_json::{Value, json};
use support::{
    dynamo::{number, text},
    event::{batch, in_group, order, received, record},
    gateway::Reply,
    stage::{Stage, TIME, now_ms, outcome, outcomes, shown},
};
use tokio::join;

use super::{BY_ORDER, deliver, first_message, line_of};

/// A second message for order o-1, received for the `n`th time.
fn second_message(n: u32) -> Value {
    received("m-2", &order("o-1"), n)
}

/// The same, with another amount.
fn corrected_message(n: u32) -> Value {
    received("m-2", &corrected(), n)
}

fn corrected() -> Value {
    let mut order = order("o-1");
    order["amount"] = json!(9.99);
    order
}

/// Promise 2.
#[tokio::test]
async fn declined_order_is_charged_once_per_message() {
    let stage = Stage::set().await;
    let lambda = stage.consumer(&[BY_ORDER]).await;
    stage.gateway.script("o-1", vec![Reply::Status(402); 8]);
    for n in 1..=4 {
        assert_eq!(deliver(&lambda, [first_message(n)]).await, ["m-1"]);
        assert_eq!(deliver(&lambda, [second_message(n)]).await, ["m-2"]);
    }
    assert_eq!(stage.charges("o-1"), 2);
    let outcomes = outcomes(&lambda, 8).await;
    assert_eq!(outcomes[..2], [outcome::PERMANENT; 2]);
    assert_eq!(outcomes[2..], [outcome::FAILED_BEFORE; 6]);
    let record = stage.record("o-1").await.unwrap();
    assert_eq!(text(&record, "status"), "FAILED");
    let AttributeValue::Ss(mut failed) = record["failed_message_ids"].clone() else {
        panic!("{record:?}");
    };
    failed.sort();
    assert_eq!(failed, ["m-1", "m-2"]);
}

#[tokio::test]
async fn retryable_failure_keeps_other_failed_message() {
    let stage = Stage::set().await;
    let lambda = stage.consumer(&[BY_ORDER]).await;
    let replies = [Reply::Status(402), Reply::Status(503)];
    stage.gateway.script("o-1", replies);
    assert_eq!(deliver(&lambda, [first_message(1)]).await, ["m-1"]);
    assert_eq!(deliver(&lambda, [second_message(1)]).await, ["m-2"]);
    assert_eq!(deliver(&lambda, [first_message(2)]).await, ["m-1"]);
    assert_eq!(
        outcomes(&lambda, 3).await,
        [
            outcome::PERMANENT,
            outcome::RETRYABLE,
            outcome::FAILED_BEFORE
        ]
    );
    assert_eq!(stage.charges("o-1"), 2);

    assert_eq!(deliver(&lambda, [second_message(2)]).await, [""; 0]);
    assert_eq!(stage.charges("o-1"), 3);
}

#[tokio::test]
async fn number_and_text_make_different_keys() {
    let stage = Stage::set().await;
    let settings = [
        ("IDEMPOTENCY_KEY", "body:/reference"),
        ("IDEMPOTENCY_FINGERPRINT", "off"),
    ];
    let lambda = stage.consumer(&settings).await;
    for (message_id, reference) in [("m-1", json!(7)), ("m-2", json!("7"))] {
        let mut order = order("o-1");
        order["reference"] = reference;
        let failed = deliver(&lambda, [record(message_id, &order)]).await;
        assert_eq!(failed, [""; 0]);
    }
    assert_eq!(outcomes(&lambda, 2).await, [outcome::COMPLETED; 2]);
    assert_eq!(stage.charges("o-1"), 2);
}

#[tokio::test]
async fn deduplication_id_is_scoped_to_group() {
    let stage = Stage::set().await;
    let settings = [("IDEMPOTENCY_KEY", "deduplication-id")];
    let lambda = stage.consumer(&settings).await;
    for (message_id, group) in [("m-1", "a"), ("m-2", "b"), ("m-3", "a")] {
        let mut message = in_group(record(message_id, &order("o-1")), group);
        message["attributes"]["MessageDeduplicationId"] = json!("d-1");
        assert_eq!(deliver(&lambda, [message]).await, [""; 0]);
    }
    assert_eq!(
        outcomes(&lambda, 3).await,
        [outcome::COMPLETED, outcome::COMPLETED, outcome::DUPLICATE]
    );
    assert_eq!(stage.charges("o-1"), 2);
}

/// Milliseconds as whole seconds, rounded up.
fn seconds(millis: i64) -> u64 {
    u64::try_from(millis).unwrap().div_ceil(1000)
}

#[tokio::test]
async fn other_payload_under_live_lease_waits() {
    let stage = Stage::set().await;
    let busy = stage.consumer(&[BY_ORDER]).await;
    let other = stage.consumer(&[BY_ORDER]).await;
    stage.gateway.script("o-1", [Reply::Hang]);
    let invocation = busy.invoke(batch([first_message(1)]), TIME);
    let (answer, waits) = join!(invocation, async {
        stage.gateway.arrived("o-1", 1).await;
        let claim = stage.record("o-1").await.unwrap();
        let lease_until = number(&claim, "lease_until");
        let most = seconds(lease_until - now_ms()) + 3;
        assert_eq!(deliver(&other, [corrected_message(1)]).await, ["m-2"]);
        let least = seconds(lease_until - now_ms()) + 1;
        stage.gateway.release();
        least..=most
    });
    assert_eq!(answer.response(), json!({"batchItemFailures": []}));
    assert_eq!(outcomes(&other, 1).await, [outcome::CONFLICT]);
    let [(receipt, wait)] = &stage.sqs.changes()[..] else {
        panic!("{:?}", stage.sqs.changes());
    };
    assert_eq!(receipt, "receipt-m-2-1");
    assert!(waits.contains(wait), "{wait} is not in {waits:?}");
    assert_eq!(stage.charges("o-1"), 1);
}

#[tokio::test]
async fn other_payload_runs_once_record_is_deleted() {
    let stage = Stage::set().await;
    let settings = [BY_ORDER, ("CONSUMER_BACKOFF_BASE", "10s")];
    let lambda = stage.consumer(&settings).await;
    stage.gateway.script("o-1", [Reply::Status(503)]);
    assert_eq!(deliver(&lambda, [first_message(1)]).await, ["m-1"]);
    let left = stage.record("o-1").await.unwrap();
    for n in [1, 3] {
        assert_eq!(deliver(&lambda, [corrected_message(n)]).await, ["m-2"]);
    }
    let waits: Vec<_> = stage.sqs.changes().iter().map(|(_, wait)| *wait).collect();
    for (wait, backoff) in waits[1..].iter().zip([5..=10, 20..=40]) {
        assert!(backoff.contains(wait), "{waits:?}");
    }
    let line = line_of(&lambda, "m-2", 1).await;
    assert_eq!(line["outcome"], outcome::CONFLICT);
    assert_eq!(line["level"], "WARN");
    let detail = line["detail"].as_str().unwrap();
    let since = shown(number(&left, "first_claimed_at"));
    assert!(detail.contains("`sqs-once record delete KEY`"), "{detail}");
    assert!(detail.contains(&since), "{detail}");
    assert_eq!(stage.record("o-1").await.unwrap(), left);
    assert_eq!(stage.charges("o-1"), 1);

    stage.forget("o-1").await;
    assert_eq!(deliver(&lambda, [corrected_message(4)]).await, [""; 0]);
    let calls = stage.gateway.calls_for("o-1");
    assert_eq!(calls.len(), 2);
    assert_eq!(calls[1].body, corrected());
}

#[tokio::test]
async fn redriven_message_runs_once_record_is_deleted() {
    let stage = Stage::set().await;
    let lambda = stage.consumer(&[BY_ORDER]).await;
    let redriven = |message_id| record(message_id, &order("o-1"));
    for message_id in ["m-1", "m-2"] {
        assert_eq!(deliver(&lambda, [redriven(message_id)]).await, [""; 0]);
    }
    assert_eq!(stage.charges("o-1"), 1);

    stage.forget("o-1").await;
    assert_eq!(deliver(&lambda, [redriven("m-3")]).await, [""; 0]);
    assert_eq!(stage.charges("o-1"), 2);
    assert_eq!(
        outcomes(&lambda, 3).await,
        [outcome::COMPLETED, outcome::DUPLICATE, outcome::COMPLETED]
    );
}

//! The end of an attempt, and the history given to the next one.

use std::{collections::HashMap, time::Duration};

use aws_sdk_dynamodb::types::AttributeValue;
use serde_json::{Value, json};
use support::{
    dynamo::{Item, number, text},
    event::{batch, order, record},
    gateway::Reply,
    runtime_api::{Answer, Lambda, of_retry, of_takeover},
    stage::{Stage, TABLE, TIME, id, now_ms, outcome, outcomes, shown},
};
use tokio::join;

use super::{deliver, first_message};

/// Checks that nothing informed a handler of an earlier attempt.
fn assert_fresh(lambda: &Lambda) {
    let informs = |line: &String| {
        let line: Value = serde_json::from_str(line).unwrap();
        of_retry(&line) || of_takeover(&line)
    };
    let output = lambda.output();
    assert!(!output.iter().any(informs), "{output:#?}");
}

#[tokio::test]
async fn charge_timeout_is_retried_with_history() {
    let stage = Stage::set().await;
    let settings = [("PAYMENT_GATEWAY_TIMEOUT", "1s")];
    let lambda = stage.consumer(&settings).await;
    stage.gateway.script("o-1", [Reply::Hang]);
    let start = now_ms();
    assert_eq!(deliver(&lambda, [first_message(1)]).await, ["m-1"]);

    let left = stage.record("m-1").await.unwrap();
    assert_eq!(text(&left, "status"), "IN_PROGRESS");
    assert_eq!(text(&left, "last_end"), "retryable");
    let first = number(&left, "first_claimed_at");
    assert!((start..=now_ms()).contains(&first), "{left:?}");
    assert!(number(&left, "lease_until") <= now_ms(), "{left:?}");

    assert_eq!(deliver(&lambda, [first_message(2)]).await, [""; 0]);
    let line = lambda.logged(1, of_retry).await.remove(0);
    assert_eq!(line["level"], "INFO");
    assert_eq!(line["attempts"], 1);
    assert_eq!(line["first_claimed_at"], shown(first));
    assert_eq!(line["last_end"], "retryable");
    let outcomes = outcomes(&lambda, 2).await;
    assert_eq!(outcomes, [outcome::RETRYABLE, outcome::COMPLETED]);
    assert_eq!(stage.charges("o-1"), 2);
    let record = stage.record("m-1").await.unwrap();
    assert_eq!(text(&record, "status"), "COMPLETED");
    assert_eq!(record.get("first_claimed_at"), None);
}

/// Promise 3.
#[tokio::test]
async fn third_attempt_after_kills_gets_first_claim_time() {
    let stage = Stage::set().await;
    // The second attempt runs alone, and its message would rest for 20 minutes.
    let settings = [("TEST_CRASH_WAIT", "1s")];
    stage.gateway.script("o-1", [Reply::Hang, Reply::Hang]);
    let mut first = None;
    for n in 1..=2 {
        let victim = stage.adjusted(&settings).await;
        let event = batch([first_message(n)]);
        let (answer, _) = join!(victim.invoke(event, Duration::from_secs(2)), async {
            stage.gateway.arrived("o-1", n as usize).await;
            victim.kill().await
        });
        assert!(matches!(answer, Answer::Exited), "{answer:?}");
        let left = stage.record("m-1").await.unwrap();
        assert_eq!(number(&left, "attempts"), i64::from(n));
        let claimed = number(&left, "first_claimed_at");
        assert_eq!(*first.get_or_insert(claimed), claimed);
        // The second claim is two seconds after the first, so their times differ in the log.
        stage.lease_ended("m-1").await;
    }

    let survivor = stage.adjusted(&settings).await;
    assert_eq!(deliver(&survivor, [first_message(3)]).await, [""; 0]);
    let line = survivor.logged(1, of_takeover).await.remove(0);
    assert_eq!(line["level"], "WARN");
    assert_eq!(line["attempts"], 2);
    assert_eq!(line["first_claimed_at"], shown(first.unwrap()));
    assert_eq!(line["last_end"], Value::Null);
    assert_eq!(outcomes(&survivor, 1).await, [outcome::COMPLETED]);
}

#[tokio::test]
async fn refused_gateway_connection_leaves_no_record() {
    let stage = Stage::set().await;
    let lambda = stage.consumer(&[]).await;
    stage.gateway.close().await;
    assert_eq!(deliver(&lambda, [first_message(1)]).await, ["m-1"]);
    assert_eq!(stage.record("m-1").await, None);

    stage.gateway.open().await;
    assert_eq!(deliver(&lambda, [first_message(2)]).await, [""; 0]);
    let outcomes = outcomes(&lambda, 2).await;
    assert_eq!(outcomes, [outcome::NO_EFFECT, outcome::COMPLETED]);
    assert_fresh(&lambda);
    assert_eq!(stage.charges("o-1"), 1);
    let record = stage.record("m-1").await.unwrap();
    assert_eq!(number(&record, "attempts"), 1);
}

/// One message for each status, which the gateway answers so the first `times`.
fn answered(stage: &Stage, statuses: &[u16], times: usize) -> Vec<Value> {
    let message = |status: &u16| {
        let order_id = format!("o-{status}");
        stage
            .gateway
            .script(&order_id, vec![Reply::Status(*status); times]);
        record(&format!("m-{status}"), &order(&order_id))
    };
    statuses.iter().map(message).collect()
}

#[tokio::test]
async fn wrong_credential_or_path_is_retried() {
    let stage = Stage::set().await;
    let lambda = stage.consumer(&[]).await;
    let messages = answered(&stage, &[401, 403, 404, 405, 407], 2);
    for _ in 0..2 {
        assert_eq!(deliver(&lambda, messages.clone()).await.len(), 5);
        for message in &messages {
            let message_id = message["messageId"].as_str().unwrap();
            let left = stage.record(message_id).await.unwrap();
            assert_eq!(text(&left, "status"), "IN_PROGRESS", "{message_id}");
            assert_eq!(text(&left, "last_end"), "retryable", "{message_id}");
        }
    }
    assert_eq!(deliver(&lambda, messages).await, [""; 0]);
    let outcomes = outcomes(&lambda, 15).await;
    assert_eq!(outcomes[..10], [outcome::RETRYABLE; 10]);
    assert_eq!(outcomes[10..], [outcome::COMPLETED; 5]);
}

#[tokio::test]
async fn gateway_verdict_is_permanent_failure() {
    let stage = Stage::set().await;
    let lambda = stage.consumer(&[]).await;
    let messages = answered(&stage, &[402, 422], 1);
    assert_eq!(deliver(&lambda, messages).await, ["m-402", "m-422"]);
    assert_eq!(outcomes(&lambda, 2).await, [outcome::PERMANENT; 2]);
    for (message_id, status) in [("m-402", "402"), ("m-422", "422")] {
        let record = stage.record(message_id).await.unwrap();
        assert_eq!(text(&record, "status"), "FAILED");
        let error = text(&record, "error");
        assert!(error.contains(status), "{error}");
    }
}

/// Delivers m-1, and answers its record as it is while the gateway works on it.
async fn record_during_run(stage: &Stage, lambda: &Lambda) -> Item {
    stage.gateway.script("o-1", [Reply::Hang]);
    let invocation = lambda.invoke(batch([first_message(1)]), TIME);
    let (answer, record) = join!(invocation, async {
        stage.gateway.arrived("o-1", 1).await;
        let record = stage.record("m-1").await.unwrap();
        stage.gateway.release();
        record
    });
    assert_eq!(answer.response(), json!({"batchItemFailures": []}));
    record
}

#[tokio::test]
async fn expired_record_is_replaced_entirely() {
    let stage = Stage::set().await;
    let lambda = stage.consumer(&[]).await;
    let start = now_ms();
    let mut expired: Item = serde_dynamo::to_item(json!({
        "id": id("m-1"), "status": "FAILED", "owner": "another", "fingerprint": "another",
        "message_id": "m-1", "error": "card declined", "attempts": 7, "first_claimed_at": 1,
        "last_end": "panic", "created_at": 1, "updated_at": 2, "expires_at": start / 1000 - 1,
    }))
    .unwrap();
    let failed = AttributeValue::Ss(vec!["m-1".into()]);
    expired.insert("failed_message_ids".into(), failed);
    stage.dynamo.put(TABLE, expired).await;

    stage.dynamo.reset_counts();
    let record = record_during_run(&stage, &lambda).await;
    let wanted = HashMap::from([("Claim", 1), ("PutItem", 1), ("UpdateItem", 1)]);
    let counts = stage.dynamo.counts();
    let counts: HashMap<_, _> = counts.iter().map(|(name, n)| (name.as_str(), *n)).collect();
    assert_eq!(counts, wanted);
    assert_eq!(number(&record, "attempts"), 1);
    for time in ["first_claimed_at", "created_at", "updated_at"] {
        assert!(number(&record, time) >= start, "{time}: {record:?}");
    }
    for gone in ["failed_message_ids", "error", "last_end"] {
        assert_eq!(record.get(gone), None);
    }
    assert_fresh(&lambda);
    assert_eq!(stage.status("m-1").await, "COMPLETED");
}

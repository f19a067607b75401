//! A DynamoDB that throttles, refuses or collides.

use std::{collections::BTreeMap, time::Duration};

use serde_json::Value;
use support::{
    dynamo::{number, text},
    event::{batch, failed, order, record},
    faults::Fault,
    gateway::Reply,
    runtime_api::{Answer, Lambda, of_batch, says},
    stage::{Stage, TABLE, TIME, now_ms, outcome, outcomes},
};
use tokio::{
    join,
    time::{Instant, sleep_until},
};

use super::{deliver, first_message, line_of};

const SECOND: Duration = Duration::from_secs(1);

/// Delivers a batch with so much time until the deadline. The process is not killed at the
/// deadline: on a busy machine, its answer may arrive after it.
async fn within(time: Duration, lambda: &Lambda, event: Value) -> Answer {
    let deadline_ms = now_ms() as u64 + time.as_millis() as u64;
    lambda.invoke_until(event, deadline_ms, time + TIME).await
}

#[tokio::test]
async fn completion_throttled_for_long_is_recorded() {
    let stage = Stage::set().await;
    // The handler has four seconds, and the outcome the eight after them.
    let lambda = stage.adjusted(&[("TEST_DEADLINE_RESERVE", "8s")]).await;
    stage.dynamo.fail_all("UpdateItem", Fault::Throttle);
    let start = Instant::now();
    let (answer, met) = join!(
        within(12 * SECOND, &lambda, batch([first_message(1)])),
        async {
            stage.gateway.arrived("o-1", 1).await;
            sleep_until(start + 5 * SECOND).await;
            stage.dynamo.heal().await
        }
    );
    assert!(met.contains_key("UpdateItem"), "{met:?}");
    assert_eq!(failed(&answer.response()), [""; 0]);
    assert_eq!(outcomes(&lambda, 1).await, [outcome::COMPLETED]);
    assert_eq!(stage.status("m-1").await, "COMPLETED");
    assert_eq!(stage.charges("o-1"), 1);
    let line = lambda.logged(1, of_batch).await.remove(0);
    assert_eq!(line["completion_unrecorded"], 0);
}

#[tokio::test]
async fn completion_throttled_to_end_keeps_claim() {
    let stage = Stage::set().await;
    // The lease outlives the invocation.
    let settings = [("CONSUMER_HEARTBEAT", "30s")];
    let lambda = stage.consumer(&settings).await;
    stage.dynamo.fail_all("UpdateItem", Fault::ThrottleLate);
    let answer = within(2 * SECOND, &lambda, batch([first_message(1)])).await;
    assert_eq!(failed(&answer.response()), ["m-1"]);
    let kept = stage.record("m-1").await.unwrap();
    assert_eq!(text(&kept, "status"), "IN_PROGRESS");
    assert!(number(&kept, "lease_until") > now_ms(), "{kept:?}");
    let line = lambda.logged(1, of_batch).await.remove(0);
    assert_eq!(line["completion_unrecorded"], 1);

    stage.dynamo.heal().await;
    assert_eq!(deliver(&lambda, [first_message(2)]).await, ["m-1"]);
    assert_eq!(
        outcomes(&lambda, 2).await,
        [outcome::UNRECORDED, outcome::CONFLICT]
    );
    assert_eq!(stage.charges("o-1"), 1);
}

#[tokio::test]
async fn transaction_conflict_is_retried() {
    let stage = Stage::set().await;
    let lambda = stage.consumer(&[]).await;
    for request in ["Claim", "UpdateItem"] {
        stage.dynamo.fail(request, Fault::TransactionConflict);
    }
    assert_eq!(deliver(&lambda, [first_message(1)]).await, [""; 0]);
    let met = BTreeMap::from(["Claim", "UpdateItem"].map(|name| (name.to_owned(), 1)));
    assert_eq!(stage.dynamo.heal().await, met);
    assert_eq!(outcomes(&lambda, 1).await, [outcome::COMPLETED]);
    assert_eq!(stage.charges("o-1"), 1);
}

#[tokio::test]
async fn denied_claim_sends_no_second_write() {
    let stage = Stage::set().await;
    let lambda = stage.consumer(&[]).await;
    stage.dynamo.reset_counts();
    stage.dynamo.fail("Claim", Fault::Denied);
    let answer = lambda.invoke(batch([first_message(1)]), TIME).await;
    assert_eq!(answer.error()["errorType"], "StoreUnavailable");
    let counts = stage.dynamo.counts();
    assert_eq!(counts, BTreeMap::from([("Claim".to_owned(), 1)]));
    let line = line_of(&lambda, "m-1", 1).await;
    assert_eq!(line["outcome"], outcome::STORE_UNAVAILABLE);
    assert_eq!(stage.charges("o-1"), 0);
}

/// Fails all claims, alone and in groups.
fn fail_claims(stage: &Stage, fault: Fault) {
    for claim in ["Claim", "ClaimGroup"] {
        stage.dynamo.fail_all(claim, fault);
    }
}

/// Orders o-1, o-2, ... in messages m-1, m-2, ...
fn orders<const N: usize>() -> [Value; N] {
    std::array::from_fn(|n| record(&format!("m-{}", n + 1), &order(&format!("o-{}", n + 1))))
}

#[tokio::test]
async fn dynamodb_outage_fails_invocation() {
    let missing = ("IDEMPOTENCY_TABLE_NAME", "missing");
    let as_set = ("IDEMPOTENCY_TABLE_NAME", TABLE);
    for (setting, fault, reason) in [
        (as_set, Some(Fault::Refuse), "could not connect"),
        (as_set, Some(Fault::Denied), "this role may not"),
        (missing, None, "no such table"),
    ] {
        let stage = Stage::set().await;
        let lambda = stage.consumer(&[setting]).await;
        if let Some(fault) = fault {
            fail_claims(&stage, fault);
        }
        let answer = lambda.invoke(batch(orders::<2>()), TIME).await;
        // Sent before the answer.
        let changes = stage.sqs.changes();
        let error = answer.error();
        assert_eq!(error["errorType"], "StoreUnavailable");
        let text = error["errorMessage"].as_str().unwrap();
        assert!(text.contains(reason), "{error}");
        assert_eq!(changes.len(), 2, "{reason}");
        assert!(changes.iter().all(|(_, wait)| *wait > 0), "{changes:?}");
        assert_eq!(stage.gateway.calls().len(), 0);
    }
}

#[tokio::test]
async fn throttled_claims_do_not_fail_invocation() {
    let stage = Stage::set().await;
    let lambda = stage.consumer(&[]).await;
    fail_claims(&stage, Fault::Throttle);
    assert_eq!(deliver(&lambda, orders::<2>()).await, ["m-1", "m-2"]);
    assert_eq!(outcomes(&lambda, 2).await, [outcome::STORE_UNAVAILABLE; 2]);
}

#[tokio::test]
async fn messages_cut_off_are_logged_in_one_line() {
    let stage = Stage::set().await;
    let lambda = stage.consumer(&[("CONSUMER_CONCURRENCY", "1")]).await;
    stage.gateway.script("o-2", [Reply::Hang]);
    let answer = within(2 * SECOND, &lambda, batch(orders::<3>())).await;
    assert_eq!(failed(&answer.response()), ["m-2", "m-3"]);
    let mut ended = outcomes(&lambda, 3).await;
    ended.sort_unstable();
    assert_eq!(
        ended,
        [
            outcome::COMPLETED,
            outcome::NOT_STARTED,
            outcome::OUT_OF_TIME
        ]
    );
    let line = |line: &Value| says(line, "did not finish before the deadline");
    let lines = lambda.logged(1, line).await;
    let [line] = &lines[..] else {
        panic!("{lines:#?}");
    };
    assert_eq!(line["unfinished"], 2);
    assert_eq!(line["cut_off"], "m-2");
    assert_eq!(line["not_started"], "m-3");
    assert_eq!(line["blocking"], "");
    assert_eq!(stage.charges("o-3"), 0);
}

/// Without credentials the SDK sends nothing, to DynamoDB and to SQS.
#[tokio::test]
async fn missing_credentials_are_named_as_the_cause() {
    let stage = Stage::set().await;
    let settings = [
        ("AWS_ACCESS_KEY_ID", ""),
        ("AWS_SECRET_ACCESS_KEY", ""),
        ("AWS_EC2_METADATA_DISABLED", "true"),
        ("CONSUMER_VISIBILITY", "on"),
    ];
    let lambda = stage.consumer(&settings).await;
    let event = batch([first_message(1)]);
    let error = within(4 * SECOND, &lambda, event).await.error();
    let error = error["errorMessage"].as_str().unwrap();
    assert!(
        error.contains("no AWS credentials; set AWS_ACCESS"),
        "{error}"
    );
    assert!(!error.contains("could not connect"), "{error}");
    let of_sqs = |line: &Value| says(line, "their visibility could not be changed");
    let line = lambda.logged(1, of_sqs).await.remove(0);
    let cause = line["error"].as_str().unwrap();
    assert!(cause.starts_with("no AWS credentials; set"), "{cause}");
    assert!(cause.contains("Environment: "), "{cause}");
}

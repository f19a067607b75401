//! The release binary behind a Runtime API: batches, settings, panics, threads, and handlers that block.

mod counts;
mod straight_way;

use std::time::Duration;

use serde_json::{Value, json};
use sqs_once::protocol::Key;
use support::{
    PATIENCE,
    dynamo::{number, text},
    event::{batch, failed, order, received, record},
    gateway::{Gateway, Reply},
    runtime_api::{Answer, Env, Lambda, NAMESPACE, consumer, of_batch, of_message, of_takeover},
    stage::{Stage, TIME, env, now_ms, outcome, outcomes},
};
use tokio::join;

/// Orders o-1, o-2, ... in messages m-1, m-2, ...
fn orders(numbers: std::ops::RangeInclusive<u32>) -> Value {
    batch(numbers.map(|n| record(&format!("m-{n}"), &order(&format!("o-{n}")))))
}

#[tokio::test]
async fn redelivered_batches_charge_each_order_once() {
    let stage = Stage::set().await;
    let lambda = stage.consumer(&[]).await;
    for numbers in [1..=1, 2..=11, 12..=31, 1..=31] {
        let response = lambda.invoke(orders(numbers), TIME).await.response();
        assert_eq!(response, json!({"batchItemFailures": []}));
    }

    assert_eq!(stage.gateway.calls().len(), 31);
    for n in 1..=31 {
        let calls = stage.gateway.calls_for(&format!("o-{n}"));
        assert_eq!(calls.len(), 1);
        // Nothing else of the order.
        let sent = json!({"orderId": format!("o-{n}"), "amount": 99.99, "currency": "EUR"});
        assert_eq!(calls[0].body, sent);
        let key = Key::from_stored(format!("{NAMESPACE}#m-{n}"));
        assert_eq!(calls[0].key, Some(key.call_key(0)));
        assert_eq!(stage.status(&format!("m-{n}")).await, "COMPLETED");
    }
    let outcomes = outcomes(&lambda, 62).await;
    assert!(
        outcomes[..31]
            .iter()
            .all(|outcome| outcome == outcome::COMPLETED)
    );
    assert!(outcomes[31..].iter().all(|o| o == outcome::DUPLICATE));
}

#[tokio::test]
async fn redirect_is_not_followed() {
    let stage = Stage::set().await;
    let lambda = stage.consumer(&[]).await;
    let elsewhere = Gateway::start().await;
    let location = format!("{}/charges", elsewhere.url());
    stage.gateway.script("o-1", [Reply::Redirect(location)]);
    let response = lambda.invoke(orders(1..=1), TIME).await.response();
    assert_eq!(failed(&response), ["m-1"]);
    assert!(elsewhere.calls().is_empty());
}

#[tokio::test]
async fn oversized_gateway_response_charges_once() {
    let stage = Stage::set().await;
    let lambda = stage.consumer(&[]).await;
    stage.gateway.script("o-1", [Reply::Flood(8 << 20)]);
    for _ in 0..2 {
        lambda.invoke(orders(1..=1), TIME).await.response();
    }
    assert_eq!(stage.charges("o-1"), 1);
    assert_eq!(stage.status("m-1").await, "COMPLETED");
}

#[tokio::test]
async fn start_is_one_read_and_an_empty_batch_none() {
    let stage = Stage::set().await;
    stage.dynamo.reset_counts();
    let lambda = stage.consumer(&[]).await;
    let response = lambda.invoke(batch([]), TIME).await.response();
    assert_eq!(response, json!({"batchItemFailures": []}));
    let counts = stage.dynamo.counts();
    assert_eq!(counts.values().sum::<usize>(), 1, "{counts:?}");
}

#[tokio::test]
async fn invocations_run_one_at_a_time_by_default() {
    let stage = Stage::set().await;
    let lambda = stage.consumer(&[]).await;
    stage.gateway.script("o-1", [Reply::Hang]);
    let first = lambda.invoke(orders(1..=1), TIME);
    let second = lambda.invoke(orders(2..=2), TIME);
    let (first, second, ()) = join!(first, second, async {
        stage.gateway.arrived("o-1", 1).await;
        stage.gateway.release();
    });
    assert_eq!(failed(&first.response()), [""; 0]);
    assert_eq!(failed(&second.response()), [""; 0]);
    assert_eq!(lambda.most_at_once(), 1);
}

#[tokio::test]
async fn process_serves_concurrent_invocations_if_set() {
    let stage = Stage::set().await;
    let lambda = stage.consumer(&[("AWS_LAMBDA_MAX_CONCURRENCY", "4")]).await;
    for n in 1..=4 {
        stage.gateway.script(&format!("o-{n}"), [Reply::Hang]);
    }
    let invoke = |n| lambda.invoke(orders(n..=n), TIME);
    let (a, b, c, d, ()) = join!(invoke(1), invoke(2), invoke(3), invoke(4), async {
        for n in 1..=4 {
            stage.gateway.arrived(&format!("o-{n}"), 1).await;
        }
        stage.gateway.release();
    });
    for answer in [a, b, c, d] {
        assert_eq!(failed(&answer.response()), [""; 0]);
    }
    assert_eq!(lambda.most_at_once(), 4);
    assert_eq!(stage.gateway.calls().len(), 4);
}

#[tokio::test]
async fn lease_without_deadline_is_five_minutes() {
    let stage = Stage::set().await;
    let lambda = stage.consumer(&[]).await;
    stage.gateway.script("o-1", [Reply::Hang]);
    // `cargo lambda watch` sends this deadline: ten minutes after the epoch.
    let invocation = lambda.invoke_until(orders(1..=1), 600_000, TIME);
    let (answer, lease) = join!(invocation, async {
        stage.gateway.arrived("o-1", 1).await;
        let record = stage.record("m-1").await.unwrap();
        stage.gateway.release();
        number(&record, "lease_until") - now_ms()
    });
    assert_eq!(failed(&answer.response()), [""; 0]);
    assert!((270_000..=301_000).contains(&lease), "{lease} ms");
}

#[tokio::test]
async fn settings_errors_are_reported_together() {
    let faults = [
        ("IDEMPOTENCY_TABLE_NAME", ""),
        ("IDEMPOTENCY_NAMESPACE", ""),
        ("IDEMPOTENCY_RETENTION", "soon"),
        ("IDEMPOTENCY_KEY", "orderId"),
        ("CONSUMER_CONCURRENCY", "0"),
        ("CONSUMER_CRASH_ISOLATION", "perhaps"),
        // The release build is without the feature `s3`.
        ("CONSUMER_S3_BUCKETS", "orders"),
        ("PAYMENT_GATEWAY_URL", "ftp://gateway.example"),
        ("PAYMENT_GATEWAY_TIMEOUT", "0s"),
    ];
    let env = faults.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let lambda = Lambda::spawn(&consumer(), env.to_vec()).await;
    let exit = lambda.exit().await;
    assert!(!exit.status.success());
    let in_one = |line: &&String| faults.iter().all(|(name, _)| line.contains(name));
    assert_eq!(exit.output.iter().filter(in_one).count(), 1, "{exit:#?}");
}

#[tokio::test]
async fn each_message_logs_one_json_line() {
    let stage = Stage::set().await;
    let lambda = stage.consumer(&[]).await;
    let event = batch([received("m-1", &order("o-1"), 3)]);
    lambda.invoke(event, TIME).await.response();
    let lines = lambda.logged(1, of_message).await;
    let [line] = lines.as_slice() else {
        panic!("{lines:#?}");
    };
    let time = line["timestamp"].as_str().unwrap();
    let time = humantime::parse_rfc3339(time).unwrap();
    assert!(time.elapsed().unwrap() < PATIENCE);
    assert_eq!(line["level"], "INFO");
    assert_eq!(line["outcome"], outcome::COMPLETED);
    assert_eq!(line["key"], format!("{NAMESPACE}#m-1"));
    assert_eq!(line["message_id"], "m-1");
    assert_eq!(line["receive_count"], 3);
    assert!(line["duration_ms"].is_number(), "{line}");
    assert!(line["span"]["requestId"].is_string(), "{line}");
    for line in lambda.output() {
        assert!(serde_json::from_str::<Value>(&line).is_ok(), "{line}");
    }
}

#[tokio::test]
async fn release_panic_fails_its_message_alone() {
    let stage = Stage::set().await;
    let lambda = stage.obedient(&[]).await;
    let panic = r#"{"panic":true}"#;
    let event = batch([
        record("m-1", "{}"),
        record("m-panic", panic),
        record("m-2", r#"{"sleep_ms":100}"#),
    ]);
    let response = lambda.invoke(event, TIME).await.response();
    assert_eq!(failed(&response), ["m-panic"]);
    for message in ["m-1", "m-2"] {
        assert_eq!(stage.status(message).await, "COMPLETED");
    }
    let left = stage.record("m-panic").await.unwrap();
    assert_eq!(text(&left, "status"), "IN_PROGRESS");
    assert_eq!(number(&left, "lease_until"), number(&left, "updated_at"));

    let event = batch([received("m-panic", panic, 2), record("m-3", "{}")]);
    let response = lambda.invoke(event, TIME).await.response();
    assert_eq!(failed(&response), ["m-panic"]);
    lambda.logged(1, of_takeover).await;
    let outcomes = outcomes(&lambda, 5).await;
    assert_eq!(
        outcomes.iter().filter(|o| *o == outcome::PANICKED).count(),
        2
    );
}

/// Memory in MB with which a function has one thread, and with which it has two.
const ONE_VCPU: &str = "3537";
const TWO_VCPUS: &str = "3538";

/// Processes a message that blocks, and one that sleeps.
async fn process_blocking(memory: &str, order: &str) -> (Answer, Lambda) {
    let stage = Stage::set().await;
    let memory = ("AWS_LAMBDA_FUNCTION_MEMORY_SIZE", memory);
    let lambda = stage.obedient(&[memory]).await;
    let event = batch([
        record("m-1", r#"{"sleep_ms":100}"#),
        record("m-blocks", order),
    ]);
    let answer = lambda.invoke(event, Duration::from_secs(1)).await;
    (answer, lambda)
}

#[tokio::test]
async fn span_of_a_handler_hides_neither_key_nor_ids() {
    let stage = Stage::set().await;
    let lambda = stage.obedient(&[]).await;
    lambda.invoke(batch([record("m-1", "{}")]), TIME).await;
    let lines = lambda.logged(1, |line| line["message"] == "obeying").await;
    let span = &lines[0]["span"];
    assert_eq!(span["name"], "obey");
    assert_eq!(span["message_id"], "m-1");
    assert!(
        span["key"].is_string() && span["requestId"].is_string(),
        "{span}"
    );
    // Of two fields of one name, that of the consumer is shown.
    assert_eq!(span["receive_count"], 1);
    assert_eq!(span["tenant"], "acme");
    let batches = lambda.logged(1, of_batch).await;
    assert_eq!(batches[0]["Obeyed"], serde_json::json!([1.0]));
}

#[tokio::test]
async fn blocked_thread_delays_response_of_single_thread() {
    let (answer, _lambda) = process_blocking(ONE_VCPU, r#"{"block_ms":3000}"#).await;
    assert!(matches!(answer, Answer::TimedOut), "{answer:?}");
}

#[tokio::test]
async fn spawn_blocking_delays_no_other_message() {
    for memory in [ONE_VCPU, TWO_VCPUS] {
        let block = r#"{"spawn_blocking_ms":3000}"#;
        let (answer, _lambda) = process_blocking(memory, block).await;
        assert_eq!(failed(&answer.response()), ["m-blocks"], "{memory} MB");
    }
}

#[tokio::test]
async fn handler_that_blocks_is_logged_once() {
    let blocked = |line: &Value| line["blocked_ms"].is_number();
    let (_, lambda) = process_blocking(ONE_VCPU, r#"{"block_ms":200}"#).await;
    let lines = lambda.logged(1, blocked).await;
    let [line] = lines.as_slice() else {
        panic!("{lines:#?}");
    };
    assert!(line["blocked_ms"].as_f64().unwrap() >= 200.0, "{line}");
    assert_eq!(line["level"], "WARN");
    assert_eq!(line["span"]["message_id"], "m-blocks");
}

#[tokio::test]
async fn function_below_two_vcpus_has_one_thread() {
    let stage = Stage::set().await;
    for (memory, threads) in [("256", false), (ONE_VCPU, false), (TWO_VCPUS, true)] {
        let lambda = stage
            .consumer(&[("AWS_LAMBDA_FUNCTION_MEMORY_SIZE", memory)])
            .await;
        let of_process = std::fs::read_dir(format!("/proc/{}/task", lambda.pid()));
        assert_eq!(of_process.unwrap().count() > 1, threads, "{memory} MB");
    }
}

#[tokio::test]
async fn blocked_thread_does_not_delay_response() {
    let stage = Stage::set().await;
    let memory = ("AWS_LAMBDA_FUNCTION_MEMORY_SIZE", TWO_VCPUS);
    let lambda = stage.obedient(&[memory]).await;
    let event = batch([record("m-1", r#"{"block_ms":3000}"#)]);
    let answer = lambda.invoke(event, Duration::from_secs(1)).await;
    assert_eq!(failed(&answer.response()), ["m-1"]);
}

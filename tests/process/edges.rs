//! Edge cases over the release binary: two kills of one message, another function's name, and no credentials.

use std::time::Duration;

use serde_json::Value;
use support::{
    dynamo::{attempts, number},
    event::{batch, failed, order, received},
    gateway::Reply,
    runtime_api::{Answer, of_batch, of_takeover, says},
    stage::{Stage, TIME, now_ms, outcome, outcomes, shown},
};
use tokio::join;

/// The `n`th receive of message m-1, for order o-1.
fn first_message(n: u32) -> Value {
    batch([received("m-1", &order("o-1"), n)])
}

#[tokio::test]
async fn third_attempt_after_kills_gets_first_claim_time() {
    let stage = Stage::set().await;
    // The second attempt runs alone, and its message would rest for 20 minutes.
    let settings = [("TEST_CRASH_WAIT", "1s")];
    stage.gateway.script("o-1", [Reply::Hang, Reply::Hang]);
    let mut first = None;
    for n in 1..=2 {
        let victim = stage.adjusted(&settings).await;
        let event = first_message(n);
        let (answer, _) = join!(victim.invoke(event, Duration::from_secs(2)), async {
            stage.gateway.arrived("o-1", n as usize).await;
            victim.kill().await
        });
        assert!(matches!(answer, Answer::Exited), "{answer:?}");
        let left = stage.record("m-1").await.unwrap();
        assert_eq!(attempts(&left), i64::from(n));
        let claimed = number(&left, "first_claimed_at");
        assert_eq!(*first.get_or_insert(claimed), claimed);
        // The second claim is two seconds after the first, so their times differ in the log.
        stage.lease_ended("m-1").await;
    }

    let survivor = stage.adjusted(&settings).await;
    let answer = survivor.invoke(first_message(3), TIME).await;
    assert_eq!(failed(&answer.response()), [""; 0]);
    let line = survivor.logged(1, of_takeover).await.remove(0);
    assert_eq!(line["level"], "WARN");
    assert_eq!(line["attempts"], 2);
    assert_eq!(line["first_claimed_at"], shown(first.unwrap()));
    assert_eq!(line["last_end"], Value::Null);
    assert_eq!(outcomes(&survivor, 1).await, [outcome::COMPLETED]);
    assert_eq!(survivor.logged(1, of_batch).await[0]["Takeovers"], 1);
}

/// A stack under another name gives its function another name.
#[tokio::test]
async fn function_under_another_name_charges_nothing_again() {
    let stage = Stage::set().await;
    for (name, namespace, charges) in [
        ("payments-consumer", "payments", 1),
        ("payments-2-consumer", "payments", 1),
        // Another operation with the same order, in the same table.
        ("payments-2-consumer", "invoices", 2),
        ("payments-consumer", "invoices", 2),
    ] {
        let settings = [
            ("AWS_LAMBDA_FUNCTION_NAME", name),
            ("IDEMPOTENCY_NAMESPACE", namespace),
        ];
        let lambda = stage.consumer(&settings).await;
        let answer = lambda.invoke(first_message(1), TIME).await;
        assert_eq!(failed(&answer.response()), [""; 0]);
        assert_eq!(stage.charges("o-1"), charges, "{name}, {namespace}");
    }
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
    let deadline_ms = now_ms() as u64 + 4_000;
    let answer = lambda.invoke_until(first_message(1), deadline_ms, TIME);
    let error = answer.await.error();
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

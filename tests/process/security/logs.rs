//! Payloads, results, receipt handles and credentials must not be logged. The release binary runs
//! through all its outcomes with a secret planted in each of these, and the test searches all its
//! output. `writes.rs` covers other modes.

use std::{collections::BTreeSet, time::Duration};

use serde_json::{Value, json};
use support::{
    PATIENCE,
    event::{batch, failed, received, record},
    runtime_api::{Env, Lambda, NAMESPACE, of_message},
    stage::Stage,
    template::consumer_may,
};

use crate::security::{
    quoting_server::{API_KEY, PATH, QuotingServer, TABLE},
    secrets::{ATTRIBUTE_BYTES, BODY, SECRET, lines_with_secrets, outcomes},
};

const ATTRIBUTE: &str = "s3cr3t-attribute";
const RECEIPT: &str = "s3cr3t-receipt";
/// AWS treats the access key id as a name, not as a secret: the SDK logs it at DEBUG.
const ACCESS_KEY_ID: &str = "AKIAPLANTED";
const CREDENTIALS: [(&str, &str); 3] = [
    ("AWS_ACCESS_KEY_ID", ACCESS_KEY_ID),
    ("AWS_SECRET_ACCESS_KEY", "s3cr3t-secret-key"),
    ("AWS_SESSION_TOKEN", "s3cr3t-session-token"),
];

fn order(id: &str) -> Value {
    json!({"orderId": id, "amount": 1, "currency": "EUR", "paymentToken": BODY})
}

fn with(mut order: Value, member: &str, value: Value) -> Value {
    order[member] = value;
    order
}

/// A message for each outcome. Message id and order id are the same, and are logged.
fn messages(delivery: u32) -> Vec<Value> {
    let bodies = [
        ("done", order("done").to_string()),
        ("declined", order("declined").to_string()),
        ("unprocessable", order("unprocessable").to_string()),
        ("busy", order("busy").to_string()),
        ("moved", order("moved").to_string()),
        ("unauthorized", order("unauthorized").to_string()),
        ("lost", order("lost").to_string()),
        // The second time, a key that is reused for another payload.
        (
            "reused",
            with(order("reused"), "attempt", json!(delivery)).to_string(),
        ),
        (
            "cheap",
            with(order("cheap"), "amount", json!(-1)).to_string(),
        ),
        (
            "currency",
            with(order("currency"), "currency", json!(BODY)).to_string(),
        ),
        (
            "mistyped",
            with(order("mistyped"), "amount", json!(BODY)).to_string(),
        ),
        (
            "huge",
            order("huge").to_string().replace(":1,", ":1e999999,"),
        ),
        ("truncated", format!("{{\"paymentToken\": \"{BODY}")),
        ("trailing", format!("{} {BODY}", order("trailing"))),
        (
            "missing",
            json!({ "paymentToken": BODY, BODY: BODY }).to_string(),
        ),
        ("list", json!([BODY]).to_string()),
        ("string", json!(BODY).to_string()),
        ("text", BODY.to_owned()),
    ];
    let record = |(id, body): (&str, String)| {
        let mut record = received(id, &body, delivery);
        record["receiptHandle"] = json!(format!("{RECEIPT}-{id}"));
        record["messageAttributes"] = json!({
            "text": {"stringValue": ATTRIBUTE, "dataType": "String"},
            "number": {"stringValue": ATTRIBUTE, "dataType": "Number"},
            "bytes": {"binaryValue": ATTRIBUTE_BYTES, "dataType": "Binary"},
        });
        record
    };
    bodies.map(record).into()
}

/// Events with a record that fails alone.
fn odd_events() -> Vec<Value> {
    let mut mistyped = record("m-1", "{}");
    mistyped["body"] = json!([BODY]);
    let mut no_base64 = record("m-1", "{}");
    no_base64["messageAttributes"] =
        json!({"bytes": {"binaryValue": format!("{ATTRIBUTE}!"), "dataType": "Binary"}});
    vec![batch([mistyped]), batch([no_base64])]
}

/// Events that fail as a whole.
fn broken_events() -> Vec<Value> {
    let nameless = record("", &order("nameless"));
    vec![
        batch([nameless]),
        json!({"Records": BODY}),
        json!({ BODY: BODY }),
        json!([BODY]),
        json!(BODY),
    ]
}

/// Settings of a function with a secret in each value.
fn env(quoting_server: &QuotingServer, url: &str, level: &str, grouping: bool) -> Env {
    let gateway = format!("{url}/{PATH}");
    let settings = [
        (
            "AWS_ENDPOINT_URL_DYNAMODB",
            quoting_server.dynamo.endpoint(),
        ),
        ("AWS_ENDPOINT_URL_SQS", url),
        ("PAYMENT_GATEWAY_API_KEY", API_KEY),
        ("IDEMPOTENCY_TABLE_NAME", TABLE),
        ("IDEMPOTENCY_NAMESPACE", NAMESPACE),
        ("PAYMENT_GATEWAY_URL", &gateway),
        ("PAYMENT_GATEWAY_TIMEOUT", "1s"),
        ("CONSUMER_MIN_TIME_TO_START", "1s"),
        ("CONSUMER_CONCURRENCY", "10"),
        ("CONSUMER_DIRECT_DEAD_LETTERING", "on"),
        ("AWS_LAMBDA_LOG_LEVEL", level),
        (
            "IDEMPOTENCY_BATCHED_WRITES",
            if grouping { "on" } else { "off" },
        ),
    ];
    let env = settings.into_iter().chain(CREDENTIALS);
    env.map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect()
}

/// Returns the whole output, and asserts that it holds no secret.
async fn run_through_every_outcome(level: &str, grouping: bool) -> Vec<String> {
    let (quoting_server, url) = QuotingServer::start().await;
    let env = env(&quoting_server, &url, level, grouping);
    let lambda = Lambda::start(env.clone()).await;
    let mut messages_seen = 0;
    // A claim over an expired record is an update.
    quoting_server.expire("busy").await;
    for delivery in 1..=2 {
        let mut event = messages(delivery);
        messages_seen += event.len();
        if delivery == 2 {
            event[1]["receiptHandle"] = json!(format!("{RECEIPT}-no-such-receipt"));
        }
        let response = lambda.invoke(batch(event), PATIENCE).await.response();
        assert!(!response.to_string().contains(SECRET), "{response}");
        assert!(
            failed(&response).contains(&"declined".to_owned()),
            "{response}"
        );
    }
    for event in odd_events() {
        let response = lambda.invoke(event, PATIENCE).await.response();
        assert_eq!(failed(&response), ["m-1"]);
        messages_seen += 1;
    }
    for event in broken_events() {
        // Lambda logs this error.
        let error = lambda.invoke(event, PATIENCE).await.error();
        assert!(!error.to_string().contains(SECRET), "{error}");
    }
    // First, a message in progress at another worker, and a message without a record. Then more
    // messages than may start at a time, left unanswered by the gateway. Last, one of these with
    // too little time.
    quoting_server.claim("conflict").await;
    let hangs = |n: u32| format!("hangs-{n}");
    for (ids, seconds) in [
        (vec!["conflict".to_owned()], 4),
        (vec!["unrecorded".to_owned()], 4),
        ((1..=11).map(hangs).collect(), 2),
        (vec![hangs(12)], 1),
    ] {
        let event = batch(ids.iter().map(|id| record(id, &order(id))));
        let answer = lambda.invoke(event, Duration::from_secs(seconds)).await;
        if ids == ["unrecorded"] {
            let error = answer.error();
            assert_eq!(error["errorType"], "StoreUnavailable");
            assert!(!error.to_string().contains(SECRET), "{error}");
        } else {
            assert_eq!(failed(&answer.response()), ids);
        }
        messages_seen += ids.len();
        quoting_server.dynamo.heal().await;
    }
    lambda.logged(messages_seen, of_message).await;
    let mut output = lambda.kill().await.output;

    // The gateway is gone, and then DynamoDB too: connection errors name addresses.
    let nobody = tokio::net::TcpListener::bind("127.0.0.1:0")
        .await
        .unwrap()
        .local_addr()
        .unwrap();
    for (gone, path) in [
        ("PAYMENT_GATEWAY_URL", PATH),
        ("AWS_ENDPOINT_URL_DYNAMODB", ""),
    ] {
        let mut env = env.clone();
        env.push((gone.to_owned(), format!("http://{nobody}/{path}")));
        let lambda = Lambda::start(env).await;
        let event = batch([record("m-1", &order("o-1"))]);
        let answer = lambda.invoke(event, PATIENCE).await;
        if gone == "PAYMENT_GATEWAY_URL" {
            assert_eq!(failed(&answer.response()), ["m-1"]);
        } else {
            // Lambda logs this error.
            let error = answer.error();
            assert!(!error.to_string().contains(SECRET), "{error}");
        }
        lambda.logged(1, of_message).await;
        output.extend(lambda.kill().await.output);
    }
    let expected = [
        "completed",
        "completion_unrecorded",
        "conflict",
        "duplicate",
        "failed_before",
        "invalid",
        "key_reused",
        "lease_lost",
        "no_effect",
        "not_started",
        "out_of_time",
        "permanent_failure",
        "retryable_failure",
        "store_unavailable",
    ];
    assert_eq!(outcomes(&output), expected);
    assert_eq!(lines_with_secrets(&output), [""; 0]);

    // Permissions of the event source mapping; the consumer reads the attributes too.
    let polled = [
        "sqs:ReceiveMessage",
        "sqs:DeleteMessage",
        "sqs:GetQueueAttributes",
    ];
    let spoken: BTreeSet<String> = [
        quoting_server
            .dynamo
            .counts()
            .into_keys()
            .flat_map(|name| match name.as_str() {
                // The first over nothing, the other over a record.
                "Claim" => vec!["PutItem".to_owned(), "UpdateItem".to_owned()],
                "ClaimGroup" => vec!["PartiQLInsert".to_owned()],
                "SettlementGroup" => vec!["PartiQLUpdate".to_owned()],
                _ => vec![name],
            })
            .map(|name| format!("dynamodb:{name}"))
            .collect(),
        quoting_server
            .asked
            .lock()
            .unwrap()
            .iter()
            .map(|name| format!("sqs:{name}"))
            .collect::<Vec<_>>(),
    ]
    .concat()
    .into_iter()
    // One permission for one change and for ten.
    .map(|name| name.trim_end_matches("Batch").to_owned())
    .filter(|name| !polled.contains(&name.as_str()))
    .collect();
    let granted: BTreeSet<String> = consumer_may(&[])
        .into_iter()
        .map(|(action, _)| action)
        .filter(|action| !action.starts_with("logs:") && !polled.contains(&action.as_str()))
        // Without groups, the same writes need no permission of PartiQL.
        .filter(|action| grouping || !action.starts_with("dynamodb:PartiQL"))
        .collect();
    assert_eq!(
        spoken, granted,
        "left: actions used. Right: actions granted by template.yaml"
    );
    output
}

#[tokio::test]
async fn default_level_logs_no_secret() {
    let output = run_through_every_outcome("INFO", false).await;
    assert!(!output.concat().contains(ACCESS_KEY_ID));
}

#[tokio::test]
async fn debug_level_logs_no_secret() {
    let output = run_through_every_outcome("DEBUG", true).await;
    assert!(
        output.concat().contains("DEBUG"),
        "the level is not the requested one"
    );
}

/// The control: the search above is able to find the secrets, since this level logs payloads. The API key
/// is logged at no level.
#[tokio::test]
async fn trace_level_logs_secrets_and_search_finds_them() {
    let (quoting_server, url) = QuotingServer::start().await;
    let lambda = Lambda::start(env(&quoting_server, &url, "TRACE", false)).await;
    let event = batch([record("m-1", &order("o-1"))]);
    let response = lambda.invoke(event, PATIENCE).await.response();
    assert_eq!(failed(&response), [""; 0]);
    lambda.logged(1, of_message).await;
    let output = lambda.kill().await.output;
    assert!(
        lines_with_secrets(&output)
            .iter()
            .any(|line| line.contains(BODY))
    );
    assert!(!output.concat().contains(API_KEY));
}

/// The place of a panic is logged, and its message only at TRACE: it may quote the body.
#[tokio::test]
async fn panic_is_logged_without_its_message() {
    for level in ["DEBUG", "TRACE"] {
        let stage = Stage::set().await;
        let settings = [("AWS_LAMBDA_LOG_LEVEL", level), ("RUST_BACKTRACE", "1")];
        let lambda = stage.obedient(&settings).await;
        let event = batch([record("m-1", &json!({"panic": true, "secret": BODY}))]);
        let response = lambda.invoke(event, PATIENCE).await.response();
        assert_eq!(failed(&response), ["m-1"]);
        lambda.logged(1, of_message).await;
        let output = lambda.kill().await.output;
        assert_eq!(outcomes(&output), ["panicked"]);
        let panicked = |line: &&String| line.contains(r#""message":"panicked""#);
        let line = output.iter().find(panicked).unwrap();
        assert!(line.contains("obey.rs"), "{line}");
        let is_quoted = output.concat().contains("scripted panic: s3cr3t");
        assert_eq!(is_quoted, level == "TRACE");
        assert_eq!(lines_with_secrets(&output).is_empty(), level == "DEBUG");
    }
}

//! What must not be logged: payloads, results, receipt handles, credentials. The release binary
//! runs through every outcome with a secret planted in each of them, and all it writes is searched.

use std::{
    collections::BTreeSet,
    process::{Command, Stdio},
    sync::Arc,
};

use serde_json::{Value, json};
use sqs_once::{Attempt, Consumer, Failure, Once, store::MemoryStore, telemetry};

use crate::{
    gossip::{Gossip, PATH, TABLE},
    support::{
        PATIENCE,
        consumer::{namespace, process, within},
        event::{batch, failed, received, record},
        runtime_api::{Env, Lambda},
    },
    template,
};

/// All secrets begin so, whatever they are.
const SECRET: &str = "s3cr3t";

/// A payload, or a part of it.
const BODY: &str = "s3cr3t-body-4242424242424242";
const ATTRIBUTE: &str = "s3cr3t-attribute";
/// `s3cr3t-attribute`, as SQS writes bytes.
const ATTRIBUTE_BYTES: &str = "czNjcjN0LWF0dHJpYnV0ZQ==";
const RECEIPT: &str = "s3cr3t-receipt";
/// To AWS a name and no secret: the SDK logs it when debugging.
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
        ("lost", order("lost").to_string()),
        // The second time, a key that is used for another payload.
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

/// Events that are none, the secret where each goes wrong.
fn broken_events() -> Vec<Value> {
    let mut mistyped = record("m-1", "{}");
    mistyped["body"] = json!([BODY]);
    let mut no_base64 = record("m-1", "{}");
    no_base64["messageAttributes"] =
        json!({"bytes": {"binaryValue": format!("{ATTRIBUTE}!"), "dataType": "Binary"}});
    let nameless = record("", &order("nameless"));
    vec![
        batch([mistyped]),
        batch([no_base64]),
        batch([nameless]),
        json!({"Records": BODY}),
        json!({ BODY: BODY }),
        json!([BODY]),
        json!(BODY),
    ]
}

/// Answers all that was written, and has found no secret in it.
async fn run_through_every_outcome(level: &str) -> Vec<String> {
    let (gossip, url) = Gossip::start().await;
    let dynamodb = gossip.dynamo.endpoint().to_owned();
    let gateway = format!("{url}/{PATH}");
    let settings = [
        ("AWS_ENDPOINT_URL_DYNAMODB", dynamodb.as_str()),
        ("AWS_ENDPOINT_URL_SQS", &url),
        ("IDEMPOTENCY_TABLE_NAME", TABLE),
        ("PAYMENT_GATEWAY_URL", &gateway),
        ("AWS_LAMBDA_LOG_LEVEL", level),
    ];
    let env: Env = settings
        .into_iter()
        .chain(CREDENTIALS)
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect();

    let lambda = Lambda::start(env.clone()).await;
    let mut messages_seen = 0;
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
    for event in broken_events() {
        // Lambda logs it.
        let error = lambda.invoke(event, PATIENCE).await.error();
        assert!(!error.to_string().contains(SECRET), "{error}");
    }
    let of_message = |line: &Value| line["message"] == "message processed";
    let lines = lambda.logged(messages_seen, of_message).await;
    let outcomes: BTreeSet<_> = lines
        .iter()
        .filter_map(|line| line["outcome"].as_str())
        .collect();
    let expected = [
        "done",
        "duplicate",
        "failed_before",
        "invalid",
        "key_reused",
        "lease_lost",
        "permanent_failure",
        "transient_failure",
    ];
    assert_eq!(
        outcomes,
        BTreeSet::from(expected),
        "not every outcome was met"
    );
    let mut output = lambda.kill().await.output;

    // A gateway that is gone, and then DynamoDB too: errors of connections name addresses.
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
        let response = lambda.invoke(event, PATIENCE).await.response();
        assert_eq!(failed(&response), ["m-1"]);
        lambda.logged(1, of_message).await;
        output.extend(lambda.kill().await.output);
    }
    let tells = |line: &&String| line.contains(SECRET) || line.contains(ATTRIBUTE_BYTES);
    let telling: Vec<_> = output.iter().filter(tells).collect();
    assert!(telling.is_empty(), "{telling:#?}");

    let spoken: BTreeSet<String> = [
        gossip
            .dynamo
            .counts()
            .into_keys()
            .map(|name| format!("dynamodb:{name}"))
            .collect(),
        gossip
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
    .collect();
    let polled = [
        "sqs:ReceiveMessage",
        "sqs:DeleteMessage",
        "sqs:GetQueueAttributes",
    ];
    let granted: BTreeSet<String> = template::consumer_may()
        .into_iter()
        .map(|(action, _)| action)
        .filter(|action| !action.starts_with("logs:") && !polled.contains(&action.as_str()))
        .collect();
    assert_eq!(
        spoken, granted,
        "left: what it did. Right: what template.yaml grants"
    );
    output
}

#[tokio::test]
async fn no_secret_is_logged_at_the_default_level() {
    let output = run_through_every_outcome("INFO").await;
    assert!(!output.concat().contains(ACCESS_KEY_ID));
}

#[tokio::test]
async fn no_secret_is_logged_when_debugging() {
    let output = run_through_every_outcome("DEBUG").await;
    assert!(
        output.concat().contains("DEBUG"),
        "the level is not what was asked for"
    );
}

/// Runs in a process of its own: logs are set up once, and a panic is logged by a hook.
#[test]
fn a_panic_is_logged_by_its_place_and_without_its_words() {
    const ROLE: &str = "SQS_ONCE_TEST_PANICS";
    if std::env::var_os(ROLE).is_some() {
        return panic_with_the_payload();
    }
    let child = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "--nocapture",
            "logs::a_panic_is_logged_by_its_place_and_without_its_words",
        ])
        .env_clear()
        .env(ROLE, "1")
        .env("AWS_LAMBDA_LOG_LEVEL", "DEBUG")
        .env("RUST_BACKTRACE", "1")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let output = [child.stdout, child.stderr].concat();
    let output = String::from_utf8(output).unwrap();
    assert!(child.status.success(), "{output}");
    let place = output
        .lines()
        .filter(|line| line.contains(r#""message":"panicked""#));
    assert!(
        place.clone().count() >= 2 && place.clone().all(|line| line.contains("logs.rs")),
        "{output}"
    );
    assert!(!output.contains(SECRET), "{output}");
}

fn panic_with_the_payload() {
    async fn quote(body: Value, _: Attempt) -> Result<(), Failure> {
        panic!("did not expect {body}")
    }
    telemetry::init();
    let consumer = Consumer::new(Once::new(MemoryStore::default()), namespace(), quote);
    let consumer = Arc::new(consumer);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let event = batch([record("m-1", &order("o-1")), record("m-2", &json!(BODY))]);
    let failed = runtime.block_on(async { process(&consumer, event, within(PATIENCE)).await });
    assert_eq!(failed, ["m-1", "m-2"]);
}

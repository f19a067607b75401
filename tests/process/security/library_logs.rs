//! Logs of the library in cases that the shipped consumer does not reach: panics, cut-offs, and
//! effects in DynamoDB. Each test runs in its own process, because logging is set up once per
//! process and a hook logs panics.

use std::{
    future::Future,
    process::{Command, Stdio},
    sync::Arc,
    time::Duration,
};

use aws_sdk_dynamodb::{Client, types::Update};
use serde_json::{Value, json};
use sqs_once::{
    Attempt, Change, Consumer, Done, Failure, Handler, ItemMode, Mode, Once, Write, handler_fn,
    store::{DynamoStore, MemoryStore},
    telemetry,
};
use support::{
    PATIENCE,
    consumer::{namespace, process, within},
    dynamo::Dynamo,
    event::{batch, record},
    faults::Fault,
};

use crate::security::secrets::{BODY, lines_with_secrets, outcomes};

const RECORDS: &str = "idempotency";
const THINGS: &str = "things";

/// Runs `role` in a process that runs only the test `name`, and returns its output. Inside that
/// process, runs `role` and returns `None`.
fn logged_by<F>(name: &str, level: &str, role: impl FnOnce() -> F) -> Option<Vec<String>>
where
    F: Future<Output = ()>,
{
    const ROLE: &str = "SQS_ONCE_TEST_LOGS";
    if std::env::var_os(ROLE).is_some() {
        telemetry::init();
        let runtime = tokio::runtime::Runtime::new().unwrap();
        runtime.block_on(role());
        return None;
    }
    let (_, module) = module_path!().split_once("::").unwrap();
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "--nocapture", &format!("{module}::{name}")])
        .env_clear()
        .env(ROLE, "1")
        .env("AWS_LAMBDA_LOG_LEVEL", level)
        .env("RUST_BACKTRACE", "1")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let output = [child.stdout, child.stderr].concat();
    let output = String::from_utf8(output).unwrap();
    assert!(child.status.success(), "{output}");
    Some(output.lines().map(str::to_owned).collect())
}

/// Handler that obeys the body, and quotes it.
async fn obey(body: Value, _: Attempt) -> Result<(), Failure> {
    match body["act"].as_str() {
        Some("hang") => std::future::pending().await,
        _ => panic!("did not expect {body}"),
    }
}

async fn panic_and_hang() {
    let once = Once::new(MemoryStore::default());
    let consumer = Arc::new(Consumer::without_aws(once, namespace(), handler_fn(obey)));
    let act = |act| json!({"act": act, "secret": BODY});
    let event = batch([
        record("m-1", &act("panic")),
        record("m-2", &json!(BODY)),
        record("m-3", &act("hang")),
    ]);
    let failed = process(&consumer, event, within(Duration::from_secs(1))).await;
    assert_eq!(failed, ["m-1", "m-2", "m-3"]);
}

#[test]
fn panic_is_logged_without_its_message() {
    let name = "panic_is_logged_without_its_message";
    let Some(output) = logged_by(name, "DEBUG", panic_and_hang) else {
        return;
    };
    let panics = output
        .iter()
        .filter(|line| line.contains(r#""message":"panicked""#));
    let places: Vec<_> = panics
        .filter(|line| line.contains("library_logs.rs"))
        .collect();
    assert_eq!(places.len(), 2, "{output:#?}");
    assert_eq!(outcomes(&output), ["out_of_time", "panicked"]);
    assert_eq!(lines_with_secrets(&output), [""; 0]);
}

/// The control: the search above is able to find these secrets.
#[test]
fn trace_level_logs_panic_message() {
    let name = "trace_level_logs_panic_message";
    if let Some(output) = logged_by(name, "TRACE", panic_and_hang) {
        assert!(lines_with_secrets(&output).len() >= 2, "{output:#?}");
    }
}

/// Tables, one with a secret item in it, and a worker.
async fn world() -> (Dynamo, Client) {
    let dynamo = Dynamo::start().await;
    dynamo.create_table(RECORDS).await;
    dynamo.create_table(THINGS).await;
    let item = json!({"id": "thing", "n": 1, "secret": BODY});
    dynamo
        .put(THINGS, serde_dynamo::to_item(item).unwrap())
        .await;
    let client = dynamo.worker(Some(Duration::from_millis(300)));
    (dynamo, client)
}

fn once(client: Client) -> Once<DynamoStore> {
    Once::new(DynamoStore::new(client, RECORDS))
}

/// Writes refused by a condition, writes refused by DynamoDB's validation, and writes that succeed.
fn write(act: &str) -> Write<Update> {
    let write = Write::update(THINGS, "SET secret = :secret, n = n + :n").key("id", "thing");
    let write = write.value(":secret", BODY).label("thing");
    match act {
        "refused" => write.value(":n", 1).when("n < :n").return_item(),
        "invalid" => write.value(":n", BODY),
        _ => write.value(":n", 1),
    }
}

async fn plan(body: Value, _: Attempt) -> Result<Done<Value>, Failure> {
    let act = body["act"].as_str().unwrap();
    Ok(Done::new(json!(BODY)).with(write(act)))
}

async fn change(body: Value, _: Attempt) -> Result<Change<Value>, Failure> {
    let act = body["act"].as_str().unwrap();
    Ok(Change::update(json!(BODY), write(act)))
}

/// One refused message, one invalid message, and one without a response of DynamoDB.
async fn run<M: Mode<H::Output>, H: Handler>(dynamo: &Dynamo, consumer: Consumer<M, H>) {
    let consumer = Arc::new(consumer);
    let event = |act: &str| batch([record(act, &json!({"act": act, "secret": BODY}))]);
    for (act, failed) in [
        ("refused", true),
        ("invalid", true),
        ("made", false),
        ("made", false),
    ] {
        let reported = process(&consumer, event(act), within(PATIENCE)).await;
        assert_eq!(reported.len(), usize::from(failed), "{act}");
    }
    for operation in ["TransactWriteItems", "UpdateItem"] {
        dynamo.fail_all(operation, Fault::CutAfter);
    }
    let reported = process(
        &consumer,
        event("unanswered"),
        within(Duration::from_secs(2)),
    )
    .await;
    assert_eq!(reported, ["unanswered"]);
}

async fn write_in_every_mode() {
    let (dynamo, client) = world().await;
    run(
        &dynamo,
        Consumer::without_aws(once(client), namespace(), handler_fn(plan)),
    )
    .await;
    let (dynamo, client) = world().await;
    run(
        &dynamo,
        Consumer::without_aws(once(client).inbox(), namespace(), handler_fn(plan)),
    )
    .await;
    let (dynamo, client) = world().await;
    run(
        &dynamo,
        Consumer::without_aws(ItemMode::new(client), namespace(), handler_fn(change)),
    )
    .await;
}

#[test]
fn written_items_are_not_logged() {
    let name = "written_items_are_not_logged";
    let Some(output) = logged_by(name, "DEBUG", write_in_every_mode) else {
        return;
    };
    let expected = [
        "commit_unknown",
        "completed",
        "duplicate",
        "permanent_failure",
    ];
    assert_eq!(outcomes(&output), expected);
    assert_eq!(lines_with_secrets(&output), [""; 0]);
}

//! Logs of effects in DynamoDB, which the shipped consumer does not have: items that a handler writes, and those that refuse
//! its conditions.

use std::{
    process::{Command, Stdio},
    sync::Arc,
    time::Duration,
};

use aws_sdk_dynamodb::{Client, types::Update};
use serde_json::{Value, json};
use sqs_once::{
    Attempt, Change, Consumer, Done, Failure, Handler, ItemMode, Mode, Once, Write, handler_fn,
    store::DynamoStore, telemetry,
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

/// Runs in a process of its own, because logging is set up once per process.
#[test]
fn written_items_are_not_logged() {
    const IS_CHILD: &str = "SQS_ONCE_TEST_LOGS";
    if std::env::var_os(IS_CHILD).is_some() {
        telemetry::init();
        let runtime = tokio::runtime::Runtime::new().unwrap();
        return runtime.block_on(write_in_every_mode());
    }
    let (_, module) = module_path!().split_once("::").unwrap();
    let name = format!("{module}::written_items_are_not_logged");
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "--nocapture", &name])
        .env_clear()
        .env(IS_CHILD, "1")
        .env("AWS_LAMBDA_LOG_LEVEL", "DEBUG")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let output = String::from_utf8([child.stdout, child.stderr].concat()).unwrap();
    assert!(child.status.success(), "{output}");
    let output: Vec<_> = output.lines().map(str::to_owned).collect();
    let expected = [
        "commit_unknown",
        "completed",
        "duplicate",
        "permanent_failure",
    ];
    assert_eq!(outcomes(&output), expected);
    assert_eq!(lines_with_secrets(&output), [""; 0]);
}

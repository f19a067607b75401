//! A consumer whose messages control its handler, for the tests of the release profile.

use std::time::Duration;

use serde::Deserialize;
use sqs_once::{
    Attempt, Consumer, Failure, Once, Settings, aws, handler_fn, protocol::Namespace,
    store::DynamoStore,
};

#[derive(Deserialize)]
struct Order {
    #[serde(default)]
    panic: bool,
    #[serde(default)]
    sleep_ms: u64,
    #[serde(default)]
    block_ms: u64,
    /// As `block_ms`, on a thread for blocking code.
    #[serde(default)]
    spawn_blocking_ms: u64,
}

async fn obey(order: Order, attempt: Attempt) -> Result<bool, Failure> {
    std::thread::sleep(Duration::from_millis(order.block_ms));
    let blocking = Duration::from_millis(order.spawn_blocking_ms);
    tokio::task::spawn_blocking(move || std::thread::sleep(blocking)).await?;
    tokio::time::sleep(Duration::from_millis(order.sleep_ms)).await;
    assert!(!order.panic, "scripted panic");
    Ok(attempt.prior().is_some())
}

fn main() -> Result<(), lambda_runtime::Error> {
    sqs_once::telemetry::init();
    Settings::from_env().runtime()?.block_on(run())
}

async fn run() -> Result<(), lambda_runtime::Error> {
    let client = aws_sdk_dynamodb::Client::new(&aws::config().await);
    let store = DynamoStore::new(client, std::env::var("IDEMPOTENCY_TABLE_NAME")?);
    let namespace = Namespace::new(std::env::var("AWS_LAMBDA_FUNCTION_NAME")?)?;
    sqs_once::run(Consumer::new(Once::new(store), namespace, handler_fn(obey))).await
}

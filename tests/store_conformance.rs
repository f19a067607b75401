//! Every store keeps the same rules: one suite, run against each.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "tests fail by panicking"
)]

#[path = "support/conformance.rs"]
mod conformance;
mod support;

use sqs_once::store::{DynamoStore, MemoryStore};
use support::dynamo::Dynamo;

conformance!(memory, async { MemoryStore::default() });
conformance!(dynamodb, dynamo_store());

/// The real SDK, over HTTP, against an emulator in this process.
async fn dynamo_store() -> DynamoStore {
    let dynamo = Dynamo::start().await;
    dynamo.create_table("idempotency").await;
    DynamoStore::new(dynamo.client(), "idempotency")
}

//! The conformance suite, run against each store.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "tests fail by panicking"
)]

#[path = "support/conformance.rs"]
mod conformance;
mod support;

use conformance::{key, request};
use sqs_once::store::{DynamoStore, Layout, MemoryStore, Store as _};
use support::dynamo::Dynamo;

conformance!(memory, async { MemoryStore::default() });
conformance!(dynamodb, dynamo_store(&["id"], Layout::native()));
conformance!(powertools, dynamo_store(&["id"], Layout::powertools()));
conformance!(
    powertools_sort_key,
    dynamo_store(
        &["id", "sk"],
        Layout::powertools().sort_key("sk", "idempotency#").unwrap()
    )
);
conformance!(sort_key, dynamo_store(&["PK", "SK"], single_table()));
conformance!(renamed, dynamo_store(&["size"], renamed()));

#[tokio::test]
async fn memory_store_reads_back_its_records() {
    let store = MemoryStore::default();
    assert_eq!((store.len(), store.is_empty()), (0, true));
    for part in ["1", "2"] {
        assert_eq!(store.get(&key(part)), None);
        let request = request(part, "m-1");
        store.clone().claim(&request).await.unwrap();
        assert_eq!(store.get(&key(part)), Some(request.record(None)));
    }
    assert_eq!((store.len(), store.is_empty()), (2, false));
}

fn single_table() -> Layout {
    let names = Layout::native().rename([("id", "PK")]).unwrap();
    names.sort_key("SK", "idempotency").unwrap()
}

/// Other names for all attributes, among them reserved words and names that an expression cannot
/// hold.
fn renamed() -> Layout {
    let names = [
        ("id", "size"),
        ("status", "state"),
        ("owner", "user"),
        ("lease_until", "until"),
        ("expires_at", "ttl"),
        ("fingerprint", "hash"),
        ("message_id", "message-id"),
        ("attempts", "number of claims"),
        ("first_claimed_at", "since"),
        ("last_end", "end"),
        ("failed_message_ids", "failed"),
        ("result", "value"),
        ("result_omitted", "no.value"),
        ("error", "status"),
        ("created_at", "first time"),
        ("updated_at", ":now"),
    ];
    let names = Layout::native().rename(names).unwrap();
    names.status_words("running", "done", "dead").unwrap()
}

/// The real SDK, over HTTP, against an emulator in this process.
async fn dynamo_store(primary_key: &[&str], layout: Layout) -> DynamoStore {
    let dynamo = Dynamo::start().await;
    dynamo.create_table_keyed("idempotency", primary_key).await;
    let store = DynamoStore::new(dynamo.client(), "idempotency").layout(layout);
    store.prime(support::PATIENCE).await.unwrap();
    store
}

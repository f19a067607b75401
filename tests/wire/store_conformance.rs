//! The conformance suite, run against each store.

use std::time::Duration;

use sqs_once::{
    protocol::{ClaimRequest, FencingToken, Key, Namespace, Owner, Settlement, Timestamp},
    store::{
        Batched, ClaimResponse, DynamoStore, Layout, MemoryStore, RequestContext, SettleResponse,
        Store, StoreError,
    },
    testing::conformance,
};
use support::{CONTEXT, dynamo::Table};

/// Makes a module of tests, one per promise, for the store that `$new` makes.
macro_rules! conformance {
    ($backend:ident, $new:expr) => {
        sqs_once::testing::for_each_promise_of_a_store!(conformance, $backend, $new,);
    };
    ($backend:ident, $new:expr, $($promise:ident)+) => {
        mod $backend {
            use super::*;

            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $promise() {
                let store = $new.await;
                conformance::$promise(&store).await;
            })+
        }
    };
}

conformance!(dynamodb, dynamo_store(&["id"], Layout::native()));
conformance!(renamed, dynamo_store(&["size", "SK"], renamed()));

// Every claim and every settlement in a group first.
conformance!(grouped, grouped(dynamo_store(&["id"], Layout::native())));
conformance!(
    grouped_renamed,
    grouped(dynamo_store(&["size", "SK"], renamed()))
);

#[tokio::test]
async fn memory_store_reads_back_its_records() {
    let store = MemoryStore::default();
    assert_eq!((store.len(), store.is_empty()), (0, true));
    let now = Timestamp::now();
    let lease_until = now + Duration::from_secs(30);
    for part in ["1", "2"] {
        let key = Key::new(&Namespace::new("conformance").unwrap(), [part]).unwrap();
        assert_eq!(store.get(&key), None);
        let owner = Owner::fresh();
        let request = ClaimRequest::new(key.clone(), owner, "m-1", now, lease_until, now.as_secs());
        let _ = store.clone().claim(&request, &CONTEXT).await.unwrap();
        assert_eq!(store.get(&key), Some(request.record(None)));
    }
    assert_eq!((store.len(), store.is_empty()), (2, false));
}

/// A store that admits claims which its own memory refuses.
#[derive(Default)]
struct Forgetful(MemoryStore);

impl Store for Forgetful {
    async fn claim(
        &self,
        request: &ClaimRequest,
        context: &RequestContext,
    ) -> Result<ClaimResponse, StoreError> {
        self.0.remove(&request.key);
        self.0.claim(request, context).await
    }

    async fn settle(
        &self,
        fence: &FencingToken,
        settlement: &Settlement,
        now: Timestamp,
        context: &RequestContext,
    ) -> Result<SettleResponse, StoreError> {
        self.0.settle(fence, settlement, now, context).await
    }
}

#[tokio::test]
#[should_panic(expected = "admitted over")]
async fn suite_fails_store_that_forgets() {
    conformance::all(async || Forgetful::default()).await;
}

/// A sort key, and other names for all attributes, among them reserved words and names that an
/// expression cannot hold.
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
        ("result_in_s3", "elsewhere"),
        ("result_omitted", "no.value"),
        ("error", "status"),
        ("created_at", "first time"),
        ("updated_at", ":now"),
    ];
    let names = Layout::native().rename(names).unwrap();
    names.sort_key("SK", "idempotency").unwrap()
}

async fn grouped(store: impl Future<Output = DynamoStore>) -> Batched {
    Batched::with_lone_calls(store.await)
}

/// The real SDK, over HTTP, against an emulator in this process, or where `make test-aws` says.
async fn dynamo_store(primary_key: &[&str], layout: Layout) -> DynamoStore {
    let table = Table::create(primary_key).await;
    let store = DynamoStore::new(table.client, table.name).layout(layout);
    store.warm_up(support::PATIENCE).await.unwrap();
    store
}

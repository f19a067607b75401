// error[E0277]: `sqs_once::Once<MemoryStore>` does not run handlers that return `sqs_once::Done<u64>`
// = note: for `Done`, use `Once` or `Inbox` on a `DynamoStore`: a `MemoryStore` has no transactions

use sqs_once::{Attempt, Consumer, Done, Failure, Once};
use sqs_once::{handler_fn, protocol::Namespace, store::MemoryStore};

async fn place(_: String, _: Attempt) -> Result<Done<u64>, Failure> {
    Ok(Done::new(1))
}

fn main() {
    let once = Once::new(MemoryStore::default());
    let namespace = Namespace::new("orders").unwrap();
    let _ = Consumer::without_aws(once, namespace, handler_fn(place)).fail_when_store_unavailable(false);
}

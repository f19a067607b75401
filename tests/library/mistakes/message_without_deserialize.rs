// error[E0277]: `Order` cannot be the message of a handler: it does not implement `serde::Deserialize`
// the body is read as JSON, so the message must implement `serde::Deserialize`
// = note: add `#[derive(serde::Deserialize)]` to `Order`; for a body that is not JSON, implement `sqs_once::FromMessage` for it, or take `sqs_once::Text`

use sqs_once::{Attempt, Consumer, Failure, Once};
use sqs_once::{handler_fn, protocol::Namespace, store::MemoryStore};

struct Order;

async fn charge(_: Order, _: Attempt) -> Result<u64, Failure> {
    Ok(1)
}

fn main() {
    let once = Once::new(MemoryStore::default());
    let namespace = Namespace::new("payments").unwrap();
    let _ = Consumer::without_aws(once, namespace, handler_fn(charge)).fail_when_store_unavailable(false);
}

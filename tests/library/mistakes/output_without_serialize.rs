// error[E0277]: `Receipt` cannot be the output of a handler: it does not implement `serde::Serialize`
// the output is recorded as JSON, so it must implement `serde::Serialize`
// = note: add `#[derive(serde::Serialize)]` to `Receipt`, or return `()` where there is nothing to record

use sqs_once::{Attempt, Consumer, Failure, Once};
use sqs_once::{handler_fn, protocol::Namespace, store::MemoryStore};

struct Receipt;

async fn charge(_: String, _: Attempt) -> Result<Receipt, Failure> {
    Ok(Receipt)
}

fn main() {
    let once = Once::new(MemoryStore::default());
    let namespace = Namespace::new("payments").unwrap();
    let _ = Consumer::without_aws(once, namespace, handler_fn(charge)).fail_when_store_unavailable(false);
}

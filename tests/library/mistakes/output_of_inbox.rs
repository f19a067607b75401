// error[E0277]: `sqs_once::Once<DynamoStore, Unleased>` does not run handlers that return `u64`
// = note: for `Done`, use `Once` or `Inbox` on a `DynamoStore`

use sqs_once::{Attempt, Consumer, Failure, Inbox};
use sqs_once::{handler_fn, protocol::Namespace, store::DynamoStore};

async fn place(_: String, _: Attempt) -> Result<u64, Failure> {
    Ok(1)
}

fn consumer(inbox: Inbox<DynamoStore>) {
    let namespace = Namespace::new("orders").unwrap();
    let _ = Consumer::without_aws(inbox, namespace, handler_fn(place)).fail_when_store_unavailable(false);
}

fn main() {}

// error[E0277]: `sqs_once::Once<DynamoStore>` does not run handlers that return
// = note: for `Change`, use `ItemMode`

use sqs_once::{Attempt, Change, Consumer, Failure, Once, Write};
use sqs_once::{handler_fn, protocol::Namespace, store::DynamoStore};

async fn like(post: String, _: Attempt) -> Result<Change<()>, Failure> {
    Ok(Change::update((), Write::update("posts", "ADD likes :one").key("id", post).value(":one", 1)))
}

fn consumer(once: Once<DynamoStore>) {
    let namespace = Namespace::new("orders").unwrap();
    let _ = Consumer::without_aws(once, namespace, handler_fn(like)).fail_when_store_unavailable(false);
}

fn main() {}

// {charge}` is not a handler
// = note: to make a handler of an async function, write `sqs_once::handler_fn(function)`
// = note: the function takes the message and an `Attempt`, and returns `Result<Output, Failure>`

use sqs_once::{Attempt, Consumer, Failure, Once};
use sqs_once::{protocol::Namespace, store::MemoryStore};

async fn charge(_: String, _: Attempt) -> Result<u64, Failure> {
    Ok(1)
}

fn main() {
    let once = Once::new(MemoryStore::default());
    let namespace = Namespace::new("payments").unwrap();
    let _ = Consumer::without_aws(once, namespace, charge).fail_when_store_unavailable(false);
}

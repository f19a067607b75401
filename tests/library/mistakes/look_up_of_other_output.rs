// error[E0277]: `LookUpFn<
// is not a lookup for messages of type `String` and outputs of type `u64`
// async fn function(message: &String, attempt: &Attempt) -> Result<LookedUp<u64>, Failure>

use std::time::Duration;

use sqs_once::{Attempt, Consumer, Failure, LookedUp, Once};
use sqs_once::{handler_fn, look_up_fn, protocol::Namespace, store::MemoryStore};

async fn charge(_: String, _: Attempt) -> Result<u64, Failure> {
    Ok(1)
}

async fn look_up(_: &String, _: &Attempt) -> Result<LookedUp<String>, Failure> {
    Ok(LookedUp::NotFound)
}

fn consumer(once: Once<MemoryStore>) {
    let namespace = Namespace::new("orders").unwrap();
    let _ = Consumer::without_aws(once, namespace, handler_fn(charge))
        .look_up(look_up_fn(look_up), Duration::from_secs(30));
}

fn main() {}

// error[E0599]: no method named `look_up` found for struct `Consumer<sqs_once::Once<DynamoStore, Unleased>,
// = note: the method was found for
// - `Consumer<sqs_once::Once<S>, H>`

use std::time::Duration;

use sqs_once::{Attempt, Consumer, Done, Failure, Inbox, LookedUp};
use sqs_once::{handler_fn, look_up_fn, protocol::Namespace, store::DynamoStore};

async fn place(_: String, _: Attempt) -> Result<Done<u64>, Failure> {
    Ok(Done::new(1))
}

async fn look_up(_: &String, _: &Attempt) -> Result<LookedUp<Done<u64>>, Failure> {
    Ok(LookedUp::NotFound)
}

fn consumer(inbox: Inbox<DynamoStore>) {
    let namespace = Namespace::new("orders").unwrap();
    let _ = Consumer::without_aws(inbox, namespace, handler_fn(place))
        .look_up(look_up_fn(look_up), Duration::from_secs(30));
}

fn main() {}

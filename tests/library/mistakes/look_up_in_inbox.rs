// error[E0277]: `Inbox<DynamoStore>` does not run handlers that return `sqs_once::Reconciled<u64>`
// = note: for `Reconciled`, which a handler with a look-up returns, use `Once`: in the other modes the effect commits together with the record, so there is nothing to look up

use sqs_once::{Attempt, Consumer, Failure, Inbox, LookUp};
use sqs_once::{handler_fn, protocol::Namespace, store::DynamoStore};

async fn charge(_: String, _: Attempt) -> Result<u64, Failure> {
    Ok(1)
}

async fn look_up(_: &String, _: &Attempt) -> Result<LookUp<u64>, Failure> {
    Ok(LookUp::NotFound)
}

fn consumer(inbox: Inbox<DynamoStore>) {
    let namespace = Namespace::new("orders").unwrap();
    let _ = Consumer::new(inbox, namespace, handler_fn(charge).reconcile(look_up));
}

fn main() {}

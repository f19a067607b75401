// error[E0277]: a handler that returns `sqs_once::Done<u64>` cannot have a look-up
// = note: `Done`, `Change` and `InTransaction` need no look-up: their writes commit together with the record

use sqs_once::{Attempt, Done, Failure, LookUp, handler_fn};

async fn place(_: String, _: Attempt) -> Result<Done<u64>, Failure> {
    Ok(Done::new(1))
}

async fn look_up(_: &String, _: &Attempt) -> Result<LookUp<Done<u64>>, Failure> {
    Ok(LookUp::NotFound)
}

fn main() {
    let _ = handler_fn(place).reconcile(look_up);
}

// error[E0593]: function is expected to take 2 arguments, but it takes 1 argument
// F: Fn(M, Attempt) -> Fut + Send + Sync + 'static,

use sqs_once::{Consumer, Failure, Once};
use sqs_once::{handler_fn, protocol::Namespace, store::MemoryStore};

async fn charge(_: String) -> Result<u64, Failure> {
    Ok(1)
}

fn main() {
    let once = Once::new(MemoryStore::default());
    let namespace = Namespace::new("payments").unwrap();
    let _ = Consumer::without_aws(once, namespace, handler_fn(charge)).fail_when_store_unavailable(false);
}

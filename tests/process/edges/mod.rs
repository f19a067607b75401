//! Edge cases of the protocol, over the release binary: failures, crashes and outages between the
//! consumer, its table, its gateway and its queue.

mod attempts;
mod keys;
mod outages;
mod queue;

use serde_json::Value;
use support::{
    event::{batch, failed, order, received},
    runtime_api::{Lambda, of_message},
    stage::TIME,
};

/// The order id as the key. A corrected message keeps it and has another amount.
const BY_ORDER: (&str, &str) = ("IDEMPOTENCY_KEY", "body:/orderId");

/// Delivers a batch and returns the ids reported as failed.
async fn deliver(lambda: &Lambda, messages: impl IntoIterator<Item = Value>) -> Vec<String> {
    let answer = lambda.invoke(batch(messages), TIME).await;
    failed(&answer.response())
}

/// The `n`th receive of message m-1, for order o-1.
fn first_message(n: u32) -> Value {
    received("m-1", &order("o-1"), n)
}

/// Log line of a message's `n`th delivery.
async fn line_of(lambda: &Lambda, message_id: &str, n: usize) -> Value {
    let of_it = |line: &Value| of_message(line) && line["message_id"] == message_id;
    lambda.logged(n, of_it).await.remove(n - 1)
}

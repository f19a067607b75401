//! Response to a transaction whose writes' conditions are not met.
//!
//! Only the library makes a `ConditionFailed`, from a response of DynamoDB. So this module calls the
//! library's own store with such a response.

use std::sync::OnceLock;

use aws_smithy_runtime_api::client::http::HttpConnectorFuture;
use futures_util::FutureExt as _;
use serde_json::json;
use sqs_once::{
    Done, Write,
    internal::Refused,
    protocol::Swap,
    store::{DynamoStore, Store as _, Swapped},
};

use support::CONTEXT;

use crate::schedules::wire;

/// The record's condition is met; the condition of the one write beside it is not.
pub fn refused(swap: &Swap) -> Swapped<Refused> {
    static REFUSED: OnceLock<Swapped<Refused>> = OnceLock::new();
    let ask = || {
        let cancelled = json!({
            "__type": "com.amazonaws.dynamodb.v20120810#TransactionCanceledException",
            "CancellationReasons": [{ "Code": "None" }, { "Code": "ConditionalCheckFailed" }],
        });
        let client =
            wire::client(move |_| HttpConnectorFuture::ready(Ok(wire::response(Err(&cancelled)))));
        let store = DynamoStore::new(client, "records");
        let write = Done::new(()).with(Write::put("stock", json!({})));
        let answer = store.swap(swap, &write.into(), &CONTEXT).now_or_never();
        answer.expect("the response comes at once").unwrap()
    };
    REFUSED.get_or_init(ask).clone()
}

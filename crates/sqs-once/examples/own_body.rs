//! A body that is not JSON: Protocol Buffers in base64, because a queue carries text. The message is declared in Rust, so you don't
//! need the Protocol Buffers compiler.

use base64::{Engine as _, prelude::BASE64_STANDARD};
use prost::Message as _;
use sqs_once::{
    Attempt, Consumer, DeliveryMetadata, Failure, FromMessage, InvalidMessage, handler_fn,
    sqs::KeySource,
};

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct StockMoved {
    #[prost(string, tag = "1")]
    pub(crate) movement_id: String,
    #[prost(sint32, tag = "2")]
    pub(crate) pieces: i32,
}

impl FromMessage for StockMoved {
    fn from_message(body: &str, _: &DeliveryMetadata) -> Result<Self, InvalidMessage> {
        let bytes = BASE64_STANDARD
            .decode(body)
            .map_err(|_| "the body is not base64")?;
        // We leave out prost's error, which may quote the body.
        Self::decode(&*bytes).map_err(|_| "the body is not a StockMoved".into())
    }
}

/// JSON pointers can't read such a body.
pub(crate) fn key() -> KeySource {
    KeySource::from_fn(|body, delivery| {
        StockMoved::from_message(body, delivery).map(|moved| [moved.movement_id])
    })
}

pub(crate) async fn note(moved: StockMoved, _: Attempt) -> Result<i32, Failure> {
    Ok(moved.pieces)
}

#[tokio::main]
async fn main() -> Result<(), lambda_runtime::Error> {
    sqs_once::telemetry::init();
    sqs_once::run(Consumer::from_env(handler_fn(note)).await?.key(key())).await
}

//! Messages in Protocol Buffers. A queue carries text, so the producer sends the bytes as base64. The key is made
//! by code, because JSON pointers cannot read such a body.
//!
//! The message is declared in Rust, so no compiler of Protocol Buffers is needed:
//!
//! ```proto
//! message StockMoved {
//!     string movement_id = 1;
//!     string product = 2;
//!     sint32 pieces = 3;
//! }
//! ```
//!
//! Try it on this machine, from two terminals; the second time, every message is a duplicate:
//!
//! ```sh
//! make watch EXAMPLE=protobuf
//! make invoke EVENT=events/protobuf.json
//! ```
//!
//! Deploy it for a queue and a table that you have. The table's partition key is `product`; the role
//! needs `AWSLambdaSQSQueueExecutionRole` and, on the table, `dynamodb:UpdateItem`.
//!
//! ```sh
//! cargo lambda build --release --arm64 --package programs --bin protobuf
//! cargo lambda deploy protobuf --role ROLE_ARN --timeout 30 --env-var STOCK_TABLE_NAME=TABLE
//! aws lambda create-event-source-mapping --function-name protobuf \
//!     --event-source-arn QUEUE_ARN --function-response-types ReportBatchItemFailures
//! ```

use base64::{Engine as _, prelude::BASE64_STANDARD};
use prost::Message as _;
use sqs_once::{
    Attempt, Change, Consumer, DeliveryMetadata, Failure, FromMessage, Handler, InvalidMessage,
    ItemMode, Settings, SettingsError, Write, sqs::KeySource, telemetry,
};

/// Pieces that came into the stock, or left it.
#[derive(Clone, PartialEq, prost::Message)]
struct StockMoved {
    #[prost(string, tag = "1")]
    movement_id: String,
    #[prost(string, tag = "2")]
    product: String,
    #[prost(sint32, tag = "3")]
    pieces: i32,
}

impl FromMessage for StockMoved {
    fn from_message(body: &str, _: &DeliveryMetadata) -> Result<Self, InvalidMessage> {
        let bytes = BASE64_STANDARD.decode(body);
        let bytes = bytes.map_err(|_| "the body is not base64")?;
        // The text of prost's error is left out: it may quote the body.
        Self::decode(&*bytes).map_err(|_| "the body is not a StockMoved".into())
    }
}

/// The producer's id of the movement.
fn key(body: &str, delivery: &DeliveryMetadata) -> Result<[String; 1], InvalidMessage> {
    StockMoved::from_message(body, delivery).map(|moved| [moved.movement_id])
}

struct MoveStock {
    stock: String,
}

impl Handler for MoveStock {
    type Message = StockMoved;
    type Output = Change<()>;

    /// Plans the update; `sqs_once` adds the condition that the product does not have this message's
    /// key.
    async fn handle(&self, moved: StockMoved, _: Attempt) -> Result<Change<()>, Failure> {
        if moved.product.is_empty() {
            return Err(Failure::permanent("a movement without a product"));
        }
        let update = Write::update(&self.stock, "SET quantity = quantity + :pieces")
            .key("product", moved.product)
            .when("quantity >= :missing") // nor is it met by a product that is not there
            .value(":pieces", moved.pieces)
            .value(":missing", -i64::from(moved.pieces));
        Ok(Change::update((), update)
            .on_condition_failed(|_| Err(Failure::permanent("the stock has too few pieces"))))
    }
}

/// The consumer, with these settings.
pub async fn consumer(
    mut settings: Settings,
) -> Result<Consumer<ItemMode, impl Handler<Output = Change<()>>>, SettingsError> {
    settings.set_default("IDEMPOTENCY_NAMESPACE", "stock");
    // A product has movements without end: longer than the queue and its dead-letter queue keep them.
    settings.set_default("IDEMPOTENCY_RETENTION", "20d");
    // It would need permissions that the function's role does not have.
    settings.set_default("CONSUMER_VISIBILITY", "off");
    let stock = settings.required("STOCK_TABLE_NAME", "table of the stock", str::parse);
    let consumer = settings.item_mode(stock.map(|stock| MoveStock { stock }));
    Ok(consumer.await?.key(KeySource::from_fn(key)))
}

#[tokio::main]
async fn main() -> Result<(), lambda_runtime::Error> {
    telemetry::init();
    sqs_once::run(consumer(Settings::from_env()).await?).await
}

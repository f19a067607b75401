//! Orders that their producer compresses: gzip in base64, because a queue carries text. The key is in a message
//! attribute, so nobody has to decompress a body to find it.
//!
//! Try it on this machine: `make dev EXAMPLE=gzip` sends `events/gzip.json`. Press Enter to send it
//! again; then every message is a duplicate.
//!
//! Deploy it for a queue and a table that you have, as README.md says: `ORDERS_TABLE_NAME` is a table with the
//! partition key `orderId`. The role needs `dynamodb:PutItem` on it.

use std::io::Read as _;

use base64::{Engine as _, prelude::BASE64_STANDARD};
use flate2::read::MultiGzDecoder;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use sqs_once::{
    Attempt, Change, Consumer, DeliveryMetadata, Failure, FromMessage, Handler, InvalidMessage,
    ItemMode, Settings, SettingsError, Write, telemetry,
};

/// Longest JSON, in bytes. All messages that run may have such bodies, and gzip expands a message of 1 MB up to a
/// gigabyte.
const MAX_BYTES: u64 = 1024 * 1024;

/// A body of JSON in gzip and base64.
struct Gzip<T>(T);

impl<T: DeserializeOwned + Send> FromMessage for Gzip<T> {
    fn from_message(body: &str, _: &DeliveryMetadata) -> Result<Self, InvalidMessage> {
        let gzip = BASE64_STANDARD.decode(body);
        let gzip = gzip.map_err(|_| "the body is not base64")?;
        let mut json = Vec::new();
        MultiGzDecoder::new(&*gzip)
            .take(MAX_BYTES + 1)
            .read_to_end(&mut json)
            .map_err(|_| "the body is not gzip, or is not complete")?;
        if json.len() as u64 > MAX_BYTES {
            return Err(format!("the body has more than {MAX_BYTES} bytes").into());
        }
        let value = serde_json::from_slice(&json);
        // Serde's own text may quote the body; this one does not.
        value
            .map(Self)
            .map_err(|error| InvalidMessage::json(&error))
    }
}

#[derive(Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
struct Order {
    order_id: String,
    product: String,
    pieces: u32,
}

struct KeepOrder {
    orders: String,
}

impl Handler for KeepOrder {
    type Message = Gzip<Order>;
    type Output = Change<()>;

    async fn handle(&self, Gzip(order): Gzip<Order>, _: Attempt) -> Result<Change<()>, Failure> {
        let put = Write::put(&self.orders, &order);
        Ok(Change::create((), "orderId", put))
    }
}

/// The consumer, with these settings.
pub async fn consumer(
    mut settings: Settings,
) -> Result<Consumer<ItemMode, impl Handler<Output = Change<()>>>, SettingsError> {
    settings.set_default("IDEMPOTENCY_NAMESPACE", "orders");
    settings.set_default("IDEMPOTENCY_KEY", "attribute:orderId");
    // It would need permissions that the function's role does not have.
    settings.set_default("CONSUMER_VISIBILITY", "off");
    let orders = settings.required("ORDERS_TABLE_NAME", "table of the orders", str::parse);
    settings
        .item_mode(orders.map(|orders| KeepOrder { orders }))
        .await
}

#[tokio::main]
async fn main() -> Result<(), lambda_runtime::Error> {
    telemetry::init();
    sqs_once::run(consumer(Settings::from_env()).await?).await
}

//! Orders that the producer compresses with gzip and then encodes in base64, because a queue carries text. A message attribute
//! holds the key, so nobody has to decompress a body to find it.
//!
//! Try it on this machine: `make dev EXAMPLE=gzip` sends `events/gzip.json`. Press Enter to send it
//! again. Every message is then a duplicate.
//!
//! Deploy it for a queue and a table of yours, as README.md says. `ORDERS_TABLE_NAME` names a table with the
//! partition key `orderId`. The role needs `dynamodb:PutItem` on it.

use std::io::Read as _;

use base64::{Engine as _, prelude::BASE64_STANDARD};
use flate2::read::MultiGzDecoder;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use sqs_once::{
    Attempt, Change, Consumer, DeliveryMetadata, Failure, FromMessage, Handler, InvalidMessage,
    ItemMode, Settings, SettingsError, Write, telemetry,
};

/// Longest JSON that we accept, in bytes. Every message in progress may have such a body, and gzip can expand a message of 1 MB
/// to a gigabyte.
const MAX_BYTES: u64 = 1024 * 1024;

/// A body that is JSON in gzip and base64.
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
        // serde's own error may quote the body. This one doesn't.
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

/// Creates the consumer from these settings.
pub async fn consumer(
    mut settings: Settings,
) -> Result<Consumer<ItemMode, impl Handler<Output = Change<()>>>, SettingsError> {
    settings.set_default("IDEMPOTENCY_NAMESPACE", "orders");
    settings.set_default("IDEMPOTENCY_KEY", "attribute:orderId");
    // Setting visibility timeouts would need permissions that the function's role does not have.
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

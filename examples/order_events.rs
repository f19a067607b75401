//! Several types of messages on one queue: a serde enum, which the field `type` tells apart.
//!
//! A message of an unknown type is a permanent failure. The log line names its type and the known types. When you add a type,
//! deploy the consumer before the producer.
//!
//! The queue is a FIFO queue whose message group is the order, so an order is placed before it is
//! shipped. On a standard queue, the later event may come first. It then fails, and is retried.
//!
//! Try it on this machine: `make dev EXAMPLE=order_events` sends `events/order-events.json`. Press Enter to send it
//! again. Every known message is then a duplicate.
//!
//! Deploy it for a FIFO queue and a table of yours, as README.md says. `ORDERS_TABLE_NAME` names a table with the
//! partition key `orderId`. The role needs `dynamodb:PutItem` and `dynamodb:UpdateItem` on it.

use serde::Deserialize;
use serde_json::json;
use sqs_once::{
    Attempt, Change, Consumer, Failure, Handler, ItemMode, Settings, SettingsError, Write,
    telemetry,
};

/// The types of messages, without the fields that the handler does not need.
#[derive(Deserialize)]
#[serde(tag = "type", rename_all_fields = "camelCase")]
enum OrderEvent {
    #[serde(rename = "order.placed")]
    Placed {
        order_id: String,
        customer_id: String,
    },
    #[serde(rename = "order.shipped")]
    Shipped { order_id: String, carrier: String },
    #[serde(rename = "order.cancelled")]
    Cancelled { order_id: String, reason: String },
}

struct TrackOrders {
    orders: String,
}

impl TrackOrders {
    /// Plans an update that ends a placed order.
    fn end(&self, order_id: String, status: &str, detail: String) -> Change<()> {
        let update = Write::update(&self.orders, "SET #status = :status, detail = :detail")
            .key("orderId", order_id)
            .when("#status = :placed")
            .name("#status", "status") // a reserved word of DynamoDB
            .value(":placed", "placed")
            .value(":status", status)
            .value(":detail", detail)
            .label("order");
        Change::update((), update).on_condition_failed(|failed| {
            let order = failed.get("order").and_then(|write| write.item.as_ref());
            Err(match order {
                Some(_) => Failure::permanent("the order is shipped or cancelled already"),
                None => Failure::retryable("the order is not there, or not there yet"),
            })
        })
    }
}

impl Handler for TrackOrders {
    type Message = OrderEvent;
    type Output = Change<()>;

    /// Plans one change of the order. `sqs_once` adds the condition that the order does not have this message's key.
    async fn handle(&self, event: OrderEvent, _: Attempt) -> Result<Change<()>, Failure> {
        Ok(match event {
            OrderEvent::Placed {
                order_id,
                customer_id,
            } => {
                let order = json!({
                    "orderId": order_id, "customerId": customer_id, "status": "placed"
                });
                let put = Write::put(&self.orders, order);
                Change::create((), "orderId", put)
                    .on_condition_failed(|_| Err(Failure::permanent("the order is there already")))
            }
            OrderEvent::Shipped { order_id, carrier } => self.end(order_id, "shipped", carrier),
            OrderEvent::Cancelled { order_id, reason } => self.end(order_id, "cancelled", reason),
        })
    }
}

/// Creates the consumer from these settings.
pub async fn consumer(
    mut settings: Settings,
) -> Result<Consumer<ItemMode, impl Handler<Output = Change<()>>>, SettingsError> {
    settings.set_default("IDEMPOTENCY_NAMESPACE", "order-events");
    // The producer gives each event an id, whatever its type.
    settings.set_default("IDEMPOTENCY_KEY", "body:/eventId");
    // Setting visibility timeouts would need permissions that the function's role does not have.
    settings.set_default("CONSUMER_VISIBILITY", "off");
    let orders = settings.required("ORDERS_TABLE_NAME", "table of the orders", str::parse);
    settings
        .item_mode(orders.map(|orders| TrackOrders { orders }))
        .await
}

#[tokio::main]
async fn main() -> Result<(), lambda_runtime::Error> {
    telemetry::init();
    sqs_once::run(consumer(Settings::from_env()).await?).await
}

//! Several types of messages on one queue: a serde enum, told apart by the field `type`.
//!
//! A message of another type is a permanent failure, whose log line names that type and the known
//! types. Deploy a consumer that knows a new type before the producer that sends it.
//!
//! The queue is a FIFO queue whose message group is the order, so an order is placed before it is
//! shipped. On a standard queue the later event may come first, and is repeated.
//!
//! Try it on this machine: `make dev EXAMPLE=order_events` sends `events/order-events.json`. Press Enter to send it
//! again; then every known message is a duplicate.
//!
//! Deploy it for a FIFO queue and a table that you have, as README.md says: `ORDERS_TABLE_NAME` is a table with the
//! partition key `orderId`. The role needs `dynamodb:PutItem` and `dynamodb:UpdateItem` on it.

use serde::Deserialize;
use serde_json::json;
use sqs_once::{
    Attempt, Change, Consumer, Failure, Handler, ItemMode, Settings, SettingsError, Write,
    telemetry,
};

/// The types of messages. Fields that the handler does not need are left out.
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
    /// Plans the end of an order that is placed.
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

    /// Plans one change of the order; `sqs_once` adds the condition that the order does not have this
    /// message's key.
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

/// The consumer, with these settings.
pub async fn consumer(
    mut settings: Settings,
) -> Result<Consumer<ItemMode, impl Handler<Output = Change<()>>>, SettingsError> {
    settings.set_default("IDEMPOTENCY_NAMESPACE", "order-events");
    // Each type has the producer's id of the event.
    settings.set_default("IDEMPOTENCY_KEY", "body:/eventId");
    // It would need permissions that the function's role does not have.
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

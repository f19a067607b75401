//! Adds an item to an open order once. The order stores the keys of processed messages in
//! `processed_events`.
//!
//! Try it on this machine: `make dev EXAMPLE=add_order_item` sends `events/add-order-item.json`. Press Enter to send it
//! again. Every message is then a duplicate.
//!
//! Deploy it for a queue and a table of yours, as README.md says. `ORDERS_TABLE_NAME` names a table with the
//! partition key `orderId`, in which each order has a string `status`. The role needs `dynamodb:UpdateItem` on it.

use serde::{Deserialize, Serialize};
use sqs_once::{
    Attempt, Change, Consumer, Failure, Handler, ItemMode, Settings, SettingsError, Write,
    telemetry,
};

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct AddItem {
    order_id: String,
    #[serde(flatten)]
    item: Item,
}

#[derive(Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
struct Item {
    /// The sender chooses it, so that two pieces of one product are two items.
    item_id: String,
    product: String,
    quantity: u32,
}

struct AddToOrder {
    orders: String,
}

impl Handler for AddToOrder {
    type Message = AddItem;
    type Output = Change<()>;

    /// Plans the update. `sqs_once` adds the condition that the order has not seen this message's key.
    async fn handle(&self, add: AddItem, _: Attempt) -> Result<Change<()>, Failure> {
        if add.order_id.is_empty() || add.item.quantity == 0 {
            return Err(Failure::permanent(
                "an item without an order, or of 0 pieces",
            ));
        }
        let append = "SET #items = list_append(if_not_exists(#items, :none), :item)";
        let update = Write::update(&self.orders, append)
            .key("orderId", add.order_id)
            .when("#status = :open")
            .name("#items", "items") // both names are reserved words of DynamoDB
            .name("#status", "status")
            .value(":none", Vec::<Item>::new())
            .value(":item", vec![add.item])
            .value(":open", "open")
            .label("open order");
        Ok(Change::update((), update).on_condition_failed(|failed| {
            let order = failed
                .get("open order")
                .and_then(|write| write.item.as_ref());
            Err(match order {
                Some(_) => Failure::permanent("the order is not open any more"),
                // Messages may overtake each other, so the one that creates the order may still be on its way.
                None => Failure::retryable("the order is not there, or not there yet"),
            })
        }))
    }
}

/// Creates the consumer from these settings.
pub async fn consumer(
    mut settings: Settings,
) -> Result<Consumer<ItemMode, impl Handler<Output = Change<()>>>, SettingsError> {
    settings.set_default("IDEMPOTENCY_NAMESPACE", "order-items");
    // An item that is sent twice has two message ids, but one item id.
    settings.set_default("IDEMPOTENCY_KEY", "body:/orderId,/itemId");
    // Setting visibility timeouts would need permissions that the function's role does not have.
    settings.set_default("CONSUMER_VISIBILITY", "off");
    let orders = settings.required("ORDERS_TABLE_NAME", "table of the orders", str::parse);
    settings
        .item_mode(orders.map(|orders| AddToOrder { orders }))
        .await
}

#[tokio::main]
async fn main() -> Result<(), lambda_runtime::Error> {
    telemetry::init();
    sqs_once::run(consumer(Settings::from_env()).await?).await
}

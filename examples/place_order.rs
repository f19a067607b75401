//! Places an order: puts the order and takes its products from the stock, in one transaction with the
//! record. An order for more than the stock is declined.
//!
//! Try it on this machine: `make dev EXAMPLE=place_order` sends `events/place-order.json`. Press Enter to send it
//! again. Every message is then a duplicate.
//!
//! Deploy it with its queue, its role and its tables. You fill the table of the stock yourself: `{product, quantity}`.
//!
//! `make` installs cargo-lambda into `.venv/bin`: `export PATH="$PWD/.venv/bin:$PATH"`. With its own stack name and
//! `--config-env`, this stack doesn't replace the sample's.
//!
//! ```sh
//! cargo lambda build --release --arm64 --package programs --bin place_order
//! sam deploy --guided --stack-name place-order --config-env place-order \
//!     --template-file examples/place_order.template.yaml
//! ```

use std::{collections::BTreeMap, num::NonZeroU32};

use serde::Deserialize;
use serde_json::{Value, json};
use sqs_once::{
    Attempt, Consumer, Done, Failure, Handler, Inbox, Settings, SettingsError, Write,
    store::DynamoStore, telemetry,
};

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Order {
    order_id: String,
    customer_id: String,
    /// How many pieces of each product. An order for 0 pieces can't be decoded.
    products: BTreeMap<String, NonZeroU32>,
}

struct PlaceOrder {
    orders: String,
    stock: String,
}

impl PlaceOrder {
    fn read(settings: &mut Settings) -> Result<Self, SettingsError> {
        let orders = settings.required("ORDERS_TABLE_NAME", "table of the orders", str::parse);
        let stock = settings.required("STOCK_TABLE_NAME", "table of the stock", str::parse);
        Ok(Self {
            orders: orders?,
            stock: stock?,
        })
    }
}

impl Handler for PlaceOrder {
    type Message = Order;
    type Output = Done<Value>;

    /// Plans the writes. `sqs_once` makes all of them, once, or none.
    async fn handle(&self, order: Order, _: Attempt) -> Result<Done<Value>, Failure> {
        let (id, customer, products) = (order.order_id, order.customer_id, order.products);
        if products.is_empty() {
            return Err(Failure::permanent("the order has no products"));
        }
        let item = json!({ "orderId": id, "customerId": customer, "products": products });
        // The order stays in its table longer than its record is kept. A message that comes back after its record has expired must
        // not take from the stock again.
        let put = Write::put(&self.orders, item)
            .when("attribute_not_exists(orderId)")
            .label("order");
        let take = products.iter().map(|(product, pieces)| {
            Write::update(&self.stock, "SET quantity = quantity - :pieces")
                .key("product", product)
                .when("quantity >= :pieces") // fails too if there is no such product
                .value(":pieces", pieces)
                .label(format!("stock/{product}"))
        });
        let placed = Done::new(json!({ "status": "placed" }));
        Ok(placed
            .with(put)
            .with_all(take)
            .on_condition_failed(|failed| {
                if failed.get("order").is_some() {
                    return Err(Failure::permanent("an order with this id is there already"));
                }
                let labels = failed.writes().iter().flat_map(|write| &write.label);
                let short: Vec<_> = labels
                    .flat_map(|label| label.strip_prefix("stock/"))
                    .collect();
                // Declining an order is an answer too, so the record says COMPLETED and the message is deleted. If somebody has to
                // look at such an order, return `Err(Failure::permanent("out of stock"))`, and the message goes to the dead-letter
                // queue.
                Ok(Done::new(
                    json!({ "status": "declined", "outOfStock": short }),
                ))
            }))
    }
}

/// Creates the consumer from these settings.
pub async fn consumer(
    mut settings: Settings,
) -> Result<Consumer<Inbox<DynamoStore>, impl Handler<Output = Done<Value>>>, SettingsError> {
    settings.set_default("IDEMPOTENCY_NAMESPACE", "orders");
    // An order that is sent twice has two message ids, but one order id.
    settings.set_default("IDEMPOTENCY_KEY", "body:/orderId");
    let handler = PlaceOrder::read(&mut settings);
    // The read at the start would need a permission that the function's role does not have.
    settings.warm_up(false).inbox(handler).await
}

#[tokio::main]
async fn main() -> Result<(), lambda_runtime::Error> {
    telemetry::init();
    sqs_once::run(consumer(Settings::from_env()).await?).await
}

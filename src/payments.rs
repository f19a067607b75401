//! The business: charge an order.

#[path = "gateway.rs"]
mod gateway;
#[path = "order.rs"]
mod order;

use serde_json::value::RawValue;
use sqs_once::{
    Attempt, Consumer, Failure, Handler, Once, ResultExt as _, Settings, SettingsError,
    store::AnyStore,
};

use gateway::Gateway;
use order::Order;

/// The consumer of orders, in the mode [`Once`]: a charge is an effect outside DynamoDB.
pub(crate) async fn consumer(
    mut settings: Settings,
) -> Result<Consumer<Once<AnyStore>, impl Handler<Output = Box<RawValue>>>, SettingsError> {
    if settings.in_memory() {
        settings.set_default("PAYMENT_GATEWAY_URL", "sandbox");
    }
    let gateway = Gateway::read(&mut settings).await;
    settings
        .once(gateway.map(|gateway| Payments { gateway }))
        .await
}

/// Charges each order through the gateway. Every attempt at an order has the same idempotency key,
/// so the gateway recognises repeated charges.
struct Payments {
    gateway: Gateway,
}

impl Handler for Payments {
    type Message = Order;
    type Output = Box<RawValue>;

    async fn handle(&self, order: Order, attempt: Attempt) -> Result<Box<RawValue>, Failure> {
        order.check().permanent()?;
        let key = attempt.key().header_value();
        self.gateway.charge(&key, &order).await
    }
}

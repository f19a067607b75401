//! Makes the key in code: from a small struct, by JSON pointers, or from an attribute. In a test, `DryRun::run_in` shows which
//! messages are the same operation.

use serde::Deserialize;
use sqs_once::{
    Attempt, Consumer, Failure, Handler, Mode, Settings, SettingsError, handler_fn, telemetry,
};

/// Only the members that name an order, because the consumer decodes this before the claim.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct OrderKey {
    tenant: String,
    order_id: String,
}

#[derive(Deserialize)]
pub(crate) struct Order {
    cents: u64,
}

pub(crate) async fn charge(order: Order, _: Attempt) -> Result<u64, Failure> {
    Ok(order.cents)
}

pub(crate) async fn consumer(
    settings: Settings,
) -> Result<Consumer<impl Mode<u64>, impl Handler<Output = u64>>, SettingsError> {
    let consumer = settings.once(Ok(handler_fn(charge))).await?;
    Ok(consumer.key_by(|key: OrderKey| [key.tenant, key.order_id]))
    // The same key by pointers:   consumer.key("body:/tenant,/orderId".parse()?)
    // The key in an attribute:    consumer.key("attribute:order".parse()?)
}

#[tokio::main]
async fn main() -> Result<(), lambda_runtime::Error> {
    telemetry::init();
    sqs_once::run(consumer(Settings::from_env()).await?).await
}

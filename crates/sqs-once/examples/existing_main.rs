//! A function that already has its own `main`, subscriber and SDK configuration. Only the handler is new, and one line calls it.

use aws_config::BehaviorVersion;
use lambda_runtime::{Error, run, service_fn};
use serde::Deserialize;
use sqs_once::{Attempt, Failure, Settings, handler_fn, telemetry};
use tracing_subscriber::{layer::SubscriberExt as _, util::SubscriberInitExt as _};

#[derive(Deserialize)]
pub(crate) struct Order {
    id: String,
}

pub(crate) async fn charge(order: Order, attempt: Attempt) -> Result<String, Failure> {
    Ok(format!("charged {} as {}", order.id, attempt.call_key()))
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    // Use this in place of your `fmt` layer, or each line appears twice. You can keep other layers.
    tracing_subscriber::registry()
        .with(telemetry::layer())
        .init();
    telemetry::set_panic_hook();
    let config = aws_config::load_defaults(BehaviorVersion::latest()).await;
    let settings = Settings::from_env().sdk_config(config);
    let consumer = &settings.once(Ok(handler_fn(charge))).await?;
    consumer.check()?;
    run(service_fn(|event| consumer.invoke(event))).await
}

//! `tower` layers around each message: a time limit, a span, and your own metric in the batch's log line.

use std::time::Duration;

use lambda_runtime::tower::{ServiceExt as _, layer::layer_fn, service_fn};
use serde::Deserialize;
use sqs_once::{
    Attempt, Call, Consumer, Failure, Handler, HandlerError, HandlerService, handler_fn,
    telemetry::{self, Unit},
};
use tower::timeout::TimeoutLayer;
use tracing::Instrument as _;

#[derive(Deserialize)]
pub(crate) struct Order {
    cents: u32,
}

pub(crate) async fn charge(order: Order, _: Attempt) -> Result<u32, Failure> {
    tracing::info!("charging");
    if order.cents == 0 {
        std::future::pending::<()>().await; // a gateway that doesn't answer
    }
    Ok(order.cents)
}

pub(crate) fn handler() -> impl Handler<Message = Order, Output = u32> {
    let measured = layer_fn(|charge: HandlerService<_>| {
        service_fn(move |call: Call<Order>| {
            let (charge, attempt) = (charge.clone(), call.attempt.clone());
            let span = tracing::info_span!("charge", tenant = attempt.attribute("tenant"));
            async move {
                let cents: u32 = charge.oneshot(call).await?;
                attempt.metric("ChargedCents", Unit::Count, cents);
                Ok::<_, HandlerError>(cents)
            }
            .instrument(span)
        })
    });
    let limit = TimeoutLayer::new(Duration::from_secs(5));
    handler_fn(charge).layer(measured).layer(limit)
}

#[tokio::main]
async fn main() -> Result<(), lambda_runtime::Error> {
    telemetry::init();
    sqs_once::run(Consumer::from_env(handler()).await?).await
}

//! Two kinds of message in one queue, told apart by a message attribute. (If a member of the body tells them apart, use a tagged
//! enum of serde.)

use serde::Deserialize;
use sqs_once::{
    Attempt, Consumer, DeliveryMetadata, Failure, FromMessage, InvalidMessage, handler_fn,
};

#[derive(Deserialize)]
pub(crate) struct Placed {
    order: String,
}

#[derive(Deserialize)]
pub(crate) struct Shipped {
    order: String,
    parcel: String,
}

pub(crate) enum Event {
    Placed(Placed),
    Shipped(Shipped),
}

impl FromMessage for Event {
    fn from_message(body: &str, delivery: &DeliveryMetadata) -> Result<Self, InvalidMessage> {
        match delivery.attribute("eventType") {
            Some("order.placed") => Placed::from_message(body, delivery).map(Self::Placed),
            Some("order.shipped") => Shipped::from_message(body, delivery).map(Self::Shipped),
            _ => Err("the attribute `eventType` is neither order.placed nor order.shipped".into()),
        }
    }
}

pub(crate) async fn tell(event: Event, _: Attempt) -> Result<String, Failure> {
    Ok(match event {
        Event::Placed(Placed { order }) => format!("{order} was placed"),
        Event::Shipped(Shipped { order, parcel }) => format!("{order} is in {parcel}"),
    })
}

#[tokio::main]
async fn main() -> Result<(), lambda_runtime::Error> {
    sqs_once::telemetry::init();
    sqs_once::run(Consumer::from_env(handler_fn(tell)).await?).await
}

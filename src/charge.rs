//! The handler: charges an order.

use serde_json::value::RawValue;
use sqs_once::{Attempt, Failure, Handler, ResultExt as _, Settings, SettingsError};

use crate::{gateway::Gateway, order::Order};

/// Charges an order. All attempts at one order send the same key, so the gateway recognizes a repeated
/// request.
pub(crate) struct Charge(Gateway);

impl Charge {
    pub(crate) fn read(settings: &mut Settings) -> Result<Self, SettingsError> {
        Gateway::read(settings).map(Self)
    }
}

impl Handler for Charge {
    type Message = Order;
    type Output = Box<RawValue>; // the gateway's response, stored with the record

    async fn handle(&self, order: Order, attempt: Attempt) -> Result<Box<RawValue>, Failure> {
        order.check().permanent()?; // to the dead-letter queue
        self.0.charge(&attempt.key().header_value(), &order).await
    }
}

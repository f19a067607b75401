//! The business: charge an order.

use serde_json::value::RawValue;
use sqs_once::{Attempt, Failure, Handler, ResultExt as _};

use crate::{gateway::Gateway, order::Order};

/// Charges each order through the gateway. What came before it is the gateway's to tell: every
/// attempt at an order bears the same idempotency key.
pub(crate) struct Payments {
    gateway: Gateway,
}

impl Payments {
    pub(crate) fn new(gateway: Gateway) -> Self {
        Self { gateway }
    }
}

impl Handler for Payments {
    type Message = Order;
    type Output = Box<RawValue>;

    async fn handle(&self, order: Order, attempt: Attempt) -> Result<Box<RawValue>, Failure> {
        order.check().permanent()?;
        self.gateway.charge(attempt.key().as_str(), &order).await
    }
}

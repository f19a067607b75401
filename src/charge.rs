//! The handler: charges an order.

use std::{sync::Arc, time::Duration};

use serde_json::value::RawValue;
use sqs_once::{
    Attempt, Failure, Handler, LookUp, LookedUp, ResultExt as _, Settings, SettingsError,
};

use crate::{gateway::Gateway, order::Order};

/// Charges an order. All attempts at one order send the same key, so the gateway recognizes a repeated request.
/// If the gateway has no idempotency keys, we look for the charge before we repeat it.
#[derive(Clone)]
pub(crate) struct Charge(Arc<Gateway>);

impl Charge {
    pub(crate) fn read(settings: &mut Settings) -> Result<Self, SettingsError> {
        Ok(Self(Arc::new(Gateway::read(settings)?)))
    }

    /// Returns how long to wait before a lookup, or `None` if the gateway has idempotency keys.
    pub(crate) fn quarantine(&self) -> Option<Duration> {
        self.0.reconcile_after()
    }
}

impl Handler for Charge {
    type Message = Order;
    type Output = Box<RawValue>; // the gateway's response, stored with the record

    async fn handle(&self, order: Order, attempt: Attempt) -> Result<Box<RawValue>, Failure> {
        order.check().permanent_no_effect()?; // to the dead-letter queue
        self.0.charge(&order, &attempt).await
    }
}

impl LookUp<Order, Box<RawValue>> for Charge {
    async fn look_up(
        &self,
        order: &Order,
        attempt: &Attempt,
    ) -> Result<LookedUp<Box<RawValue>>, Failure> {
        self.0.look_up(attempt.key(), order).await
    }
}

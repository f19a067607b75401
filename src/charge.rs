//! The handler: charges an order.

use std::time::Duration;

use serde_json::value::RawValue;
use sqs_once::{
    Attempt, Failure, LookUp, Reconcile, Reconciling, ResultExt as _, Settings, SettingsError,
};

use crate::{gateway::Gateway, order::Order};

/// Charges an order. All attempts at one order send the same key, so the gateway recognizes a repeated
/// request. If it does not, we look for the charge before we repeat it.
pub(crate) struct Charge(Gateway);

impl Charge {
    pub(crate) fn read(settings: &mut Settings) -> Result<Reconciling<Self>, SettingsError> {
        Ok(Reconciling(Self(Gateway::read(settings)?)))
    }
}

impl Reconcile for Charge {
    type Message = Order;
    type Output = Box<RawValue>; // the gateway's response, stored with the record

    async fn handle(&self, order: Order, attempt: Attempt) -> Result<Box<RawValue>, Failure> {
        order.check().permanent_no_effect()?; // to the dead-letter queue
        self.0.charge(&order, &attempt).await
    }

    async fn look_up(
        &self,
        order: &Order,
        attempt: &Attempt,
    ) -> Result<LookUp<Box<RawValue>>, Failure> {
        self.0.look_up(attempt.key(), order).await
    }

    fn reconcile_after(&self) -> Option<Duration> {
        self.0.reconcile_after()
    }
}

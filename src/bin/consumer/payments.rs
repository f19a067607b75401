//! The business: charge an order.

use serde::{Deserialize, Deserializer, de::Error as _};
use serde_json::value::RawValue;
use sqs_once::{Attempt, Failure, Handler};

use crate::gateway::Gateway;

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
        self.gateway.charge(attempt.key().as_str(), &order).await
    }
}

/// A valid order, and its JSON to the letter: what is charged is what was sent, not what a
/// float made of it.
pub(crate) struct Order {
    pub(crate) json: Box<RawValue>,
    pub(crate) payment_token: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Fields {
    order_id: String,
    amount: f64,
    currency: String,
    payment_token: Option<String>,
}

impl<'de> Deserialize<'de> for Order {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let json = Box::<RawValue>::deserialize(deserializer)?;
        let fields: Fields = serde_json::from_str(json.get()).map_err(D::Error::custom)?;
        if fields.order_id.is_empty() {
            return Err(D::Error::custom("orderId is empty"));
        }
        if fields.amount <= 0.0 {
            return Err(D::Error::custom("amount is not more than 0"));
        }
        if fields.currency.len() != 3 || !fields.currency.bytes().all(|c| c.is_ascii_uppercase()) {
            return Err(D::Error::custom("currency is not an ISO 4217 code"));
        }
        Ok(Self {
            json,
            payment_token: fields.payment_token,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_is_passed_on_to_the_letter() {
        let json =
            r#"{"orderId":"o-1", "amount":99999999999999999.99,"currency":"EUR","x":[1 , 2]}"#;
        let order: Order = serde_json::from_str(json).unwrap();
        assert_eq!(order.json.get(), json);
    }

    #[test]
    fn what_is_no_order_is_refused() {
        for json in [
            r#"{"amount":1,"currency":"EUR"}"#,
            r#"{"orderId":"","amount":1,"currency":"EUR"}"#,
            r#"{"orderId":"o-1","amount":0,"currency":"EUR"}"#,
            r#"{"orderId":"o-1","amount":"1","currency":"EUR"}"#,
            r#"{"orderId":"o-1","amount":1,"currency":"euro"}"#,
            "[]",
        ] {
            assert!(serde_json::from_str::<Order>(json).is_err(), "{json}");
        }
    }
}

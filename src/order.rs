//! An order as a message contains it.

use serde::{Deserialize, Deserializer, de::Error as _};
use serde_json::value::RawValue;

/// An order, and its JSON as it was sent. The charge uses that JSON, so that no amount changes because a
/// float is rounded.
pub(crate) struct Order {
    pub(crate) json: Box<RawValue>,
    pub(crate) fields: Fields,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Fields {
    pub(crate) order_id: String,
    pub(crate) amount: f64,
    pub(crate) currency: String,
    pub(crate) payment_token: Option<String>,
}

impl<'de> Deserialize<'de> for Order {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let json = Box::<RawValue>::deserialize(deserializer)?;
        let fields = serde_json::from_str(json.get()).map_err(D::Error::custom)?;
        Ok(Self { json, fields })
    }
}

impl Order {
    /// Rejects orders that no gateway would charge. The errors are logged, so they quote no value.
    pub(crate) fn check(&self) -> Result<(), &'static str> {
        let currency = self.fields.currency.as_bytes();
        if self.fields.order_id.is_empty() {
            Err("the order's orderId is empty")
        } else if self.fields.amount <= 0.0 {
            Err("the order's amount is not more than 0")
        } else if currency.len() != 3 || !currency.iter().all(u8::is_ascii_uppercase) {
            Err("the order's currency is not three capital letters (ISO 4217)")
        } else {
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_is_forwarded_unchanged() {
        let json =
            r#"{"orderId":"o-1", "amount":99999999999999999.99,"currency":"EUR","x":[1 , 2]}"#;
        let order: Order = serde_json::from_str(json).unwrap();
        assert_eq!(order.json.get(), json);
    }

    #[test]
    fn malformed_order_is_refused() {
        for json in [
            r#"{"amount":1,"currency":"EUR"}"#,
            r#"{"orderId":"o-1","amount":"1","currency":"EUR"}"#,
            "[]",
        ] {
            assert!(serde_json::from_str::<Order>(json).is_err(), "{json}");
        }
    }

    #[test]
    fn invalid_order_error_names_the_field() {
        for (json, word) in [
            (r#"{"orderId":"","amount":1,"currency":"EUR"}"#, "orderId"),
            (r#"{"orderId":"o-1","amount":0,"currency":"EUR"}"#, "amount"),
            (
                r#"{"orderId":"o-1","amount":1,"currency":"euro"}"#,
                "currency",
            ),
        ] {
            let order: Order = serde_json::from_str(json).unwrap();
            assert!(order.check().unwrap_err().contains(word), "{json}");
        }
    }
}

//! An order, as a message contains it and as the gateway gets it.

use serde::{Deserialize, Deserializer, Serialize, de::Error as _};
use serde_json::value::RawValue;

/// The fields of an order that the gateway gets.
pub(crate) const SENT: [&str; 4] = ["orderId", "amount", "currency", "paymentToken"];

/// An order. Its JSON is what the gateway gets: only these fields, in this order and in one spelling. A gateway refuses a
/// known call key with another body, although it may have charged the first one.
#[derive(Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Order {
    pub(crate) order_id: String,
    /// The exact amount, as [`plain`] spells it. A double could round it. `None` if it is too long.
    #[serde(deserialize_with = "amount")]
    pub(crate) amount: Option<Box<RawValue>>,
    pub(crate) currency: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) payment_token: Option<String>,
}

impl Order {
    /// Rejects orders that no gateway would charge. Errors quote no values, because they are logged.
    pub(crate) fn check(&self) -> Result<(), &'static str> {
        let currency = self.currency.as_bytes();
        let Some(amount) = self.amount.as_deref().map(RawValue::get) else {
            return Err("the order's amount has more than 40 digits");
        };
        if self.order_id.is_empty() {
            Err("the order's orderId is empty")
        } else if amount == "0" || amount.starts_with('-') {
            Err("the order's amount is not more than 0")
        } else if currency.len() != 3 || !currency.iter().all(u8::is_ascii_uppercase) {
            Err("the order's currency is not three capital letters (ISO 4217)")
        } else {
            Ok(())
        }
    }
}

fn amount<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Box<RawValue>>, D::Error> {
    let json = Box::<RawValue>::deserialize(deserializer)?;
    if !json
        .get()
        .starts_with(|first: char| first == '-' || first.is_ascii_digit())
    {
        return Err(D::Error::custom("the amount is not a number"));
    }
    let spelled = plain(json.get()).map(RawValue::from_string);
    spelled.transpose().map_err(D::Error::custom)
}

/// Returns the one spelling of a decimal number's exact value, without exponent or superfluous zeros: `99.90` and `9.99e1`
/// are both `99.9`. Returns `None` if the spelling has more than 40 digits, or if `number` isn't a decimal number.
pub(crate) fn plain(number: &str) -> Option<String> {
    const MOST_DIGITS: usize = 40;
    let (sign, number) = match number.strip_prefix('-') {
        Some(number) => ("-", number),
        None => ("", number),
    };
    let (mantissa, exponent) = number.split_once(['e', 'E']).unwrap_or((number, "0"));
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let written = [whole, fraction].concat();
    if written.is_empty() || !written.bytes().all(|digit| digit.is_ascii_digit()) {
        return None;
    }
    let counted = written.trim_start_matches('0');
    let digits = counted.trim_end_matches('0');
    if digits.is_empty() {
        return Some("0".to_owned());
    }
    // The point comes after this many of `digits`. If negative, it comes first, followed by that many zeros and then `digits`.
    let point = whole
        .len()
        .checked_signed_diff(written.len() - counted.len())?;
    let point = point.checked_add(exponent.parse().ok()?)?;
    if point.unsigned_abs() > MOST_DIGITS {
        return None;
    }
    let (whole, fraction) = if point > 0 {
        let point = point.unsigned_abs();
        let fraction = digits.get(point..).unwrap_or_default();
        let whole = &digits[..digits.len() - fraction.len()];
        (format!("{whole:0<point$}"), fraction.to_owned())
    } else {
        let places = point.unsigned_abs() + digits.len();
        ("0".to_owned(), format!("{digits:0>places$}"))
    };
    let point = if fraction.is_empty() { "" } else { "." };
    let is_short = whole.len() + fraction.len() <= MOST_DIGITS;
    is_short.then(|| format!("{sign}{whole}{point}{fraction}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(order: &str) -> String {
        let order: Order = serde_json::from_str(order).unwrap();
        serde_json::to_string(&order).unwrap()
    }

    #[test]
    fn order_is_sent_in_one_order_and_spelling() {
        let plain = r#"{"orderId":"o-1","amount":99.9,"currency":"EUR"}"#;
        for same in [
            r#"{"orderId":"o-1", "amount":99.90,"currency":"EUR","x":[1 , 2]}"#,
            r#"{"sentAt":7,"currency":"EUR","amount":9.99e1,"orderId":"o-\u0031"}"#,
            r#"{"paymentToken":null,"orderId":"o-1","amount":0.0999E+3,"currency":"EUR"}"#,
        ] {
            assert_eq!(sent(same), plain, "{same}");
        }
        let card = r#"{"paymentToken":"tok_visa","orderId":"o-1","amount":1,"currency":"EUR"}"#;
        let with_card =
            r#"{"orderId":"o-1","amount":1,"currency":"EUR","paymentToken":"tok_visa"}"#;
        assert_eq!(sent(card), with_card);
        for field in SENT {
            assert!(with_card.contains(&format!("\"{field}\":")), "{field}");
        }
    }

    #[test]
    fn amount_is_spelled_in_one_way() {
        let forty = "7".repeat(40);
        for (number, spelled) in [
            ("0", "0"),
            ("-0.00", "0"),
            ("0e99999999999999999999", "0"),
            ("1", "1"),
            ("1.0", "1"),
            ("100", "100"),
            ("1e2", "100"),
            ("10000e-2", "100"),
            ("0.10", "0.1"),
            ("1e-3", "0.001"),
            ("-12.50", "-12.5"),
            ("1234.5e-2", "12.345"),
            ("0.00125e4", "12.5"),
            ("99999999999999999.99", "99999999999999999.99"),
            ("1e39", &format!("1{}", "0".repeat(39))),
            ("1e-39", &format!("0.{}1", "0".repeat(38))),
            (&forty, &forty),
        ] {
            assert_eq!(plain(number).as_deref(), Some(spelled), "{number}");
        }
    }

    #[test]
    fn amount_over_forty_digits_has_no_spelling() {
        let digits = "7".repeat(100_000);
        for number in [
            "1e40",
            "1e-40",
            "1e999999",
            "1e99999999999999999999",
            "1e9223372036854775807",
            "0.1e-9223372036854775808",
            &digits,
            &digits[..41],
            &format!("1.{}", &digits[..40]),
            &format!("1e-{digits}"),
            "",
            "-",
            ".",
            "1e",
            "+1",
            "1,5",
            "NaN",
        ] {
            assert_eq!(plain(number), None, "{number:.50}");
        }
    }

    #[test]
    fn malformed_order_is_refused() {
        for json in [
            r#"{"amount":1,"currency":"EUR"}"#,
            r#"{"orderId":"o-1","amount":"1","currency":"EUR"}"#,
            r#"{"orderId":"o-1","amount":null,"currency":"EUR"}"#,
            r#"{"orderId":"o-1","amount":1,"amount":2,"currency":"EUR"}"#,
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
                r#"{"orderId":"o-1","amount":-1,"currency":"EUR"}"#,
                "not more than 0",
            ),
            (
                r#"{"orderId":"o-1","amount":1e40,"currency":"EUR"}"#,
                "40 digits",
            ),
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

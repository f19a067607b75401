//! Looks up an order's charges, at a gateway without idempotency keys.

use std::{collections::HashMap, time::SystemTime};

use reqwest::{Method, Request, StatusCode, Url};
use serde_json::value::RawValue;
use sqs_once::{Failure, LookedUp, protocol::Key};

use crate::{
    gateway::{Http, retry_after},
    order::{Order, plain},
};

impl Http {
    /// Looks up the charges of `order`: `GET {PAYMENT_GATEWAY_URL}/charges?orderId={orderId}`, whose response
    /// is a JSON array.
    ///
    /// # Errors
    ///
    /// Returns an error for anything but a clear yes or no: no response, a status other than 200, a body that is not an
    /// array, or a charge that does not match the order. A 404 is not clear, because a wrong path also gives one.
    pub(crate) async fn look_up(
        &self,
        key: &Key,
        order: &Order,
    ) -> Result<LookedUp<Box<RawValue>>, Failure> {
        let url = charges_of(self.charges.clone(), &order.order_id);
        let request = Request::new(Method::GET, url);
        let mut response = self.connections.send(request, true).await?;
        if response.status() != StatusCode::OK {
            let status = response.status();
            let unknown = Failure::retryable(format!(
                "the payment gateway answered {status} to GET /charges: check that it lists charges there"
            ));
            return Err(match retry_after(response.headers(), SystemTime::now()) {
                Some(wait) => unknown.retry_after(wait),
                None => unknown,
            });
        }
        let mut body = Vec::new();
        while let Some(chunk) = response
            .chunk()
            .await
            // We remove the URL, because errors are logged, and the URL has the order's id.
            .map_err(reqwest::Error::without_url)?
        {
            if body.len() + chunk.len() > crate::gateway::MAX_BODY {
                return Err("the list of charges is over 1 MiB".into());
            }
            body.extend_from_slice(&chunk);
        }
        found(key, order, &body)
    }
}

fn charges_of(mut charges: Url, order_id: &str) -> Url {
    charges.query_pairs_mut().append_pair("orderId", order_id);
    // The query is encoded like a form, with `+` for a space. Only some servers decode that.
    let query = charges.query().map(|query| query.replace('+', "%20"));
    charges.set_query(query.as_deref());
    charges
}

/// Interprets the list of charges. Errors quote no values, because they are logged.
fn found(key: &Key, order: &Order, body: &[u8]) -> Result<LookedUp<Box<RawValue>>, Failure> {
    let charges: Vec<Box<RawValue>> = serde_json::from_slice(body)
        .map_err(|_| "the payment gateway's list of charges is not a JSON array")?;
    if !charges.iter().all(|charge| is_of_order(charge, order)) {
        return Err("the payment gateway lists a charge with a different order, amount or currency: check that it filters by orderId, and check the order by hand".into());
    }
    if charges.len() > 1 {
        tracing::error!(%key, charges = charges.len(), "this order was charged more than once");
    }
    Ok(match charges.into_iter().next() {
        Some(charge) => LookedUp::Found(charge),
        None => LookedUp::NotFound,
    })
}

/// Returns whether a charge has the order's id, amount and currency, as far as it names them.
fn is_of_order(charge: &RawValue, order: &Order) -> bool {
    let Ok(fields) = serde_json::from_str::<HashMap<String, &RawValue>>(charge.get()) else {
        // A bare id has no fields to compare.
        return charge.get() != "null";
    };
    let text = |named: &RawValue| serde_json::from_str::<String>(named.get()).ok();
    let names = |name: &str, wanted: &str| {
        let named = fields.get(name);
        named.is_none_or(|named| text(named).as_deref() == Some(wanted))
    };
    let has_amount = |named: &&RawValue| {
        let spelled = text(named).map_or_else(|| plain(named.get()), |text| plain(&text));
        spelled.is_some() && spelled.as_deref() == order.amount.as_deref().map(RawValue::get)
    };
    fields.get("amount").is_none_or(has_amount)
        && names("orderId", &order.order_id)
        && names("currency", &order.currency)
}

#[cfg(test)]
mod tests {
    use sqs_once::protocol::Namespace;

    use super::*;

    const ORDER: &str = r#"{"orderId":"o-1","amount":99.99,"currency":"EUR"}"#;

    fn found_in(body: &str) -> Result<Option<String>, String> {
        let key = Key::new(&Namespace::new("payments").unwrap(), ["o-1"]).unwrap();
        let order: Order = serde_json::from_str(ORDER).unwrap();
        match found(&key, &order, body.as_bytes()) {
            Ok(LookedUp::Found(charge)) => Ok(Some(charge.get().to_owned())),
            Ok(_) => Ok(None),
            Err(unknown) => Err(unknown.to_string()),
        }
    }

    #[test]
    fn order_id_is_percent_encoded() {
        let charges = Url::parse("https://gateway.example/v1/charges").unwrap();
        for (id, query) in [
            ("o-1", "orderId=o-1"),
            ("a/b", "orderId=a%2Fb"),
            ("a&b=c", "orderId=a%26b%3Dc"),
            ("a#b", "orderId=a%23b"),
            ("100%", "orderId=100%25"),
            ("a b+c", "orderId=a%20b%2Bc"),
            ("é", "orderId=%C3%A9"),
        ] {
            let url = charges_of(charges.clone(), id);
            assert_eq!(url.query(), Some(query), "{id}");
            assert_eq!(url.path(), "/v1/charges");
        }
    }

    #[test]
    fn first_matching_charge_is_the_output() {
        let charge = r#"{"id":"ch_1", "amount":99.99,"currency":"EUR"}"#;
        assert_eq!(found_in(&format!("[{charge}]")), Ok(Some(charge.into())));
        let twice = format!(r#"[{charge},{{"id":"ch_2","amount":"99.99"}}]"#);
        assert_eq!(found_in(&twice), Ok(Some(charge.into())));
        assert_eq!(found_in("[\"ch_1\"]"), Ok(Some("\"ch_1\"".into())));
        for amount in ["99.990", "9999e-2", "\"99.9900\""] {
            let spelled = format!(r#"{{"amount":{amount}}}"#);
            let found = found_in(&format!("[{spelled}]"));
            assert_eq!(found, Ok(Some(spelled)), "{amount}");
        }
    }

    #[test]
    fn empty_list_means_no_charge() {
        assert_eq!(found_in(" [ ] "), Ok(None));
    }

    #[test]
    fn other_answers_leave_the_charge_unknown() {
        for body in [
            "",
            "{}",
            "null",
            "[",
            "not found",
            r#"{"charges":[]}"#,
            r#"[{"id":"ch_1","amount":9.99,"currency":"EUR"}]"#,
            // As doubles, they would be equal.
            r#"[{"id":"ch_1","amount":99.99000000000000001,"currency":"EUR"}]"#,
            r#"[{"id":"ch_1","amount":99.99,"currency":"USD"}]"#,
            r#"[{"id":"ch_1","amount":null,"currency":"EUR"}]"#,
            r#"[{"id":"ch_1","orderId":"o-2","amount":99.99,"currency":"EUR"}]"#,
            "[null]",
            r#"[{"id":"ch_1","amount":99.99},{"id":"ch_2","amount":1}]"#,
        ] {
            let unknown = found_in(body).unwrap_err();
            assert!(!unknown.contains("ch_1"), "{unknown}");
        }
    }
}

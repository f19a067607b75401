//! The payment gateway over HTTP, and the sandbox.

use std::{error::Error, time::Duration};

use reqwest::{Client, Response, StatusCode, Url, header::CONTENT_TYPE, redirect::Policy};
use serde_json::{json, value::RawValue};
use sqs_once::{Failure, protocol::Fingerprint};

use crate::payments::Order;

/// The most of an answer that is kept.
const MAX_ANSWER_BYTES: usize = 1024 * 1024;

/// The longest `Idempotency-Key` that gateways commonly take.
const MAX_HEADER_BYTES: usize = 255;

/// The payment token that the sandbox declines.
const DECLINED: &str = "tok_chargeDeclined";

/// Where to charge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum GatewayUrl {
    /// Nowhere: charge nothing, and answer like a gateway.
    Sandbox,
    /// `{url}/charges`.
    Http(Url),
}

pub(crate) enum Gateway {
    Sandbox,
    Http {
        client: Client,
        charges: Url,
        timeout: Duration,
    },
}

impl Gateway {
    pub(crate) fn new(
        url: GatewayUrl,
        timeout: Duration,
    ) -> Result<Self, Box<dyn Error + Send + Sync>> {
        let GatewayUrl::Http(mut charges) = url else {
            return Ok(Self::Sandbox);
        };
        if let Ok(mut path) = charges.path_segments_mut() {
            path.pop_if_empty().push("charges");
        }
        // The AWS SDK brings this provider; it is the process's only one.
        let _already_set = rustls::crypto::ring::default_provider().install_default();
        let client = Client::builder()
            .user_agent(concat!("sqs-once/", env!("CARGO_PKG_VERSION")))
            // A redirected POST could charge somewhere else.
            .redirect(Policy::none())
            .build()?;
        Ok(Self::Http {
            client,
            charges,
            timeout,
        })
    }

    /// Charges `order`. The gateway knows a repetition by `key`.
    pub(crate) async fn charge(&self, key: &str, order: &Order) -> Result<Box<RawValue>, Failure> {
        let key = header_value(key);
        match self {
            Self::Sandbox => sandbox(&key, order),
            Self::Http {
                client,
                charges,
                timeout,
            } => {
                let request = client
                    .post(charges.clone())
                    .header("Idempotency-Key", key)
                    .header(CONTENT_TYPE, "application/json")
                    // Not cut to the time left: what the deadline cuts off must count as cut
                    // off, so that the next attempt is told, not as failed.
                    .timeout(*timeout)
                    .body(order.json.get().to_owned());
                // The URL may hold credentials, and errors are logged.
                let answer = request.send().await.map_err(reqwest::Error::without_url)?;
                match verdict(answer.status()) {
                    Verdict::Charged => Ok(read(answer).await),
                    Verdict::Retryable(why) => Err(Failure::retryable(why)),
                    Verdict::Permanent(why) => Err(Failure::permanent(why)),
                }
            }
        }
    }
}

/// A key that a header can carry, as it is or hashed.
fn header_value(key: &str) -> String {
    if key.len() <= MAX_HEADER_BYTES && key.bytes().all(|c| c.is_ascii_graphic()) {
        key.to_owned()
    } else {
        Fingerprint::of(key.as_bytes()).to_string()
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    Charged,
    Retryable(String),
    Permanent(String),
}

fn verdict(status: StatusCode) -> Verdict {
    let answered = format!("the payment gateway answered {status}");
    match status.as_u16() {
        200..=299 => Verdict::Charged,
        408 | 409 | 425 | 429 | 500..=599 => Verdict::Retryable(answered),
        400..=499 => Verdict::Permanent(answered),
        _ => Verdict::Retryable(format!(
            "{answered}, which is no answer to a charge; check PAYMENT_GATEWAY_URL (redirects are not followed)"
        )),
    }
}

/// The body of an answer that says: charged. Whatever it is, that stands.
async fn read(mut answer: Response) -> Box<RawValue> {
    let mut body = Vec::new();
    let note = loop {
        match answer.chunk().await {
            Ok(Some(chunk)) if body.len() + chunk.len() > MAX_ANSWER_BYTES => {
                break "the gateway's answer was over 1 MiB and is not kept";
            }
            Ok(Some(chunk)) => body.extend_from_slice(&chunk),
            Ok(None) => return to_json(&body),
            Err(_) => break "the gateway's answer broke off and is not kept",
        }
    };
    raw(&json!({ "charged": true, "note": note }))
}

/// JSON as it is, other text as a JSON string, nothing as null.
fn to_json(body: &[u8]) -> Box<RawValue> {
    if body.is_empty() {
        return RawValue::NULL.to_owned();
    }
    serde_json::from_slice(body).unwrap_or_else(|_| raw(&String::from_utf8_lossy(body).into()))
}

fn raw(value: &serde_json::Value) -> Box<RawValue> {
    // Writing a Value can't fail: its keys are strings.
    serde_json::value::to_raw_value(value).unwrap_or_else(|_| RawValue::NULL.to_owned())
}

fn sandbox(key: &str, order: &Order) -> Result<Box<RawValue>, Failure> {
    if order.fields.payment_token.as_deref() == Some(DECLINED) {
        return Err(Failure::permanent("the sandbox declined the card"));
    }
    Ok(raw(
        &json!({ "id": format!("sandbox:{key}"), "status": "succeeded" }),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_are_read_as_the_readme_says() {
        let of = |status: u16| verdict(StatusCode::from_u16(status).unwrap());
        for status in [200, 201, 204] {
            assert_eq!(of(status), Verdict::Charged);
        }
        for status in [301, 307, 408, 409, 425, 429, 500, 503] {
            assert!(matches!(of(status), Verdict::Retryable(_)), "{status}");
        }
        for status in [400, 401, 402, 404, 422] {
            assert!(matches!(of(status), Verdict::Permanent(_)), "{status}");
        }
    }

    #[test]
    fn a_key_that_no_header_can_carry_is_hashed() {
        assert_eq!(header_value("payments#o-1"), "payments#o-1");
        for key in [
            "payments#ö",
            "payments#a b",
            "payments#\n",
            &"x".repeat(256),
        ] {
            assert_eq!(
                header_value(key),
                Fingerprint::of(key.as_bytes()).to_string()
            );
        }
    }

    #[test]
    fn an_answer_that_is_not_json_is_kept_as_text() {
        assert_eq!(to_json(b"{\"id\": 1}").get(), "{\"id\": 1}");
        assert_eq!(to_json(b"ok").get(), "\"ok\"");
        assert_eq!(to_json(b"").get(), "null");
    }
}

//! The payment gateway over HTTP, and the sandbox, which charges nothing.

#[cfg(test)]
#[path = "gateway_tests.rs"]
mod tests;

use reqwest::{
    Client, Response, StatusCode, Url,
    header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderValue},
    redirect::Policy,
};
use serde_json::{json, value::RawValue};
use sqs_once::{Failure, Settings, SettingsError};

use crate::order::Order;

/// Largest response body that is stored.
const MAX_BODY: usize = 1024 * 1024;

/// The payment token that the sandbox declines.
const DECLINED: &str = "tok_chargeDeclined";

pub(crate) enum Gateway {
    Sandbox,
    Http { client: Client, charges: Url },
}

impl Gateway {
    /// Reads the variables `PAYMENT_GATEWAY_URL`, `_API_KEY` and `_TIMEOUT`.
    pub(crate) fn read(settings: &mut Settings) -> Result<Self, SettingsError> {
        if settings.in_memory() {
            settings.set_default("PAYMENT_GATEWAY_URL", "sandbox");
        }
        let timeout = settings.duration("PAYMENT_GATEWAY_TIMEOUT", "5s");
        let headers = settings.optional("PAYMENT_GATEWAY_API_KEY", "", authorization);
        let meaning = "URL of the payment gateway, or `sandbox` to charge nothing";
        let charges = settings.required("PAYMENT_GATEWAY_URL", meaning, charges_url);
        let (timeout, headers, charges) = (timeout?, headers?, charges?);
        // If the deadline cut a charge off, we would not know whether the card was charged.
        let millis = format!("{}ms", timeout.as_millis());
        settings.set_default("CONSUMER_MIN_TIME_TO_START", millis);
        let Some(charges) = charges else {
            return Ok(Self::Sandbox);
        };
        // The provider of cryptography that the AWS SDK uses.
        let _already_set = rustls::crypto::ring::default_provider().install_default();
        let client = Client::builder()
            .user_agent(concat!("sqs-once/", env!("CARGO_PKG_VERSION")))
            .default_headers(headers)
            // We do not shorten this to the time left, because a charge that the deadline ends must be
            // recorded as such.
            .timeout(timeout)
            // Shorter, so that a slow connection becomes a failed connection, which had no effect.
            .connect_timeout(timeout / 2)
            // A redirected POST could charge somewhere else.
            .redirect(Policy::none())
            .build()
            .map_err(|error| SettingsError::new(error.to_string()))?;
        Ok(Self::Http { client, charges })
    }

    /// Charges `order`. The gateway recognizes a repeated request by `key`.
    pub(crate) async fn charge(&self, key: &str, order: &Order) -> Result<Box<RawValue>, Failure> {
        let Self::Http { client, charges } = self else {
            return sandbox(key, order);
        };
        let request = client
            .post(charges.clone())
            .header("Idempotency-Key", key)
            .header(CONTENT_TYPE, "application/json")
            .body(order.json.get().to_owned());
        let response = request.send().await.map_err(unanswered)?;
        if response.status().is_success() {
            Ok(receipt(response).await)
        } else {
            Err(refused(response.status()))
        }
    }
}

/// Returns the header with the API key, if there is one. reqwest never prints a value that is marked as
/// sensitive.
fn authorization(api_key: &str) -> Result<HeaderMap, &'static str> {
    if api_key.is_empty() {
        return Ok(HeaderMap::new());
    }
    let mut value = HeaderValue::try_from(format!("Bearer {api_key}"))
        .map_err(|_| "has a character that no header can have, such as a line break")?;
    value.set_sensitive(true);
    Ok(HeaderMap::from_iter([(AUTHORIZATION, value)]))
}

/// Returns the URL with `/charges` added. `None` for the sandbox. Errors do not quote `text`, which may
/// contain a password.
fn charges_url(text: &str) -> Result<Option<Url>, &'static str> {
    if text == "sandbox" {
        return Ok(None);
    }
    let mut url = Url::parse(text).map_err(|_| "must be `sandbox` or an https:// URL")?;
    let local = matches!(url.host_str(), Some("localhost" | "127.0.0.1" | "[::1]"));
    if url.scheme() != "https" && !(url.scheme() == "http" && local) {
        return Err("must be `sandbox` or an https:// URL (http:// only to this machine)");
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err("must have no user and no password: set PAYMENT_GATEWAY_API_KEY");
    }
    if url.query().is_some() || url.fragment().is_some() {
        return Err("must have no query and no fragment: `/charges` is added to it");
    }
    if let Ok(mut path) = url.path_segments_mut() {
        path.pop_if_empty().push("charges");
    }
    Ok(Some(url))
}

/// Returns the failure of a request without a response. If there was no connection, nothing was sent.
fn unanswered(error: reqwest::Error) -> Failure {
    let error = error.without_url(); // errors are logged
    if error.is_connect() {
        Failure::no_effect(error)
    } else {
        Failure::retryable(error)
    }
}

/// Returns the failure for a status other than 2xx. A 4xx concerns the order and is permanent, unless it
/// concerns the API key, the URL, or the moment.
fn refused(status: StatusCode) -> Failure {
    let answered = format!("the payment gateway answered {status}");
    match status.as_u16() {
        401 | 403 => Failure::retryable(answered + ": check PAYMENT_GATEWAY_API_KEY"),
        300..=399 | 404 | 405 => Failure::retryable(answered + ": check PAYMENT_GATEWAY_URL"),
        407 | 408 | 409 | 425 | 429 => Failure::retryable(answered),
        400..=499 => Failure::permanent(answered),
        _ => Failure::retryable(answered),
    }
}

/// Returns the body of a 2xx response: JSON unchanged, any other text as a JSON string. The card has been
/// charged, so we do not fail if the body cannot be read.
async fn receipt(mut response: Response) -> Box<RawValue> {
    let mut body = Vec::new();
    loop {
        match response.chunk().await {
            Ok(None) => {
                let text = |_| json_of(&json!(String::from_utf8_lossy(&body)));
                return serde_json::from_slice(&body).unwrap_or_else(text);
            }
            Ok(Some(chunk)) if body.len() + chunk.len() <= MAX_BODY => {
                body.extend_from_slice(&chunk);
            }
            Ok(Some(_)) => {
                return json_of(&json!(
                    "charged; the response was over 1 MiB and is not kept"
                ));
            }
            Err(_) => return json_of(&json!("charged; the response broke off and is not kept")),
        }
    }
}

fn json_of(value: &serde_json::Value) -> Box<RawValue> {
    // Writing a `Value` can't fail: its keys are strings.
    serde_json::value::to_raw_value(value).unwrap_or_else(|_| RawValue::NULL.to_owned())
}

fn sandbox(key: &str, order: &Order) -> Result<Box<RawValue>, Failure> {
    if order.fields.payment_token.as_deref() == Some(DECLINED) {
        return Err(Failure::permanent("the sandbox declined the card"));
    }
    Ok(json_of(
        &json!({ "id": format!("sandbox:{key}"), "status": "succeeded" }),
    ))
}

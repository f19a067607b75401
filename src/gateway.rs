//! The payment gateway over HTTP, and the sandbox, which never charges.

#[path = "connections.rs"]
mod connections;
#[cfg(test)]
#[path = "gateway_tests.rs"]
mod tests;

use std::time::{Duration, SystemTime};

use connections::Connections;
use reqwest::{
    Method, Request, Response, Url,
    header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER},
};
use serde_json::{json, value::RawValue};
use sqs_once::{
    Attempt, Failure, LookedUp, Settings, SettingsError, protocol::Key, sqs::KeySource,
};

use crate::order::{Order, SENT};

/// Largest response body that we store.
pub(crate) const MAX_BODY: usize = 1024 * 1024;

const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
const TRACE_ID: HeaderName = HeaderName::from_static("x-amzn-trace-id");
/// Marks a response that the gateway stored for a key and now sends again.
const REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");

/// The payment token that the sandbox declines.
const DECLINED: &str = "tok_chargeDeclined";

/// With any other key, a charge of the order need not be the charge of this operation.
const KEY_OF_ORDER: &str = "body:/orderId";

pub(crate) enum Gateway {
    Sandbox,
    Http(Box<Http>),
}

/// A payment gateway over HTTP.
pub(crate) struct Http {
    pub(crate) connections: Connections,
    pub(crate) charges: Url,
    /// How long an attempt may still charge after its lease has ended. `None` if the gateway has idempotency keys.
    reconcile_after: Option<Duration>,
}

impl Gateway {
    /// Reads the variables `PAYMENT_GATEWAY_URL`, `_API_KEY`, `_TIMEOUT`, `_RECONCILE` and
    /// `_RECONCILE_AFTER`.
    pub(crate) fn read(settings: &mut Settings) -> Result<Self, SettingsError> {
        settings.trim("PAYMENT_GATEWAY_");
        warn_of_fields_left_out(settings);
        if settings.in_memory() {
            settings.set_default("PAYMENT_GATEWAY_URL", "sandbox");
        }
        let timeout = settings.duration("PAYMENT_GATEWAY_TIMEOUT", "5s");
        let headers = settings.optional("PAYMENT_GATEWAY_API_KEY", "", authorization);
        let meaning = "URL of the payment gateway, or `sandbox` to charge nothing";
        let charges = settings.required("PAYMENT_GATEWAY_URL", meaning, charges_url);
        let reconcile_after = reconcile_after(settings, timeout.as_ref().ok().copied());
        let (timeout, headers, charges) = (timeout?, headers?, charges?);
        let reconcile_after = reconcile_after?;
        // If the deadline cut off a charge, we would not know whether the card was charged.
        let requests = if reconcile_after.is_some() { 2 } else { 1 };
        let millis = format!("{}ms", (timeout * requests).as_millis());
        settings.set_default("CONSUMER_MIN_TIME_TO_START", millis);
        let Some(charges) = charges else {
            return Ok(Self::Sandbox);
        };
        Ok(Self::Http(Box::new(Http {
            connections: Connections::new(headers, timeout)?,
            charges,
            reconcile_after,
        })))
    }

    /// Returns how long an attempt may still charge after its lease has ended, if the gateway has no idempotency keys.
    pub(crate) fn reconcile_after(&self) -> Option<Duration> {
        match self {
            Self::Sandbox => None,
            Self::Http(http) => http.reconcile_after,
        }
    }

    /// Finds out whether an earlier attempt charged `order`.
    pub(crate) async fn look_up(
        &self,
        key: &Key,
        order: &Order,
    ) -> Result<LookedUp<Box<RawValue>>, Failure> {
        match self {
            Self::Sandbox => Ok(LookedUp::NotFound),
            Self::Http(http) => http.look_up(key, order).await,
        }
    }

    /// Charges `order`. The gateway recognizes a repeated request by the call key, and can continue the producer's trace.
    pub(crate) async fn charge(
        &self,
        order: &Order,
        attempt: &Attempt,
    ) -> Result<Box<RawValue>, Failure> {
        let key = attempt.call_key();
        let Self::Http(http) = self else {
            return sandbox(&key, order);
        };
        let mut request = Request::new(Method::POST, http.charges.clone());
        *request.body_mut() = Some(serde_json::to_vec(order)?.into());
        let headers = request.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        // With a key, it is safe to send a charge twice.
        let has_keys = http.reconcile_after.is_none();
        if has_keys {
            headers.insert(IDEMPOTENCY_KEY, HeaderValue::from_str(&key)?);
        }
        // An order must not fail because its producer sent a trace that doesn't fit into a header.
        let trace = attempt.delivery().trace_header.as_deref();
        if let Some(Ok(trace)) = trace.map(HeaderValue::from_str) {
            headers.insert(TRACE_ID, trace);
        }
        let response = http.connections.send(request, has_keys).await?;
        if response.status().is_success() {
            Ok(receipt(response).await)
        } else {
            Err(refused(&response, has_keys))
        }
    }
}

/// Warns if a second message with the same key could change what the gateway gets under the same call key.
fn warn_of_fields_left_out(settings: &mut Settings) {
    let key = settings.value("IDEMPOTENCY_KEY").unwrap_or_default();
    let fingerprint = settings.value("IDEMPOTENCY_FINGERPRINT");
    let left_out = left_out(&key, fingerprint.as_deref().unwrap_or("body"));
    if !left_out.is_empty() {
        let fields = left_out.join(", ");
        tracing::warn!(
            fields,
            "IDEMPOTENCY_FINGERPRINT leaves out fields that are sent under the call key. If a second message changes one, the \
             gateway refuses the key, and the message fails although its order may have been charged. Name them all"
        );
    }
}

/// Returns the fields that we send to the gateway but that neither the key nor the fingerprint covers.
fn left_out(key: &str, fingerprint: &str) -> Vec<&'static str> {
    let fixes = |source: &str, field: &str| {
        let pointers = source.strip_prefix("body:").unwrap_or_default();
        let mut names = pointers.split(',').map(str::trim);
        names.any(|name| name.strip_prefix('/') == Some(field))
    };
    let is_free = |field: &&str| !fixes(key, field) && !fixes(fingerprint, field);
    let all = if fingerprint.trim() == "body" {
        &[][..]
    } else {
        &SENT
    };
    all.iter().copied().filter(is_free).collect()
}

/// Reads whether the gateway lacks idempotency keys, and if so, how long it may take until a charge arrives.
fn reconcile_after(
    settings: &mut Settings,
    timeout: Option<Duration>,
) -> Result<Option<Duration>, SettingsError> {
    let on = settings.optional("PAYMENT_GATEWAY_RECONCILE", "off", |text| match text {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err("must be `on` or `off`"),
    });
    let after = settings.duration("PAYMENT_GATEWAY_RECONCILE_AFTER", "30s");
    if on != Ok(true) {
        return on.and(after).map(|_| None);
    }
    let key = settings.optional("IDEMPOTENCY_KEY", "message-id", |key| {
        if key.parse::<KeySource>() == KEY_OF_ORDER.parse() {
            return Ok(());
        }
        Err(
            "must be `body:/orderId` with PAYMENT_GATEWAY_RECONCILE=on: under a different key, a charge of the order may not be the charge of this message",
        )
    });
    let after = after?;
    if timeout.is_some_and(|timeout| after <= timeout) {
        return Err(settings.error(
            "PAYMENT_GATEWAY_RECONCILE_AFTER: must be longer than PAYMENT_GATEWAY_TIMEOUT, since a charge may arrive until then".into(),
        ));
    }
    key.map(|()| Some(after))
}

/// Returns the header with the API key, if there is one. The header is marked as sensitive, so reqwest never prints it.
fn authorization(api_key: &str) -> Result<HeaderMap, &'static str> {
    if api_key.is_empty() {
        return Ok(HeaderMap::new());
    }
    let mut value = HeaderValue::try_from(format!("Bearer {api_key}"))
        .map_err(|_| "has a character that no header can have, such as a line break")?;
    value.set_sensitive(true);
    Ok(HeaderMap::from_iter([(AUTHORIZATION, value)]))
}

/// Returns the URL with `/charges` added, or `None` for the sandbox. Errors do not quote `text`, which may contain a password.
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

/// Returns the failure for a status other than 2xx. A 4xx is permanent, because the order is at fault. The exceptions are
/// statuses about the API key, the URL or timing. `has_keys` says whether the gateway got the call key.
fn refused(response: &Response, has_keys: bool) -> Failure {
    let (status, headers) = (response.status(), response.headers());
    let mut answered = format!("the payment gateway answered {status}");
    // We keep the key anyway, because the stored error may hide a charge.
    let replayed = headers.get(REPLAYED).map(HeaderValue::as_bytes);
    if replayed.is_some_and(|value| value.eq_ignore_ascii_case(b"true")) {
        answered += ", replayed: the answer that it stored for this key";
    }
    let failure = match status.as_u16() {
        401 | 403 => Failure::retryable(answered + ": check PAYMENT_GATEWAY_API_KEY"),
        300..=399 | 404 | 405 => Failure::retryable(answered + ": check PAYMENT_GATEWAY_URL"),
        407 | 408 | 409 | 425 => Failure::retryable(answered),
        // The rate limit belongs to the API key, which all orders share.
        429 => Failure::retryable(answered).for_all(),
        // The gateway's answer for this call key is final: it did not charge, and will not.
        402 if has_keys => Failure::declined(answered),
        400..=499 => Failure::permanent(answered),
        _ => Failure::retryable(answered),
    };
    match retry_after(headers, SystemTime::now()) {
        Some(wait) => failure.retry_after(wait),
        None => failure,
    }
}

/// Returns the wait that `Retry-After` asks for, in seconds or as a date (RFC 9110, 10.2.3). Returns `None` if the header
/// is neither, or in the past.
pub(crate) fn retry_after(headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
    let value = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    if !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit()) {
        // A huge value is fine, because the consumer caps it at its longest backoff.
        return Some(Duration::from_secs(value.parse().unwrap_or(u64::MAX)));
    }
    httpdate::parse_http_date(value)
        .ok()?
        .duration_since(now)
        .ok()
}

/// Returns the body of a 2xx response: JSON unchanged, any other text as a JSON string. The card has been
/// charged, so we don't fail if the body can't be read.
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
    if order.payment_token.as_deref() == Some(DECLINED) {
        return Err(Failure::declined("the sandbox declined the card"));
    }
    Ok(json_of(
        &json!({ "id": format!("sandbox:{key}"), "status": "succeeded" }),
    ))
}

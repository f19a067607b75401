//! A Lambda behind an HTTP or REST API of API Gateway that honours an `Idempotency-Key` header
//! (IETF draft "The Idempotency-Key HTTP Header Field"). The same request gets the same response.
//! While the first request is in progress, the response is 409; for a key with another payload, 422.
//!
//! A key belongs to its caller, method and path, so no caller gets the result of another. The caller
//! is the principal of the API's authorizer. A request without a principal gets 500, unless
//! `ANONYMOUS=on` lets all callers share results.

use std::time::Duration;

use lambda_http::{
    Body, Error, Request, RequestExt, Response, http::StatusCode, request::RequestContext, run,
    service_fn,
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sqs_once::{
    Attempt, Deadline, Failure, Once, Operation, Outcome, Stored, aws,
    protocol::{Fingerprint, Key, Namespace, Timestamp},
    store::{DynamoStore, Store},
    telemetry,
};

#[derive(Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
struct Payment {
    order_id: String,
    cents: u64,
}

/// The stored result: the whole response.
#[derive(Deserialize, Serialize)]
struct Reply {
    status: u16,
    body: Value,
}

/// The payment gateway that charges.
#[derive(Clone)]
pub struct Gateway {
    client: reqwest::Client,
    charges: String,
}

impl Gateway {
    /// The gateway at `url`. Charges go to `{url}/charges`.
    pub fn new(url: &str) -> Result<Self, Error> {
        // The AWS SDK's provider of cryptography.
        let _already_set = rustls::crypto::ring::default_provider().install_default();
        Ok(Self {
            // After a redirect, the charge could be made elsewhere, or the POST become a GET.
            client: reqwest::Client::builder()
                .redirect(reqwest::redirect::Policy::none())
                .build()?,
            charges: format!("{url}/charges"),
        })
    }

    /// Charges a payment. The gateway recognizes a repetition by the call key.
    async fn pay(self, payment: Payment, attempt: Attempt) -> Result<Reply, Failure> {
        if payment.cents == 0 {
            return Err(Failure::permanent_no_effect(
                "the payment is not more than 0",
            ));
        }
        let key = attempt.call_key();
        let request = self.client.post(&self.charges);
        let request = request
            .header("Idempotency-Key", &key)
            .header("Content-Type", "application/json")
            .body(serde_json::to_vec(&payment)?)
            .timeout(Duration::from_secs(10));
        let response = match request.send().await.map_err(reqwest::Error::without_url) {
            Err(error) if error.is_connect() => return Err(Failure::no_effect(error)),
            response => response?,
        };
        match response.status().as_u16() {
            200..=299 => Ok(Reply {
                status: 201,
                body: json!({ "payment": key }),
            }),
            402 => Err(Failure::declined("the gateway declined the payment")),
            422 => Err(Failure::permanent("the gateway refused the payment")),
            status => Err(Failure::retryable(format!("the gateway answered {status}"))),
        }
    }
}

/// Answers one request. `anonymous` serves callers without a principal, as one caller.
pub async fn answer<S: Store>(
    once: &Once<S>,
    gateway: &Gateway,
    anonymous: bool,
    request: Request,
) -> Result<Response<Body>, Error> {
    let caller = match principal(&request) {
        Some(caller) => caller,
        None if anonymous => ("anonymous", "anonymous"),
        None => {
            tracing::error!(
                "the request has no principal, so callers could read each other's results: attach \
                 an authorizer to the API, or set ANONYMOUS=on"
            );
            return problem(
                StatusCode::INTERNAL_SERVER_ERROR,
                "this API has no authorizer",
            );
        }
    };
    let header = request.headers().get("Idempotency-Key");
    // A structured header is a string in double quotes. A value without quotes is accepted too.
    let Some(header) = header
        .and_then(|key| key.to_str().ok())
        .map(|key| key.trim_matches('"'))
    else {
        return problem(
            StatusCode::BAD_REQUEST,
            "this operation needs an Idempotency-Key header",
        );
    };
    let (method, path) = (request.method().as_str(), request.uri().path());
    let parts = [caller.0, caller.1, method, path, header];
    let Ok(key) = Key::new(&Namespace::new("payments-api")?, parts) else {
        return problem(StatusCode::BAD_REQUEST, "the Idempotency-Key is empty");
    };
    let Some((payment, fingerprint)) = read(request.body()) else {
        return problem(StatusCode::BAD_REQUEST, "the body is no payment");
    };
    let context = request.lambda_context_ref().cloned().unwrap_or_default();
    let ends = Timestamp::from_millis(context.deadline);
    let (budget, reserve) = (Duration::from_secs(29), Duration::from_millis(500));
    let operation = Operation::new(
        key,
        Some(fingerprint),
        context.request_id,
        Deadline::of_invocation(Timestamp::now(), ends, budget, reserve),
    );
    let gateway = gateway.clone();
    let outcome = once
        .run(operation, |attempt| gateway.pay(payment, attempt))
        .await;
    let detail = match &outcome {
        Outcome::Completed(result) | Outcome::Duplicate(result) | Outcome::Reconciled(result) => {
            return done(once.stored(result.clone())).await;
        }
        Outcome::Conflict { .. } => "a request with this key is in progress",
        Outcome::KeyReused => "this key was used for another payload",
        Outcome::PermanentFailure(why) | Outcome::FailedBefore(why) => why,
        _ => {
            tracing::warn!(outcome = outcome.name(), detail = %outcome, "request failed");
            "send the request again, with the same key"
        }
    };
    problem(StatusCode::from_u16(outcome.http_status())?, detail)
}

/// The caller that API Gateway authenticated: how, and its id.
///
/// The ARN of an assumed role ends with the name of its session. A caller that tries again under
/// another session name is another caller. The Lambda authorizer of an HTTP API must put a
/// `principalId` into its context; that of a REST API always does.
fn principal(request: &Request) -> Option<(&'static str, &str)> {
    let context = request.request_context_ref()?;
    let authorizer = context.authorizer();
    let jwt = authorizer.and_then(|it| it.jwt.as_ref());
    let iam = authorizer.and_then(|it| it.iam.as_ref());
    // Of a Lambda authorizer, or of the Cognito authorizer of a REST API.
    let fields = authorizer.map(|it| &it.fields);
    let identity = match context {
        RequestContext::ApiGatewayV1(rest) => Some(&rest.identity),
        _ => None,
    };
    let sub = jwt.and_then(|it| it.claims.get("sub"));
    let known = [
        ("jwt", sub.map(String::as_str)),
        (
            "jwt",
            fields.and_then(|it| it.get("claims")?.get("sub")?.as_str()),
        ),
        ("iam", iam.and_then(|it| it.user_arn.as_deref())),
        ("iam", identity.and_then(|it| it.user_arn.as_deref())),
        (
            "lambda",
            fields.and_then(|it| it.get("principalId")?.as_str()),
        ),
        ("api-key", identity.and_then(|it| it.api_key_id.as_deref())),
    ];
    let mut known = known.into_iter();
    known.find_map(|(how, id)| Some((how, id.filter(|id| !id.is_empty())?)))
}

/// The payment, and the fingerprint of its canonical JSON (RFC 8785): the order of members and
/// white space do not count.
fn read(body: &[u8]) -> Option<(Payment, Fingerprint)> {
    let json: Value = serde_json::from_slice(body).ok()?;
    let canonical = serde_json_canonicalizer::to_vec(&json).ok()?;
    let payment = serde_json::from_slice(&canonical).ok()?;
    Some((payment, Fingerprint::of(&canonical)))
}

async fn done(stored: Stored<Reply>) -> Result<Response<Body>, Error> {
    let Reply { status, body } = match stored.output().await {
        Ok(Some(reply)) => reply,
        Ok(None) => return problem(StatusCode::OK, "done, but the answer was too large to keep"),
        Err(failure) => {
            tracing::warn!(detail = %failure, "the stored answer cannot be read");
            let status = StatusCode::SERVICE_UNAVAILABLE;
            return problem(status, "done, but the answer cannot be read now");
        }
    };
    respond(
        StatusCode::from_u16(status)?,
        "application/json",
        body.to_string(),
    )
}

/// RFC 9457, "Problem Details for HTTP APIs".
fn problem(status: StatusCode, detail: &str) -> Result<Response<Body>, Error> {
    let problem = json!({ "status": status.as_u16(), "detail": detail });
    respond(status, "application/problem+json", problem.to_string())
}

fn respond(status: StatusCode, content_type: &str, body: String) -> Result<Response<Body>, Error> {
    let response = Response::builder()
        .status(status)
        .header("Content-Type", content_type);
    Ok(response.body(Body::Text(body))?)
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    telemetry::init();
    let client = aws_sdk_dynamodb::Client::new(&aws::config().await);
    let store = DynamoStore::new(client, std::env::var("IDEMPOTENCY_TABLE_NAME")?);
    let anonymous = std::env::var("ANONYMOUS").is_ok_and(|value| value == "on");
    if anonymous {
        tracing::warn!("ANONYMOUS=on: callers without a principal share their results");
    }
    // An HTTP client repeats a failed request with the same key and a new request id. It gets the
    // stored failure again.
    let once = Once::new(store).after_failure(sqs_once::protocol::AfterFailure::Replay);
    let gateway = Gateway::new(&std::env::var("PAYMENT_GATEWAY_URL")?)?;
    let (once, gateway) = (&once, &gateway);
    run(service_fn(|request| {
        answer(once, gateway, anonymous, request)
    }))
    .await
}

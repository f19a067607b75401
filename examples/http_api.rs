//! A Lambda behind an HTTP API that honours an `Idempotency-Key` header (IETF draft "The
//! Idempotency-Key HTTP Header Field"): the same answer to the same request, 409 while the first
//! is being processed, 422 where the key comes back with another payload.

use std::time::Duration;

use lambda_http::{Body, Error, Request, RequestExt, Response, http::StatusCode, run, service_fn};
use serde::Deserialize;
use serde_json::{Value, json};
use sqs_once::{
    Attempt, Deadline, Delivery, Failure, Once, Operation, Outcome, aws,
    protocol::{Fingerprint, Key, Namespace, StoredResult, Timestamp},
    store::{DynamoStore, Store},
    telemetry,
};

#[derive(Deserialize)]
struct Payment {
    amount: f64,
}

/// The business. Hand `attempt.key()` on to whoever charges.
async fn pay(payment: Payment, attempt: Attempt) -> Result<Value, Failure> {
    if payment.amount <= 0.0 {
        return Err(Failure::permanent("the amount is not more than 0"));
    }
    Ok(json!({ "payment": attempt.message_id() }))
}

/// Answers one request.
pub async fn answer<S: Store>(once: &Once<S>, request: Request) -> Result<Response<Body>, Error> {
    let header = request.headers().get("Idempotency-Key");
    // A structured header: a string in double quotes. Without them it is taken as it is.
    let Some(key) = header
        .and_then(|key| key.to_str().ok())
        .map(|key| key.trim_matches('"'))
    else {
        return problem(
            StatusCode::BAD_REQUEST,
            "this operation wants an Idempotency-Key header",
        );
    };
    let Ok(key) = Key::new(&Namespace::new("payments-api")?, [key]) else {
        return problem(StatusCode::BAD_REQUEST, "the Idempotency-Key is empty");
    };
    let Ok(payment) = serde_json::from_slice::<Payment>(request.body()) else {
        return problem(StatusCode::BAD_REQUEST, "the body is no payment");
    };
    let context = request.lambda_context_ref().cloned().unwrap_or_default();
    let ends = Timestamp::from_millis(context.deadline);
    let (budget, reserve) = (Duration::from_secs(29), Duration::from_millis(500));
    let operation = Operation::new(
        key,
        Some(Fingerprint::of(request.body())),
        Delivery::new(context.request_id),
        Deadline::of_invocation(Timestamp::now(), ends, budget, reserve),
    );
    match once.run(operation, |attempt| pay(payment, attempt)).await {
        Outcome::Done(result) | Outcome::Duplicate(result) => done(result),
        Outcome::Conflict { .. } => problem(
            StatusCode::CONFLICT,
            "a request with this key is being processed",
        ),
        Outcome::KeyReused => problem(
            StatusCode::UNPROCESSABLE_ENTITY,
            "this key was used for another payload",
        ),
        Outcome::PermanentFailure(why) | Outcome::FailedBefore(why) => {
            problem(StatusCode::UNPROCESSABLE_ENTITY, &why)
        }
        other => {
            tracing::warn!(outcome = other.name(), detail = %other, "not answered");
            problem(
                StatusCode::SERVICE_UNAVAILABLE,
                "try again, with the same key",
            )
        }
    }
}

fn done(result: StoredResult) -> Result<Response<Body>, Error> {
    let StoredResult::Json(json) = result else {
        return problem(StatusCode::OK, "done, but the answer was too large to keep");
    };
    reply(StatusCode::OK, "application/json", json)
}

/// RFC 9457, "Problem Details for HTTP APIs".
fn problem(status: StatusCode, detail: &str) -> Result<Response<Body>, Error> {
    let problem = json!({ "status": status.as_u16(), "detail": detail });
    reply(status, "application/problem+json", problem.to_string())
}

fn reply(status: StatusCode, content_type: &str, body: String) -> Result<Response<Body>, Error> {
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
    // An HTTP client that was told of a failure tries again with the same key, and with a request
    // id of its own: let it have the same answer.
    let once = Once::new(store).after_failure(sqs_once::protocol::AfterFailure::Replay);
    let once = &once;
    run(service_fn(async move |request| answer(once, request).await)).await
}

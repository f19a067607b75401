//! One function once, behind any trigger: here an HTTP API that honours an `Idempotency-Key` header (IETF draft "The
//! Idempotency-Key HTTP Header Field"), as a layer around every route. The same request gets the same response. While the
//! first request is in progress, the response is 409; for a key with another payload, 422.
//!
//! A key belongs to its caller, method and path, so no caller gets the response of another. The caller is the principal of
//! API Gateway's authorizer; a request without one gets 500.

use std::time::Duration;

use axum::{
    Extension, Json, Router,
    body::{Body, to_bytes},
    extract::{Request, State},
    http::{StatusCode, header::CONTENT_TYPE},
    middleware::{Next, from_fn_with_state},
    response::{IntoResponse, Response},
    routing::any,
};
use lambda_http::{Context, Error, request::RequestContext};
use reqwest::redirect::Policy;
use serde::{Deserialize, Serialize};
use serde_json::json;
use sqs_once::{
    Attempt, Failure, Once, aws,
    protocol::{Key, Namespace, Timestamp},
    store::{DynamoStore, Store},
    telemetry,
};

const MAX_BODY: usize = 128 * 1024;

/// The recorded response.
#[derive(Deserialize, Serialize)]
struct Reply {
    status: u16,
    content_type: Option<String>,
    body: String,
}

/// Answers a request once under its key. The routes below see the [`Attempt`] as an extension.
async fn answer_once<S: Store>(
    State(once): State<Once<S>>,
    request: Request,
    next: Next,
) -> Response {
    let (mut parts, body) = request.into_parts();
    let context = parts.extensions.get::<RequestContext>();
    let Some((kind, caller)) = context.and_then(principal) else {
        tracing::error!("the request has no principal: attach an authorizer to the API");
        return problem(500, "this API has no authorizer");
    };
    let header = parts.headers.get("Idempotency-Key");
    // A structured header is a string in double quotes. A value without quotes is accepted too.
    let header = header.and_then(|key| key.to_str().ok());
    let header = header.unwrap_or_default().trim_matches('"');
    let (method, path) = (parts.method.as_str(), parts.uri.path());
    let key = Namespace::new("payments-api");
    let key = key.and_then(|api| Key::new(&api, [kind, caller, method, path, header]));
    let (Ok(key), Ok(body)) = (key, to_bytes(body, MAX_BODY).await) else {
        return problem(
            400,
            "this operation needs an Idempotency-Key, and a body of at most 128 KB",
        );
    };
    let payload = [parts.uri.query().unwrap_or_default().as_bytes(), &body].concat();
    let deadline = parts
        .extensions
        .get()
        .map(|invocation: &Context| invocation.deadline);
    let call = |attempt: Attempt| async {
        parts.extensions.insert(attempt);
        reply(next.run(Request::from_parts(parts, Body::from(body))).await).await
    };
    let call = once.wrap(key, call).payload(&payload);
    match call
        .until(Timestamp::from_millis(deadline.unwrap_or_default()))
        .await
    {
        Ok(reply) => respond(reply),
        Err(error) => {
            tracing::warn!(%error, "a request has no recorded response");
            problem(
                error.http_status(),
                "not done, or not known: see the status",
            )
        }
    }
}

/// Returns the response that is recorded, and a failure for one that another attempt may change.
async fn reply(response: Response) -> Result<Reply, Failure> {
    let (parts, body) = response.into_parts();
    let status = parts.status.as_u16();
    if !parts.status.is_success() && !matches!(status, 400 | 404 | 409 | 422) {
        return Err(Failure::retryable(format!("the route answered {status}")));
    }
    let content_type = parts.headers.get(CONTENT_TYPE);
    let content_type = content_type
        .and_then(|of| of.to_str().ok())
        .map(str::to_owned);
    let body = to_bytes(body, MAX_BODY)
        .await
        .map(|body| String::from_utf8(body.to_vec()));
    // The effect has happened, so this must not fail.
    let body = match body {
        Ok(Ok(body)) => body,
        _ => String::new(),
    };
    Ok(Reply {
        status,
        content_type,
        body,
    })
}

/// The caller that API Gateway authenticated: how, and its id.
///
/// The ARN of an assumed role ends with the name of its session. A caller that tries again under
/// another session name is another caller. The Lambda authorizer of an HTTP API must put a
/// `principalId` into its context; that of a REST API always does.
fn principal(context: &RequestContext) -> Option<(&'static str, &str)> {
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
    let of_claims = fields.and_then(|it| it.get("claims")?.get("sub")?.as_str());
    let known = [
        ("jwt", sub.map(String::as_str).or(of_claims)),
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

/// RFC 9457, "Problem Details for HTTP APIs".
fn problem(status: u16, detail: &str) -> Response {
    respond(Reply {
        status,
        content_type: Some("application/problem+json".to_owned()),
        body: json!({ "status": status, "detail": detail }).to_string(),
    })
}

fn respond(reply: Reply) -> Response {
    let status = StatusCode::from_u16(reply.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let content_type = reply.content_type.unwrap_or_default();
    (status, [(CONTENT_TYPE, content_type)], reply.body).into_response()
}

/// The payment gateway.
#[derive(Clone)]
struct Gateway {
    client: reqwest::Client,
    charges: String,
}

#[derive(Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
struct Payment {
    order_id: String,
    cents: u64,
}

/// A route, which knows nothing of keys: it charges a payment under the attempt's call key.
async fn pay(
    State(gateway): State<Gateway>,
    Extension(attempt): Extension<Attempt>,
    Json(payment): Json<Payment>,
) -> Response {
    let key = attempt.call_key();
    let request = gateway
        .client
        .post(&gateway.charges)
        .header("Idempotency-Key", &key);
    let request = request.header(CONTENT_TYPE, "application/json");
    let answer = request.body(json!(payment).to_string()).send().await;
    match answer.map(|answer| answer.status().as_u16()) {
        Ok(200..=299) => (StatusCode::CREATED, Json(json!({ "payment": key }))).into_response(),
        Ok(402 | 422) => problem(422, "the gateway declined the payment"),
        _ => problem(503, "the gateway is not available"),
    }
}

/// The API: charges go to the gateway at `gateway`.
pub(crate) fn api<S: Store + Clone>(once: Once<S>, gateway: &str) -> Result<Router, Error> {
    // The AWS SDK's provider of cryptography.
    let _already_set = rustls::crypto::ring::default_provider().install_default();
    // After a redirect, the charge could be made elsewhere, or the POST become a GET.
    let client = reqwest::Client::builder().redirect(Policy::none());
    let gateway = Gateway {
        client: client.timeout(Duration::from_secs(10)).build()?,
        charges: format!("{gateway}/charges"),
    };
    Ok(Router::new()
        .route("/{resource}", any(pay))
        .with_state(gateway)
        .layer(from_fn_with_state(once, answer_once)))
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    telemetry::init();
    let client = aws_sdk_dynamodb::Client::new(&aws::config().await);
    let store = DynamoStore::new(client, std::env::var("IDEMPOTENCY_TABLE_NAME")?);
    let gateway = std::env::var("PAYMENT_GATEWAY_URL")?;
    lambda_http::run(api(Once::new(store), &gateway)?).await
}

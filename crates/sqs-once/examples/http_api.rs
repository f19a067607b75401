//! One function once, behind any trigger: here an HTTP API that honours an `Idempotency-Key` header (IETF draft "The
//! Idempotency-Key HTTP Header Field"), as a layer around every route. The same request gets the same response. While the
//! first request is in progress, the response is 409; for a key with another payload, 422.
//!
//! A key belongs to its caller, method and path, so no caller gets the response of another. The caller is the principal of
//! API Gateway's authorizer; a request without one gets 500.

use axum::{
    Extension, Json, Router,
    body::{Body, to_bytes},
    extract::{Request, State},
    http::{StatusCode, header::CONTENT_TYPE},
    middleware::{Next, from_fn_with_state},
    response::{IntoResponse, Response},
    routing::any,
};
use lambda_http::request::RequestContext;
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
        return problem(500, "this API has no authorizer");
    };
    let header = parts.headers.get("Idempotency-Key");
    // A structured header is a string in double quotes. A value without quotes is accepted too.
    let header = header.and_then(|key| key.to_str().ok());
    let header = header.unwrap_or_default().trim_matches('"');
    let of_request = [
        kind,
        caller,
        parts.method.as_str(),
        parts.uri.path(),
        header,
    ];
    let key = Namespace::new("payments-api").and_then(|api| Key::new(&api, of_request));
    let (Ok(key), Ok(body)) = (key, to_bytes(body, MAX_BODY).await) else {
        return problem(
            400,
            "this operation needs an Idempotency-Key, and a body of at most 128 KB",
        );
    };
    let invocation = parts
        .extensions
        .get::<lambda_http::Context>()
        .cloned()
        .unwrap_or_default();
    let payload = body.clone();
    let call = |attempt: Attempt| async {
        parts.extensions.insert(attempt);
        let response = next.run(Request::from_parts(parts, Body::from(body))).await;
        let (parts, body) = response.into_parts();
        if parts.status.is_server_error() {
            return Err(Failure::retryable(format!(
                "the route answered {}",
                parts.status
            )));
        }
        let content_type = parts
            .headers
            .get(CONTENT_TYPE)
            .and_then(|of| of.to_str().ok());
        Ok(Reply {
            status: parts.status.as_u16(),
            content_type: content_type.map(str::to_owned),
            body: String::from_utf8(to_bytes(body, MAX_BODY).await?.to_vec())?,
        })
    };
    let call = once
        .wrap(key, call)
        .payload(&payload)
        .request_id(invocation.request_id);
    match call
        .until(Timestamp::from_millis(invocation.deadline))
        .run()
        .await
    {
        Ok(reply) => respond(reply),
        Err(error) => problem(error.http_status(), &error.to_string()),
    }
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

#[derive(Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
struct Payment {
    order_id: String,
    cents: u64,
}

/// A route, which knows nothing of keys: it charges a payment under the attempt's call key.
async fn pay(
    State(charges): State<String>,
    Extension(attempt): Extension<Attempt>,
    Json(payment): Json<Payment>,
) -> Response {
    // The AWS SDK's provider of cryptography.
    let _already_set = rustls::crypto::ring::default_provider().install_default();
    let key = attempt.call_key();
    let request = reqwest::Client::new().post(charges);
    let request = request
        .header("Idempotency-Key", &key)
        .header(CONTENT_TYPE, "application/json");
    let answer = request.body(json!(payment).to_string()).send().await;
    match answer.map(|answer| answer.status().as_u16()) {
        Ok(200..=299) => (StatusCode::CREATED, Json(json!({ "payment": key }))).into_response(),
        Ok(402 | 422) => problem(422, "the gateway declined the payment"),
        _ => problem(503, "the gateway is not available"),
    }
}

/// The API: charges go to the gateway at `gateway`.
pub(crate) fn api<S: Store + Clone>(once: Once<S>, gateway: &str) -> Router {
    Router::new()
        .route("/{resource}", any(pay))
        .with_state(format!("{gateway}/charges"))
        .layer(from_fn_with_state(once, answer_once))
}

#[tokio::main]
async fn main() -> Result<(), lambda_http::Error> {
    telemetry::init();
    let client = aws_sdk_dynamodb::Client::new(&aws::config().await);
    let store = DynamoStore::new(client, std::env::var("IDEMPOTENCY_TABLE_NAME")?);
    lambda_http::run(api(
        Once::new(store),
        &std::env::var("PAYMENT_GATEWAY_URL")?,
    ))
    .await
}

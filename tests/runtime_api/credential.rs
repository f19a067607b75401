//! The gateway's credential: read before the first invocation, and again after a 401.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use axum::{
    Router,
    extract::State,
    http::{HeaderMap, StatusCode},
    response::{IntoResponse, Response},
};
use serde_json::{Value, json};
use support::{
    event::failed,
    gateway::Reply,
    runtime_api::{Exit, Lambda, consumer, of_message},
    stage::{Stage, TIME, outcome, outcomes},
};

use crate::orders;

const ARN: &str = "PAYMENT_GATEWAY_CREDENTIAL_ARN";
const SECRET: &str = "arn:aws:secretsmanager:eu-central-1:123456789012:secret:gateway-AbCdEf";

/// Secrets Manager: the n-th read answers with the value `Bearer s3cr3t-n`.
async fn secrets_manager() -> (Arc<AtomicUsize>, String) {
    let reads = Arc::new(AtomicUsize::new(0));
    let app = Router::new().fallback(rotated).with_state(reads.clone());
    (reads, format!("http://{}", support::serve(app).await))
}

async fn rotated(State(reads): State<Arc<AtomicUsize>>, headers: HeaderMap) -> String {
    assert_eq!(headers["x-amz-target"], "secretsmanager.GetSecretValue");
    let n = reads.fetch_add(1, Ordering::SeqCst) + 1;
    json!({"ARN": SECRET, "SecretString": format!("Bearer s3cr3t-{n}")}).to_string()
}

async fn access_denied() -> Response {
    let error = json!({"__type": "AccessDeniedException", "Message": "not authorized"});
    (StatusCode::BAD_REQUEST, error.to_string()).into_response()
}

/// Starts the consumer, which must end before it asks for an invocation.
async fn failed_start(endpoint: &str) -> Exit {
    let stage = Stage::set().await;
    let settings = [
        (ARN, SECRET),
        ("AWS_ENDPOINT_URL_SECRETS_MANAGER", endpoint),
    ];
    let lambda = Lambda::spawn(&consumer(), stage.env(&settings)).await;
    let exit = lambda.exit().await;
    assert!(!exit.status.success());
    exit
}

#[tokio::test]
async fn denied_credential_fails_the_start() {
    let app = Router::new().fallback(access_denied);
    let exit = failed_start(&format!("http://{}", support::serve(app).await)).await;
    let output = exit.output.concat();
    for part in [
        ARN,
        "AccessDeniedException",
        "secretsmanager:GetSecretValue",
    ] {
        assert!(output.contains(part), "{part}: {exit:#?}");
    }
}

#[tokio::test]
async fn unreachable_credential_fails_the_start() {
    let exit = failed_start("http://127.0.0.1:9").await;
    let output = exit.output.concat();
    for part in [ARN, "could not connect"] {
        assert!(output.contains(part), "{part}: {exit:#?}");
    }
}

#[tokio::test]
async fn rotated_credential_charges_in_the_same_attempt() {
    let stage = Stage::set().await;
    let (reads, endpoint) = secrets_manager().await;
    let settings = [
        (ARN, SECRET),
        ("AWS_ENDPOINT_URL_SECRETS_MANAGER", &endpoint),
        ("PAYMENT_GATEWAY_TIMEOUT", "1s"),
        ("RUST_LOG", "debug"),
    ];
    let lambda = stage.consumer(&settings).await;
    assert_eq!(reads.load(Ordering::SeqCst), 1, "before the first message");

    stage.gateway.script("o-1", [Reply::Status(401)]);
    let response = lambda.invoke(orders(1..=1), TIME).await.response();
    assert_eq!(failed(&response), [""; 0]);
    stage.gateway.script("o-2", [401, 401].map(Reply::Status));
    let response = lambda.invoke(orders(2..=2), TIME).await.response();
    assert_eq!(failed(&response), ["m-2"]);

    let sent = |order| {
        let calls = stage.gateway.calls_for(order).into_iter();
        Vec::from_iter(calls.map(|call| (call.key, call.authorization.unwrap())))
    };
    let value = |key: &str, n| (Some(support::stage::id(key)), format!("Bearer s3cr3t-{n}"));
    assert_eq!(sent("o-1"), [value("m-1", 1), value("m-1", 2)]);
    assert_eq!(sent("o-2"), [value("m-2", 2), value("m-2", 3)]);
    let logged = outcomes(&lambda, 2).await;
    assert_eq!(logged, [outcome::COMPLETED, outcome::RETRYABLE]);
    let output = lambda.kill().await.output.concat();
    assert!(output.contains("DEBUG") && !output.contains("s3cr3t"));
}

#[tokio::test]
async fn credential_needs_time_for_a_second_request() {
    let stage = Stage::set().await;
    let (_, endpoint) = secrets_manager().await;
    let settings = [
        (ARN, SECRET),
        ("AWS_ENDPOINT_URL_SECRETS_MANAGER", &endpoint),
        ("PAYMENT_GATEWAY_TIMEOUT", "1s"),
    ];
    // 5 s: twice the timeout, and 3 s for the read.
    let warns = |line: &Value| line["min_time_to_start_ms"] == 5000.0;
    for (settings, warnings) in [(&settings[..], 1), (&settings[2..], 0)] {
        let lambda = stage.consumer(settings).await;
        let time = Duration::from_secs(4);
        lambda.invoke(orders(1..=1), time).await.response();
        lambda.logged(1, of_message).await;
        assert_eq!(lambda.logged(warnings, warns).await.len(), warnings);
    }
}

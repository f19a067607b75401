//! A relay checks its targets at the start.

use std::{future::pending, path::Path};

use aws_config::retry::RetryConfig;
use axum::{
    Json, Router,
    http::{HeaderMap, StatusCode},
    response::{IntoResponse, Response},
};
use serde_json::json;
use sqs_once::{Settings, SettingsError};
use sqs_once_outbox::Relay;
use support::{
    PATIENCE,
    runtime_api::{Lambda, says},
};
use tokio::time::timeout;

/// SQS, SNS and EventBridge. A resource is missing, invalid, denied or silent if its name says so.
async fn services() -> String {
    let app = Router::new().fallback(answer);
    format!("http://{}", support::serve(app).await)
}

async fn answer(headers: HeaderMap, body: String) -> Response {
    let target = headers.get("x-amz-target");
    let target = target.map_or("", |target| target.to_str().unwrap());
    let missing = match target {
        "AmazonSQS.GetQueueAttributes" => "com.amazonaws.sqs#QueueDoesNotExist",
        "AWSEvents.DescribeEventBus" => "ResourceNotFoundException",
        _ => "NotFound",
    };
    let error = if body.contains("silent") {
        return pending().await;
    } else if body.contains("missing") {
        missing
    } else if body.contains("invalid") {
        "InvalidParameter"
    } else if body.contains("denied") {
        "AccessDeniedException"
    } else {
        return if target.is_empty() {
            "<GetTopicAttributesResponse><GetTopicAttributesResult/></GetTopicAttributesResponse>"
                .into_response()
        } else {
            Json(json!({})).into_response()
        };
    };
    let error = if target.is_empty() {
        format!("<ErrorResponse><Error><Code>{error}</Code></Error></ErrorResponse>")
    } else {
        json!({ "__type": error }).to_string()
    };
    (StatusCode::BAD_REQUEST, error).into_response()
}

fn queue(name: &str) -> String {
    format!("https://sqs.example/123456789012/{name}")
}

fn topic(name: &str) -> String {
    format!("arn:aws:sns:eu-central-1:123456789012:{name}")
}

fn bus(name: &str) -> String {
    format!("arn:aws:events:eu-central-1:123456789012:event-bus/{name}")
}

fn names(targets: &[String]) -> String {
    let pair = |(n, target)| format!("event-{n}={target}");
    let pairs: Vec<_> = targets.iter().enumerate().map(pair).collect();
    pairs.join(",")
}

async fn start(targets: &[String], dead_letters: &str) -> Result<Relay, SettingsError> {
    let config = support::sdk_config(&services().await).to_builder();
    let settings = Settings::from_vars([
        ("AWS_LAMBDA_FUNCTION_NAME", "relay"),
        ("OUTBOX_TARGETS", &*names(targets)),
        ("OUTBOX_DEAD_LETTER_QUEUE_URL", &*queue(dead_letters)),
        ("CONSUMER_METRICS", "off"),
    ]);
    let config = config.retry_config(RetryConfig::disabled()).build();
    Relay::from_settings(settings.sdk_config(config)).await
}

#[tokio::test]
async fn existing_targets_of_each_kind_are_accepted() {
    start(&[queue("a"), topic("b"), bus("c")], "d")
        .await
        .unwrap();
}

#[tokio::test]
async fn missing_target_of_each_kind_fails_the_start() {
    for of_kind in [queue, topic, bus] {
        let error = start(&[of_kind("a"), of_kind("missing")], "d").await;
        let error = error.unwrap_err().to_string();
        assert!(error.contains(&of_kind("missing")), "{error}");
        assert!(!error.contains(&of_kind("a")), "{error}");
    }
}

/// SNS answers so for a topic of a different Region. It would refuse each event with the same code.
#[tokio::test]
async fn topic_of_other_region_fails_the_start() {
    let error = start(&[topic("invalid")], "d").await.unwrap_err();
    assert!(error.to_string().contains(&topic("invalid")), "{error}");
}

/// Services may answer so to an account that may send to the target, and not ask for it.
#[tokio::test]
async fn missing_target_of_other_account_starts() {
    for of_kind in [queue, topic, bus] {
        let target = of_kind("missing").replace("123456789012", "210987654321");
        start(&[target], "d").await.unwrap();
    }
}

#[tokio::test]
async fn every_missing_target_is_named() {
    let missing = [bus("missing-1"), topic("missing-2")];
    let error = start(&missing, "missing-3").await.unwrap_err().to_string();
    for target in [&missing[..], &[queue("missing-3")]].concat() {
        assert!(error.contains(&target), "{error}");
    }
}

#[tokio::test]
async fn silent_service_does_not_hold_the_start() {
    let silent = [queue("silent"), topic("silent"), bus("silent")];
    let started = timeout(PATIENCE, start(&silent, "d")).await;
    started.unwrap().unwrap();
}

#[tokio::test]
async fn denied_checks_are_one_warning() {
    let targets = [queue("denied"), topic("denied"), bus("denied")];
    let env = [
        ("AWS_ENDPOINT_URL", services().await),
        ("OUTBOX_TARGETS", names(&targets)),
        ("OUTBOX_DEAD_LETTER_QUEUE_URL", queue("denied-too")),
    ];
    let env = env.map(|(name, value)| (name.to_owned(), value));
    let lambda = Lambda::start_binary(Path::new(env!("CARGO_BIN_EXE_relay")), env.into()).await;
    let batch = json!({ "Records": [] });
    lambda.invoke(batch, PATIENCE).await.response();
    // The warning comes before the answer.
    lambda.logged(1, |line| says(line, "events relayed")).await;
    let warnings = lambda.logged(1, |line| line["level"] == "WARN").await;
    let [warning] = &warnings[..] else {
        panic!("{warnings:?}");
    };
    for target in [&targets[..], &[queue("denied-too")]].concat() {
        assert!(warning.to_string().contains(&target), "{warning}");
    }
}

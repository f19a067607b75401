//! The template's parameters: the defaults, and the values that they accept.

use std::time::Duration;

use regex_lite::Regex;
use serde_json::{Value, json};
use sqs_once::sqs::KeySource;

use super::template::{CONSUMER, of_type, read};

fn parameters() -> Value {
    read(CONSUMER)["Parameters"].clone()
}

fn pattern(parameter: &Value) -> Regex {
    Regex::new(parameter["AllowedPattern"].as_str().unwrap()).unwrap()
}

/// Retention of each queue's messages.
fn retention(template: &Value) -> Vec<Duration> {
    let queues = of_type(template, "AWS::SQS::Queue").into_iter();
    let seconds = queues.map(|(_, queue)| queue["MessageRetentionPeriod"].as_u64().unwrap());
    seconds.map(Duration::from_secs).collect()
}

#[test]
fn records_outlive_both_queues() {
    let template = read(CONSUMER);
    let retention = retention(&template);
    assert_eq!(retention.len(), 2, "a queue and its dead-letter queue");
    let records = template["Parameters"]["IdempotencyRetention"]["Default"].as_str();
    let records = humantime::parse_duration(records.unwrap()).unwrap();
    let messages = retention.iter().sum::<Duration>();
    assert!(records > messages, "{records:?}, {messages:?}");
}

#[test]
fn defaults_match_their_own_patterns() {
    let parameters = parameters();
    let of_pattern = parameters.as_object().unwrap().iter();
    let of_pattern = of_pattern.filter(|(_, parameter)| parameter["AllowedPattern"].is_string());
    let mut defaults = 0;
    for (name, parameter) in of_pattern {
        if let Some(default) = parameter["Default"].as_str() {
            assert!(pattern(parameter).is_match(default), "{name}: {default}");
            defaults += 1;
        }
    }
    assert!(defaults >= 3, "{defaults}");
}

#[test]
fn key_defaults_to_message_id() {
    let template = read(CONSUMER);
    let key = &template["Parameters"]["IdempotencyKey"];
    let default = key["Default"].as_str().unwrap();
    assert_eq!(default.parse(), Ok(KeySource::default()));
    let description = key["Description"].as_str().unwrap();
    assert!(description.contains("body:/orderId"), "{description}");
    let functions = of_type(&template, "AWS::Serverless::Function");
    let variables = &functions[0].1["Environment"]["Variables"];
    assert_eq!(
        variables["IDEMPOTENCY_KEY"],
        json!({"!Ref": "IdempotencyKey"})
    );
    assert_eq!(
        variables["IDEMPOTENCY_RETENTION"],
        json!({"!Ref": "IdempotencyRetention"})
    );
}

#[test]
fn key_parameter_accepts_same_as_binary() {
    let pattern = pattern(&parameters()["IdempotencyKey"]);
    let sources = [
        "message-id",
        "deduplication-id",
        "attribute:order",
        "attribute:a b",
        "body:/orderId",
        "body:/",
        "body:/tenant,/orderId",
        "body:/Message/orderId",
        "body:/a~1b,/c~0d",
        "powertools:message-id",
        "powertools:deduplication-id",
        "powertools:attribute:order",
        "powertools:body:/orderId",
        "powertools:body:/tenant,/orderId",
    ];
    let others = [
        "",
        "orderId",
        "/orderId",
        "Message-Id",
        "message-id ",
        " message-id",
        "message-ids",
        "message-id:1",
        "attribute",
        "attribute:",
        "body",
        "body:",
        "body:orderId",
        "body:tenant,/orderId",
        "body:/a~",
        "body:/a~2",
        "body:/a~,/b",
        "powertools:",
        "powertools:body",
        "powertools:orderId",
        "powertools:body:/a~2",
        "powertools:powertools:message-id",
    ];
    let known = sources.map(|source| (source, true));
    for (source, accepted) in known.into_iter().chain(others.map(|other| (other, false))) {
        let parsed = source.parse::<KeySource>().is_ok();
        assert_eq!(parsed, accepted, "the binary: {source:?}");
        assert_eq!(
            pattern.is_match(source),
            accepted,
            "the template: {source:?}"
        );
    }
}

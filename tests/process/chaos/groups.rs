//! Groups of statements (`BatchExecuteStatement`), read as the ordinary requests that make the same
//! writes.

use std::sync::LazyLock;

use axum::{
    body::{Body, to_bytes},
    http::Response,
};
use regex_lite::Regex;
use serde_json::{Map, Value, json};

/// The name before each placeholder: `'name': ?`, `"name" = ?`, `set_add("name", ?)`.
static NAMED: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r#"['"]([a-z_]+)['"](?:: | = |, )\?"#).unwrap());

/// The ordinary request of each statement: its operation, key and body.
pub(crate) fn writes(body: &Value) -> Vec<(&'static str, String, Value)> {
    let statements = body["Statements"].as_array().unwrap();
    statements.iter().map(write).collect()
}

fn write(statement: &Value) -> (&'static str, String, Value) {
    let text = statement["Statement"].as_str().unwrap();
    let values = statement["Parameters"].as_array().unwrap();
    let names = NAMED.captures_iter(text).map(|found| found[1].to_owned());
    let names: Vec<String> = names.collect();
    assert_eq!(names.len(), values.len(), "{text}");
    let of = |name: &str| {
        let at = names.iter().position(|other| other == name);
        at.map_or(Value::Null, |at| values[at].clone())
    };
    let key = of("id")["S"].as_str().unwrap().to_owned();
    if text.starts_with("INSERT") {
        let item: Map<_, _> = names.iter().map(|name| (name.clone(), of(name))).collect();
        return ("PutItem", key, json!({ "Item": item }));
    }
    let values = json!({
        ":me": of("owner"),
        ":status": of("status"),
        ":failed_message_ids": of("failed_message_ids"),
        ":expires_at": of("expires_at"),
    });
    (
        "UpdateItem",
        key,
        json!({ "ExpressionAttributeValues": values }),
    )
}

/// The response, and which of its statements were applied.
pub(crate) async fn applied(answer: Response<Body>) -> (Response<Body>, Vec<bool>) {
    let (head, body) = answer.into_parts();
    let body = to_bytes(body, usize::MAX).await.unwrap();
    let parsed: Value = serde_json::from_slice(&body).unwrap();
    let responses = parsed["Responses"].as_array().cloned().unwrap_or_default();
    let applied = responses.iter().map(|response| response["Error"].is_null());
    let applied = applied.collect();
    (Response::from_parts(head, Body::from(body)), applied)
}

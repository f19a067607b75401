//! Groups of statements (`BatchExecuteStatement`), each of which is a swap.

use std::{collections::HashMap, sync::LazyLock};

use axum::{
    body::{Body, to_bytes},
    http::Response,
};
use regex_lite::Regex;
use serde_json::Value;

use crate::chaos::write::Write;

/// The name before each placeholder: `'name':?`, `"name"=?`.
static NAMED: LazyLock<Regex> = LazyLock::new(|| Regex::new(r#"['"]([a-z_]+)['"][:=]\?"#).unwrap());

/// The swap of each statement.
pub(super) fn writes(body: &Value) -> Vec<Write> {
    let statements = body["Statements"].as_array().unwrap();
    let swap = |statement| write(statement);
    statements.iter().map(swap).collect()
}

fn write(statement: &Value) -> Write {
    let text = statement["Statement"].as_str().unwrap();
    let values = statement["Parameters"].as_array().unwrap();
    let names = NAMED.captures_iter(text).map(|found| found[1].to_owned());
    let mut set: Vec<_> = names.zip(values.iter().cloned()).collect();
    assert_eq!(set.len(), values.len(), "{text}");
    let is_insert = text.starts_with("INSERT");
    let condition = if is_insert {
        Vec::new()
    } else {
        // The key, the owner and the version.
        set.split_off(set.len() - 3)
    };
    let named = |name: &str| {
        let mut all = set.iter().chain(&condition);
        let found = all.rfind(|(other, _)| other == name);
        found.and_then(|(_, value)| value["S"].as_str().map(ToOwned::to_owned))
    };
    Write {
        key: named("id").unwrap(),
        expected: named("owner").filter(|_| !is_insert),
        set: set.into_iter().collect::<HashMap<_, _>>(),
    }
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

//! Secrets to plant, and the search for them in logs.

use std::collections::BTreeSet;

use serde_json::Value;

/// Prefix of all secrets.
pub(super) const SECRET: &str = "s3cr3t";
/// A payload, or a part of it.
pub(super) const BODY: &str = "s3cr3t-body-4242424242424242";
/// `s3cr3t-attribute`, as SQS writes bytes.
pub(super) const ATTRIBUTE_BYTES: &str = "czNjcjN0LWF0dHJpYnV0ZQ==";

/// Lines that hold a secret.
pub(super) fn lines_with_secrets(lines: &[String]) -> Vec<&str> {
    let lines = lines.iter().map(String::as_str);
    lines
        .filter(|line| line.contains(SECRET) || line.contains(ATTRIBUTE_BYTES))
        .collect()
}

/// Logged outcomes, each once and by name.
pub(super) fn outcomes(lines: &[String]) -> Vec<String> {
    let lines = lines.iter().flat_map(|line| serde_json::from_str(line));
    let outcomes = lines.filter_map(|line: Value| Some(line["outcome"].as_str()?.to_owned()));
    Vec::from_iter(BTreeSet::from_iter(outcomes))
}

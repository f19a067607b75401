//! Parsers for values that several settings share.

use std::time::Duration;

/// Parses `on` or `off`.
///
/// # Errors
///
/// If `text` is neither.
pub(crate) fn on_or_off(text: &str) -> Result<bool, &'static str> {
    match text {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err("must be `on` or `off`"),
    }
}

/// Parses a duration such as `500ms`, `30s`, `5m` or `24h`.
///
/// # Errors
///
/// If `text` is not a duration.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    humantime::parse_duration(text)
        .map_err(|_| format!("`{text}` is not a duration such as 500ms, 30s, 5m or 24h"))
}

/// Parses a duration of more than 0.
///
/// # Errors
///
/// If `text` is not a duration, or is 0.
pub fn positive(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        Duration::ZERO => Err("must be more than 0".to_owned()),
        span => Ok(span),
    }
}

//! Logs: one JSON object per line, as CloudWatch reads them.

use std::io::IsTerminal as _;

use tracing_subscriber::{
    filter::{LevelFilter, Targets},
    fmt,
    layer::SubscriberExt as _,
    util::SubscriberInitExt as _,
};

/// Sends logs to standard output, from here on: JSON lines with RFC 3339 timestamps, or plain
/// text where that is a terminal.
///
/// The level comes from `AWS_LAMBDA_LOG_LEVEL` (*AWS Lambda Developer Guide*, "Configuring
/// advanced logging controls"), else from `RUST_LOG`, which may name targets too
/// (`warn,sqs_once=debug`), else it is `info`. What can't be read counts as `info`, and is
/// said.
///
/// # Panics
///
/// If a subscriber is set already.
pub fn init() {
    let setting = ["AWS_LAMBDA_LOG_LEVEL", "RUST_LOG"]
        .into_iter()
        .find_map(|name| {
            Some((
                name,
                std::env::var(name).ok().filter(|text| !text.is_empty())?,
            ))
        });
    let (filter, fault) = match &setting {
        None => (info(), None),
        Some((name, text)) => match level(text) {
            Some(filter) => (filter, None),
            None => (info(), Some(name)),
        },
    };
    let (json, text) = if std::io::stdout().is_terminal() {
        (None, Some(fmt::layer()))
    } else {
        // Flat, so that a metric filter reads `$.outcome`.
        (
            Some(
                fmt::layer()
                    .json()
                    .flatten_event(true)
                    .with_span_list(false),
            ),
            None,
        )
    };
    tracing_subscriber::registry()
        .with(filter)
        .with(json)
        .with(text)
        .init();
    if let Some(setting) = fault {
        tracing::warn!(
            setting,
            "not a log level or a list of target=level: taken as info"
        );
    }
}

fn info() -> Targets {
    Targets::new().with_default(LevelFilter::INFO)
}

/// Lambda's levels are Rust's, and FATAL.
fn level(text: &str) -> Option<Targets> {
    if text.eq_ignore_ascii_case("fatal") {
        return Some(Targets::new().with_default(LevelFilter::ERROR));
    }
    text.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_read_as_lambda_and_rust_write_them() {
        for text in ["INFO", "debug", "FATAL", "warn,sqs_once=debug"] {
            assert!(level(text).is_some(), "{text}");
        }
        assert!(level("sqs_once=loud").is_none());
    }
}

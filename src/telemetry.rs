//! Logs: one JSON object per line, as CloudWatch reads them.

use std::{io::IsTerminal as _, panic::PanicHookInfo};

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
/// A panic is logged with its place and without its message, which may quote payload; at the
/// level `trace` with it.
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
    std::panic::set_hook(Box::new(log_panic));
    if let Some(setting) = fault {
        tracing::warn!(
            setting,
            "not a log level or a list of target=level: taken as info"
        );
    }
}

fn log_panic(panic: &PanicHookInfo<'_>) {
    let place = panic.location().map(ToString::to_string);
    tracing::error!(place, "panicked");
    tracing::trace!(message = panic.payload_as_str(), "panicked");
}

fn info() -> Targets {
    Targets::new().with_default(LevelFilter::INFO)
}

/// Lambda's levels are Rust's, and FATAL.
fn level(text: &str) -> Option<Targets> {
    if text.eq_ignore_ascii_case("fatal") {
        return Some(Targets::new().with_default(LevelFilter::ERROR));
    }
    // On its own, a word that is no level would be taken for a target, and all else be silent.
    let readable = |part: &str| part.contains('=') || part.trim().parse::<LevelFilter>().is_ok();
    text.split(',').all(readable).then(|| text.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_levels_accept_lambda_and_rust_names() {
        for text in ["INFO", "debug", "FATAL", "warn,sqs_once=debug"] {
            assert!(level(text).is_some(), "{text}");
        }
        for text in ["sqs_once=loud", "verbose", "infoo", "warn,sqs_once"] {
            assert!(level(text).is_none(), "{text}");
        }
    }
}

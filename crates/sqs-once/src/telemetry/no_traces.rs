//! Stands in for `traces` without the feature `opentelemetry`: no spans are sent.

use crate::{deadline::Deadline, handler::DeliveryFacts, once::Outcome, protocol::Key};

pub(crate) fn start(_: &tracing::Span, _: &DeliveryFacts, _: Option<&Key>) {}

pub(crate) fn add_key(_: &tracing::Span, _: &Key) {}

pub(crate) fn end(_: &tracing::Span, _: &Outcome) {}

pub(crate) async fn in_invocation<F: Future>(_: Option<&str>, work: F) -> F::Output {
    work.await
}

pub(crate) fn in_current<F: Future>(work: F) -> F {
    work
}

pub(crate) async fn flush(_: Deadline) {}

/// The error if spans are asked for.
pub(super) fn setting_error() -> Option<&'static str> {
    let exporter = std::env::var("OTEL_TRACES_EXPORTER").ok()?;
    let asks = ["otlp", "xray"].contains(&exporter.as_str());
    asks.then_some("OTEL_TRACES_EXPORTER has no effect: build with the feature `opentelemetry`")
}

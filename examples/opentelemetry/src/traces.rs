//! [`run`], which replaces `sqs_once::run`: sends the span of each message to an OpenTelemetry collector before the response to
//! Lambda, with a link to the producer's span. Copy this file, and the dependencies in Cargo.toml.

use std::{collections::HashMap, time::Duration};

use lambda_runtime::{Error, tower::ServiceBuilder};
use opentelemetry::{
    Context,
    propagation::TextMapPropagator as _,
    trace::{SpanContext, TraceContextExt as _, TracerProvider as _},
};
use opentelemetry_otlp::{SpanExporter, WithExportConfig as _};
use opentelemetry_sdk::{propagation::TraceContextPropagator, trace::SdkTracerProvider};
use sqs_once::{Consumer, DeliveryMetadata, Handler, Mode, SettingsError, telemetry};
use tokio::{task::spawn_blocking, time::timeout};
use tracing::{Span, field::Empty, level_filters::LevelFilter};
use tracing_opentelemetry::OpenTelemetrySpanExt as _;
use tracing_subscriber::{Layer as _, filter::Targets, prelude::*};

/// How long spans may delay the response. Must be shorter than `Consumer::deadline_reserve`, 500 ms by default.
const LONGEST_FLUSH: Duration = Duration::from_millis(400);

/// Sets the subscriber, creates the consumer, and serves invocations.
pub(crate) async fn run<M: Mode<H::Output>, H: Handler>(
    consumer: impl Future<Output = Result<Consumer<M, H>, SettingsError>>,
) -> Result<(), Error> {
    // A collector at https needs a cryptography provider. We install the one that the AWS SDK uses.
    let _already_set = rustls::crypto::ring::default_provider().install_default();
    let exporter = SpanExporter::builder()
        .with_http()
        .with_timeout(LONGEST_FLUSH)
        .build()?;
    let provider = SdkTracerProvider::builder()
        .with_batch_exporter(exporter)
        .build();
    // Below INFO, the SDK's spans and events hold payload. The runtime's span ends only after the response.
    let filter = Targets::new()
        .with_default(LevelFilter::INFO)
        .with_target("lambda_runtime", LevelFilter::OFF);
    let spans = tracing_opentelemetry::layer().with_tracer(provider.tracer("sqs-once"));
    tracing_subscriber::registry()
        .with(telemetry::layer())
        .with(spans.with_filter(filter))
        .init();
    telemetry::set_panic_hook();

    let consumer = consumer.await?.make_span(message_span);
    consumer.check()?;
    let service = ServiceBuilder::new()
        .then(move |response| after_flush(provider.clone(), response))
        .service(consumer);
    lambda_runtime::run_concurrent(service).await
}

/// Makes the span of a message. The consumer records its key and its outcome.
fn message_span(delivery: &DeliveryMetadata) -> Span {
    let span = tracing::info_span!(
        "process",
        otel.kind = "consumer",
        messaging.system = "aws_sqs",
        messaging.message.id = delivery.message_id,
        key = Empty,
        outcome = Empty,
    );
    // We use a link, because the messages of one invocation have many producers.
    span.add_link(producer(delivery));
    span
}

/// Returns the span that sent the message. It comes from the message attribute `traceparent`, which OpenTelemetry sets, or from
/// the system attribute `AWSTraceHeader`, which X-Ray sets. If the message has neither, the span is not valid.
fn producer(delivery: &DeliveryMetadata) -> SpanContext {
    let w3c = delivery.attribute("traceparent").map(str::to_owned);
    let xray = || traceparent(delivery.trace_header.as_deref()?);
    let header = w3c.or_else(xray).unwrap_or_default();
    let carrier = HashMap::from([("traceparent".to_owned(), header)]);
    let context = TraceContextPropagator::new().extract_with_context(&Context::new(), &carrier);
    context.span().span_context().clone()
}

/// Converts `Root=1-5759e988-bd862e3fe1be46a994272793;Parent=53995c3f42cd8ad8;Sampled=1` to a `traceparent`.
fn traceparent(xray: &str) -> Option<String> {
    let part = |name| {
        xray.split(';')
            .find_map(|part| part.trim().strip_prefix(name))
    };
    let trace = part("Root=1-")?.replace('-', "");
    let sampled = u8::from(part("Sampled=") == Some("1"));
    Some(format!("00-{trace}-{}-0{sampled}", part("Parent=")?))
}

/// Returns the response once the ended spans are sent, because Lambda freezes the process after the response.
async fn after_flush<R>(provider: SdkTracerProvider, response: R) -> R {
    if let Err(error) = flush(provider).await {
        tracing::warn!(%error, "spans were not sent");
    }
    response
}

/// Sends the spans that have ended. Runs on another thread, because `force_flush` blocks.
async fn flush(provider: SdkTracerProvider) -> Result<(), Error> {
    let sent = spawn_blocking(move || provider.force_flush());
    Ok(timeout(LONGEST_FLUSH, sent).await???)
}

//! OpenTelemetry traces for [sqs-once](https://docs.rs/sqs-once): spans of messages and of AWS SDK requests,
//! sent before the response of an invocation.
//!
//! ```no_run
//! # async fn greet(_: String, _: sqs_once::Attempt) -> Result<(), sqs_once::Failure> { Ok(()) }
//! # async fn main_() -> Result<(), lambda_runtime::Error> {
//! use sqs_once::{Consumer, handler_fn};
//!
//! sqs_once_otel::init(); // in place of `sqs_once::telemetry::init()`
//! sqs_once::run(Consumer::from_env(handler_fn(greet)).await?).await
//! # }
//! ```
//!
//! `docs/traces.md` has the spans, the variables and the limits.
//!
//! | module | task |
//! | --- | --- |
//! | `context` | parent of an invocation's spans, links to producers |
//! | `spans` | spans as the semantic conventions name them, kept until the flush |
//! | `export` | OTLP over HTTP, or over UDP to the X-Ray daemon |

#![cfg_attr(docsrs, feature(doc_cfg))]
// Tests may read the clock. The library reads it only in `sqs_once_core::system`.
#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

mod context;
mod export;
mod spans;

use std::{
    fmt,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use futures_util::future::BoxFuture;
use opentelemetry::{Context, trace::TracerProvider as _};
use opentelemetry_sdk::trace::SdkTracerProvider;
use tokio::time::{Instant, timeout_at};
use tracing::{Level, Metadata, Subscriber};
use tracing_subscriber::{
    Layer,
    filter::{FilterFn, LevelFilter},
    registry::LookupSpan,
    util::TryInitError,
};

use sqs_once::{
    Deadline, Outcome,
    protocol::Key,
    telemetry::{self, Parent, Tracer, set_tracer},
};
use sqs_once_core::handler::DeliveryMetadata;

use self::{
    export::{Exporter, SettingError},
    spans::Spans,
};

/// Longest timeout of a Lambda function.
const LONGEST_INVOCATION: Duration = Duration::from_secs(15 * 60);

static TRACES: OnceLock<Result<Option<Traces>, SettingError>> = OnceLock::new();

struct Traces {
    provider: SdkTracerProvider,
    spans: Spans,
    exporter: Exporter,
    /// True after a flush that failed, so that the log names each outage of the collector only once.
    failing: AtomicBool,
}

/// Sends logs as [`sqs_once::telemetry::init`] does, and traces if `OTEL_TRACES_EXPORTER` is `xray` or
/// `otlp`.
///
/// If a variable for traces cannot be parsed, a warning names it and no spans are sent.
///
/// # Panics
///
/// If a subscriber is already set. Then add [`layer`] to that one.
///
/// ```
/// sqs_once_otel::init();
/// tracing::info!("ready");
/// ```
pub fn init() {
    if let Err(error) = try_init() {
        panic!("logs can't be set up: {error}");
    }
}

/// Like [`init`], without the panic.
///
/// # Errors
///
/// If a subscriber is set already.
pub fn try_init() -> Result<(), TryInitError> {
    telemetry::try_init_with(layer())?;
    if let Err(error) = set_up() {
        tracing::warn!(%error, "traces are off");
    }
    Ok(())
}

/// Returns the layer for traces that [`init`] installs, so that you can combine it with others.
///
/// Returns `None` unless `OTEL_TRACES_EXPORTER` is `otlp` or `xray` and the other variables can be parsed.
/// The environment is read at the first call. `docs/traces.md` lists the variables.
///
/// The layer takes spans and no events. It takes the spans of the AWS SDK, one for each request, and spans of
/// other code at the levels `INFO`, `WARN` and `ERROR`. A [`Consumer`](sqs_once::Consumer) sends the spans
/// before each response.
///
/// ```
/// use sqs_once::telemetry;
/// use tracing_subscriber::{layer::SubscriberExt as _, util::SubscriberInitExt as _};
///
/// let registry = tracing_subscriber::registry();
/// registry.with(telemetry::layer()).with(sqs_once_otel::layer()).init();
/// telemetry::set_panic_hook();
/// ```
#[must_use]
pub fn layer<S>() -> Option<impl Layer<S>>
where
    S: Subscriber + for<'span> LookupSpan<'span>,
{
    let traces = set_up().ok().flatten();
    // We set the tracer even without an exporter, so that an OpenTelemetry layer of yours gets parents, links
    // and attributes. A second layer uses the same tracer.
    let _is_new = set_tracer(OpenTelemetry(traces));
    Some(layer_of(&traces?.provider))
}

/// Reads the environment at the first call. `None` if it asks for no spans.
fn set_up() -> Result<Option<&'static Traces>, &'static SettingError> {
    let traces = TRACES.get_or_init(|| Ok(Exporter::from_env()?.map(Traces::new)));
    traces.as_ref().map(Option::as_ref)
}

/// Sends the spans that have ended, for a function without a [`Consumer`](sqs_once::Consumer). Takes at most
/// `at_most`, and never more than 15 minutes. Discards spans that were not sent by then.
///
/// Does nothing without the [`layer`]. Logs a failure. Spans of SDK requests are sent only if they are inside
/// one of your spans.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// use std::time::Duration;
///
/// sqs_once_otel::flush(Duration::from_millis(100)).await;
/// # }
/// ```
pub async fn flush(at_most: Duration) {
    if let Some(Ok(Some(traces))) = TRACES.get() {
        // Limit the wait before you add it: no clock can represent a wait of centuries.
        let at_most = at_most.min(LONGEST_INVOCATION);
        traces.flush(Instant::now() + at_most).await;
    }
}

/// The tracer of the consumer.
struct OpenTelemetry(Option<&'static Traces>);

impl fmt::Debug for OpenTelemetry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OpenTelemetry")
    }
}

impl Tracer for OpenTelemetry {
    /// Returns the invocation's span as the parent, if X-Ray made one.
    fn invocation(&self, trace_header: Option<&str>) -> Arc<dyn Parent> {
        let parent = trace_header.and_then(context::of_invocation);
        Arc::new(ParentSpan(parent.unwrap_or_default()))
    }

    fn current(&self) -> Arc<dyn Parent> {
        Arc::new(ParentSpan(Context::current()))
    }

    fn message_starts(&self, span: &tracing::Span, delivery: &DeliveryMetadata) {
        spans::start(span, delivery);
    }

    fn key_is_known(&self, span: &tracing::Span, key: &Key) {
        spans::add_key(span, key);
    }

    fn message_ends(&self, span: &tracing::Span, outcome: &Outcome) {
        spans::end(span, outcome);
    }

    fn flush(&self, deadline: Deadline) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            if let Some(traces) = self.0 {
                let budget_ends = Instant::now() + traces.exporter.budget();
                traces.flush(budget_ends.min(deadline.respond_by())).await;
            }
        })
    }
}

struct ParentSpan(Context);

impl Parent for ParentSpan {
    fn attach(&self, poll: &mut dyn FnMut()) {
        let _attached = self.0.clone().attach();
        poll();
    }
}

fn layer_of<S>(provider: &SdkTracerProvider) -> impl Layer<S> + use<S>
where
    S: Subscriber + for<'span> LookupSpan<'span>,
{
    tracing_opentelemetry::layer()
        .with_tracer(provider.tracer(export::SCOPE))
        .with_location(false)
        .with_threads(false)
        .with_target(false)
        .with_tracked_inactivity(false)
        .with_filter(FilterFn::new(is_traced).with_max_level_hint(LevelFilter::DEBUG))
}

/// Returns whether we trace this. We leave out events, and SDK spans at `TRACE`, because they may contain
/// payload.
fn is_traced(metadata: &Metadata<'_>) -> bool {
    let (target, level) = (metadata.target(), *metadata.level());
    // The runtime's span of an invocation ends after the flush.
    metadata.is_span()
        && !target.starts_with("lambda_runtime")
        && (level <= Level::INFO || level == Level::DEBUG && target.starts_with("aws_sdk_"))
}

impl Traces {
    fn new(exporter: Exporter) -> Self {
        let spans = Spans::default();
        // `OTEL_TRACES_SAMPLER` selects the sampler. Without it, the parent's flag decides.
        let provider = SdkTracerProvider::builder().with_span_processor(spans.clone());
        Self {
            provider: provider.build(),
            spans,
            exporter,
            failing: AtomicBool::new(false),
        }
    }

    async fn flush(&self, until: Instant) {
        if Instant::now() >= until {
            return; // The next flush sends them.
        }
        let (ended, dropped) = self.spans.take();
        if dropped > 0 {
            tracing::warn!(
                dropped,
                "an invocation had more spans than are kept until its end"
            );
        }
        if ended.is_empty() {
            return;
        }
        let spans = ended.len();
        let error = match timeout_at(until, self.exporter.export(ended)).await {
            Ok(Ok(())) => return self.failing.store(false, Relaxed),
            Ok(Err(error)) => error.to_string(),
            Err(_elapsed) => "no answer in time".to_owned(),
        };
        if self.failing.swap(true, Relaxed) {
            tracing::debug!(spans, error, "spans were not sent");
        } else {
            tracing::warn!(
                spans,
                error,
                "spans were not sent; later failures are logged at debug"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use opentelemetry::trace::SpanId;
    use opentelemetry_sdk::trace::SpanData;
    use tracing_subscriber::layer::SubscriberExt as _;

    use super::*;
    use sqs_once::protocol::Namespace;

    /// Returns the spans that are kept, and the number of others.
    fn ended(work: impl FnOnce()) -> (Vec<SpanData>, u64) {
        let spans = Spans::default();
        let provider = SdkTracerProvider::builder().with_span_processor(spans.clone());
        let layer = layer_of(&provider.build());
        tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), work);
        spans.take()
    }

    #[test]
    fn layer_takes_spans_of_requests_and_handlers() {
        let (spans, dropped) = ended(|| {
            let message = tracing::error_span!("message", message_id = "m-1");
            spans::start(&message, &DeliveryMetadata::default());
            let _message = message.entered();
            let _runtime =
                tracing::info_span!(target: "lambda_runtime::layers", "invoke").entered();
            let _own = tracing::info_span!("look up").entered();
            let _detail = tracing::debug_span!("detail").entered();
            tracing::error!(body = "SECRET", "an event");
            let _ = tracing::debug_span!(target: "aws_sdk_dynamodb::operation::put_item", "DynamoDB.PutItem").entered();
            let _ = tracing::trace_span!(target: "aws_sdk_dynamodb::item", "item").entered();
        });
        let names: Vec<_> = spans.iter().map(|span| span.name.as_ref()).collect();
        assert_eq!(names, ["DynamoDB.PutItem", "look up", "process"]);
        assert_eq!(spans[0].parent_span_id, spans[1].span_context.span_id());
        assert_eq!(spans[1].parent_span_id, spans[2].span_context.span_id());
        assert_eq!(spans[2].parent_span_id, SpanId::INVALID);
        assert!(spans.iter().all(|span| span.events.is_empty()));
        assert_eq!(dropped, 0);
    }

    #[test]
    fn key_found_later_is_an_attribute() {
        let (spans, _) = ended(|| {
            let message = tracing::error_span!("message", key = tracing::field::Empty);
            spans::start(&message, &DeliveryMetadata::default());
            let namespace = Namespace::new("test").unwrap();
            let key = Key::new(&namespace, ["o-1"]).unwrap();
            message.in_scope(|| spans::add_key(&tracing::Span::current(), &key));
        });
        let mut attributes = spans[0].attributes.iter();
        let key = attributes.find(|attribute| attribute.key.as_str() == "sqs_once.key");
        assert_eq!(key.unwrap().value.as_str(), "test#o-1");
    }

    #[test]
    fn spans_beyond_the_limit_are_counted() {
        let (spans, dropped) = ended(|| {
            let parent = tracing::info_span!("parent").entered();
            spans::start(&parent, &DeliveryMetadata::default());
            (0..4100).for_each(|_| drop(tracing::info_span!("child")));
        });
        assert_eq!((spans.len(), dropped), (4096, 5));
    }

    #[test]
    fn span_of_a_function_without_consumer_is_kept() {
        let (spans, _) = ended(|| {
            let _handler = tracing::info_span!("place order").entered();
            let _own = tracing::info_span!("look up").entered();
        });
        let names: Vec<_> = spans.iter().map(|span| span.name.as_ref()).collect();
        assert_eq!(names, ["look up", "place order"]);
    }

    #[test]
    fn request_outside_of_an_invocation_is_not_kept() {
        let (spans, dropped) = ended(|| {
            let request = tracing::debug_span!(target: "aws_sdk_dynamodb::operation::get_item", "DynamoDB.GetItem", rpc.system = "aws-api");
            drop(request.entered());
        });
        assert_eq!((spans.len(), dropped), (0, 0));
    }
}

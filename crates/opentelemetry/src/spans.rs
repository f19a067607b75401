//! [`Spans`]: spans that have ended, named as the semantic conventions say.

use std::{
    mem,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use opentelemetry::{
    Context, KeyValue,
    trace::{SpanId, SpanKind, Status},
};
use opentelemetry_sdk::{
    error::OTelSdkResult,
    trace::{Span, SpanData, SpanProcessor},
};
use tracing_opentelemetry::OpenTelemetrySpanExt as _;

use crate::context::{self, UNKNOWN_PARENT};
use sqs_once::{Outcome, protocol::Key};
use sqs_once_core::handler::DeliveryMetadata;

/// How many spans are kept until the flush. Each message has 2 to 4.
const MAX_SPANS: usize = 4096;

const DESTINATION: &str = "messaging.destination.name";
const OPERATION: &str = "messaging.operation.type";
/// Attribute of the SDK's span of a request.
const RPC_SYSTEM: &str = "rpc.system";

/// Fields of a message's span for the log. In the trace, the same values are attributes with different names.
const LOG_FIELDS: [&str; 4] = ["message_id", "key", "receive_count", "requestId"];

/// Makes a message's span a process span with links to the producer (*OpenTelemetry Semantic Conventions*,
/// "Messaging spans"). Call it before the span is entered.
pub(crate) fn start(span: &tracing::Span, delivery: &DeliveryMetadata) {
    for producer in context::of_producer(delivery) {
        span.add_link(producer);
    }
    span.set_attribute("messaging.system", "aws_sqs");
    span.set_attribute("messaging.operation.name", "process");
    span.set_attribute(OPERATION, "process");
    let queue = delivery.queue_arn.as_deref();
    if let Some(queue) = queue.and_then(|arn| arn.rsplit(':').next()) {
        span.set_attribute(DESTINATION, queue.to_owned());
    }
    span.set_attribute("messaging.message.id", delivery.message_id.clone());
    if let Some(request_id) = &delivery.request_id {
        span.set_attribute("faas.invocation_id", Arc::clone(request_id));
    }
    span.set_attribute("sqs_once.receive_count", i64::from(delivery.receive_count));
}

/// Adds the key to a message's span.
pub(crate) fn add_key(span: &tracing::Span, key: &Key) {
    span.set_attribute("sqs_once.key", key.as_str().to_owned());
}

/// Adds the outcome to a message's span, but not the text of a failure, which may contain payload.
pub(crate) fn end(span: &tracing::Span, outcome: &Outcome) {
    let name = outcome.name();
    span.set_attribute("sqs_once.outcome", name);
    if !outcome.is_success() {
        span.set_attribute("error.type", name);
        span.set_status(Status::error(name));
    }
}

/// Spans that have ended and have not been sent. Clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Spans(Arc<Mutex<EndedSpans>>);

#[derive(Debug, Default)]
struct EndedSpans {
    ended: Vec<SpanData>,
    dropped: u64,
}

impl Spans {
    /// Returns the spans that ended since the last call, and how many others were not kept.
    pub(crate) fn take(&self) -> (Vec<SpanData>, u64) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let EndedSpans { ended, dropped } = mem::take(&mut *kept);
        (ended, dropped)
    }
}

impl SpanProcessor for Spans {
    fn on_start(&self, _: &mut Span, _: &Context) {}

    fn on_end(&self, span: SpanData) {
        if is_lone_request(&span) {
            return;
        }
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.ended.len() < MAX_SPANS {
            kept.ended.push(conventional(span));
        } else {
            kept.dropped += 1;
        }
    }

    /// Does nothing. The consumer sends the spans, because sending waits and this function cannot.
    fn force_flush(&self) -> OTelSdkResult {
        Ok(())
    }

    fn shutdown_with_timeout(&self, _: Duration) -> OTelSdkResult {
        Ok(())
    }
}

/// Returns whether the span is an SDK request without a parent: from before the first invocation, or from the
/// background.
fn is_lone_request(span: &SpanData) -> bool {
    span.parent_span_id == SpanId::INVALID && attribute(span, RPC_SYSTEM).is_some()
}

/// Adapts a span to the conventions: a `tracing` span has no kind, and its fields and name are those of the
/// log.
fn conventional(mut span: SpanData) -> SpanData {
    if span.parent_span_id == UNKNOWN_PARENT {
        span.parent_span_id = SpanId::INVALID;
    }
    if attribute(&span, OPERATION).is_some() {
        span.span_kind = SpanKind::Consumer;
        span.name = match attribute(&span, DESTINATION) {
            Some(KeyValue { value, .. }) => format!("process {}", value.as_str()).into(),
            None => "process".into(),
        };
        let for_log = |attribute: &KeyValue| LOG_FIELDS.contains(&attribute.key.as_str());
        span.attributes.retain(|attribute| !for_log(attribute));
    } else if attribute(&span, RPC_SYSTEM).is_some() {
        span.span_kind = SpanKind::Client;
    }
    span
}

fn attribute<'a>(span: &'a SpanData, name: &str) -> Option<&'a KeyValue> {
    let mut attributes = span.attributes.iter();
    attributes.find(|attribute| attribute.key.as_str() == name)
}

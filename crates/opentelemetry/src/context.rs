//! Contexts from other programs: the function's invocation, and the producer of a message.

use opentelemetry::{
    Context,
    propagation::{Extractor, TextMapPropagator as _},
    trace::{SpanContext, SpanId, TraceContextExt as _, TraceFlags, TraceId, TraceState},
};
use opentelemetry_sdk::propagation::TraceContextPropagator;

use sqs_once_core::handler::{AttributeValue, DeliveryMetadata};

/// Stands for the parent of a span if we know only the id of the trace.
pub(crate) const UNKNOWN_PARENT: SpanId = SpanId::from_bytes([0xff; 8]);

/// Returns the parent of an invocation's spans, from the invocation's X-Ray header. The header's `Sampled`
/// applies to all of them, even if the header names no `Parent`.
pub(crate) fn of_invocation(header: &str) -> Option<Context> {
    let span = xray(header, UNKNOWN_PARENT)?;
    Some(Context::new().with_remote_span_context(span))
}

/// Returns the contexts of the producer: from `AWSTraceHeader`, which X-Ray sets, and from the message
/// attribute `traceparent` (*W3C Trace Context*), which OpenTelemetry sets. Returns one context if both name
/// the same span.
pub(crate) fn of_producer(delivery: &DeliveryMetadata) -> Vec<SpanContext> {
    let header = delivery.trace_header.as_deref();
    let xray = header.and_then(|header| xray(header, SpanId::INVALID));
    let mut contexts: Vec<_> = w3c(delivery).into_iter().collect();
    contexts.extend(xray.filter(|xray| {
        let mut others = contexts.iter();
        xray.is_valid() && !others.any(|other| other.span_id() == xray.span_id())
    }));
    contexts
}

/// Parses `Root=1-5759e988-bd862e3fe1be46a994272793;Parent=53995c3f42cd8ad8;Sampled=1` (*AWS X-Ray Developer
/// Guide*, "Tracing header"). `None` if the root cannot be read.
fn xray(header: &str, no_parent: SpanId) -> Option<SpanContext> {
    let (mut root, mut parent, mut flags) = (None, no_parent, TraceFlags::NOT_SAMPLED);
    for part in header.split(';') {
        match part.trim().split_once('=') {
            Some(("Root", id)) => root = xray_root(id),
            Some(("Parent", id)) => parent = SpanId::from_hex(id).unwrap_or(no_parent),
            Some(("Sampled", "1")) => flags = TraceFlags::SAMPLED,
            _ => {}
        }
    }
    let state = TraceState::default();
    Some(SpanContext::new(root?, parent, flags, true, state))
}

/// Parses `1-`, the time in 8 hex digits, `-`, and 24 hex digits. Without the dashes this is a W3C trace id.
fn xray_root(id: &str) -> Option<TraceId> {
    let (time, random) = id.strip_prefix("1-")?.split_once('-')?;
    let is_whole = time.len() == 8 && random.len() == 24;
    let id = is_whole.then(|| TraceId::from_hex(&format!("{time}{random}")))?;
    id.ok().filter(|id| *id != TraceId::INVALID)
}

fn w3c(delivery: &DeliveryMetadata) -> Option<SpanContext> {
    // We do not start from the current context, because that is the invocation's.
    let propagator = TraceContextPropagator::new();
    let context = propagator.extract_with_context(&Context::new(), &Attributes(delivery));
    let span = context.span().span_context().clone();
    span.is_valid().then_some(span)
}

/// Message attributes of type String.
struct Attributes<'a>(&'a DeliveryMetadata);

impl Extractor for Attributes<'_> {
    fn get(&self, name: &str) -> Option<&str> {
        match &self.0.attributes.get(name)?.value {
            AttributeValue::Text(text) => Some(text),
            AttributeValue::Binary(_) => None,
        }
    }

    fn keys(&self) -> Vec<&str> {
        self.0.attributes.keys().map(String::as_str).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sqs_once_core::handler::Attribute;

    const XRAY: &str = "Root=1-5759e988-bd862e3fe1be46a994272793;Parent=53995c3f42cd8ad8;Sampled=1";
    const TRACE: &str = "5759e988bd862e3fe1be46a994272793";

    fn delivery(xray: Option<&str>, traceparent: Option<&str>) -> DeliveryMetadata {
        let attributes = traceparent.map(|text| {
            let data_type = "String".to_owned();
            let value = AttributeValue::Text(text.to_owned());
            ("traceparent".to_owned(), Attribute { data_type, value })
        });
        DeliveryMetadata {
            trace_header: xray.map(str::to_owned),
            attributes: attributes.into_iter().collect(),
            ..DeliveryMetadata::default()
        }
    }

    /// Returns trace and span of each context.
    fn linked(xray: Option<&str>, traceparent: Option<&str>) -> Vec<(String, String)> {
        let contexts = of_producer(&delivery(xray, traceparent)).into_iter();
        let ids = |context: SpanContext| {
            (
                context.trace_id().to_string(),
                context.span_id().to_string(),
            )
        };
        contexts.map(ids).collect()
    }

    fn link(trace: &str, span: &str) -> (String, String) {
        (trace.into(), span.into())
    }

    #[test]
    fn producer_of_both_formats_is_linked() {
        let w3c = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let of_xray = link(TRACE, "53995c3f42cd8ad8");
        let of_w3c = link("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7");
        let both = [of_w3c, of_xray];
        assert_eq!(linked(None, Some(w3c)), both[..1]);
        assert_eq!(linked(Some(XRAY), None), both[1..]);
        assert_eq!(linked(Some(XRAY), Some(w3c)), both);
        let same = format!("00-{TRACE}-53995c3f42cd8ad8-01");
        assert_eq!(linked(Some(XRAY), Some(&same)), both[1..]);
    }

    #[test]
    fn unreadable_producer_is_not_linked() {
        for header in [
            "",
            "Root",
            "Root=1-5759e988-bd862e3fe1be46a994272793;Sampled=1",
            "Root=1-5759e988-bd86;Parent=53995c3f42cd8ad8;Sampled=1",
            "Root=1-5759e988-bd862e3fe1be46a99427279x;Parent=53995c3f42cd8ad8",
            "Root=1-é759e98-bd862e3fe1be46a994272793;Parent=53995c3f42cd8ad8",
            "Root=1-00000000-000000000000000000000000;Parent=53995c3f42cd8ad8",
        ] {
            assert_eq!(linked(Some(header), None), [], "{header}");
        }
        for traceparent in [
            "",
            "00-1-2",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        ] {
            assert_eq!(linked(None, Some(traceparent)), [], "{traceparent}");
        }
    }

    #[test]
    fn invocation_header_gives_parent_and_sampling() {
        let parent = |header| {
            let span = of_invocation(header)?.span().span_context().clone();
            Some((span.span_id(), span.is_sampled(), span.is_remote()))
        };
        let known = SpanId::from_hex("53995c3f42cd8ad8").unwrap();
        assert_eq!(parent(XRAY), Some((known, true, true)));
        let unsampled = "Root=1-5759e988-bd862e3fe1be46a994272793; Sampled=0; Lineage=1:a:0";
        assert_eq!(parent(unsampled), Some((UNKNOWN_PARENT, false, true)));
        assert_eq!(parent("Sampled=1"), None);
    }
}

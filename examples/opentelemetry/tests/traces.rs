//! Runs the example behind a Runtime API, with a collector for OTLP over HTTP.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::{
    collections::HashMap,
    future::pending,
    path::Path,
    sync::{Arc, Mutex},
    time::Duration,
};

use axum::{Router, body::Bytes, extract::State, routing::post};
use opentelemetry_proto::tonic::{
    collector::trace::v1::ExportTraceServiceRequest,
    common::v1::any_value::Value::StringValue,
    trace::v1::{Span, span::SpanKind},
};
use prost::Message as _;
use serde_json::json;
use support::{
    event::{batch, failed, record},
    runtime_api::{Lambda, says},
    serve,
    stage::{Stage, TIME},
};
use tokio::time::sleep;

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const SPAN: &str = "00f067aa0ba902b7";

type Spans = Arc<Mutex<Vec<Span>>>;

/// Starts a collector. Returns its address and the spans that it has received.
async fn collector() -> (String, Spans) {
    let spans = Spans::default();
    let traces = post(collect).with_state(Arc::clone(&spans));
    let address = serve(Router::new().route("/v1/traces", traces)).await;
    (format!("http://{address}"), spans)
}

async fn collect(State(spans): State<Spans>, body: Bytes) {
    // Makes the spans arrive after the response, unless the example waits for them.
    sleep(Duration::from_millis(50)).await;
    let request = ExportTraceServiceRequest::decode(body).unwrap();
    let scopes = request.resource_spans.into_iter();
    let scopes = scopes.flat_map(|resource| resource.scope_spans);
    let mut all = spans.lock().unwrap();
    all.extend(scopes.flat_map(|scope| scope.spans));
}

async fn example(stage: &Stage, collector: &str) -> Lambda {
    let binary = Path::new(env!("CARGO_BIN_EXE_opentelemetry"));
    let settings = [("OTEL_EXPORTER_OTLP_ENDPOINT", collector)];
    Lambda::start_binary(binary, stage.env(&settings)).await
}

fn hex(id: &[u8]) -> String {
    id.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns a span's attributes that are strings.
fn attributes(span: &Span) -> HashMap<String, String> {
    let attributes = span.attributes.iter().filter_map(|attribute| {
        match attribute.value.as_ref()?.value.as_ref()? {
            StringValue(text) => Some((attribute.key.clone(), text.clone())),
            _ => None,
        }
    });
    attributes.collect()
}

#[tokio::test]
async fn collector_has_the_spans_before_the_response() {
    let (stage, (endpoint, spans)) = (Stage::set().await, collector().await);
    let lambda = example(&stage, &endpoint).await;
    let mut w3c = record("m-w3c", "{}");
    w3c["messageAttributes"]["traceparent"] = json!({
        "stringValue": format!("00-{TRACE}-{SPAN}-01"), "dataType": "String",
        "stringListValues": [], "binaryListValues": [],
    });
    let mut xray = record("m-xray", "{}");
    xray["attributes"]["AWSTraceHeader"] =
        json!("Root=1-4bf92f35-77b34da6a3ce929d0e0e4736;Parent=00f067aa0ba902b7;Sampled=0");
    let none = record("m-none", "not JSON");
    let response = lambda.invoke(batch([w3c, xray, none]), TIME).await;
    let spans = spans.lock().unwrap().clone();
    assert_eq!(failed(&response.response()), ["m-none"]);

    assert_eq!(spans.len(), 3, "{spans:#?}");
    for (message, links, outcome) in [
        ("m-w3c", 1, "completed"),
        ("m-xray", 1, "completed"),
        ("m-none", 0, "invalid"),
    ] {
        let of_message = |span: &&Span| attributes(span)["messaging.message.id"] == message;
        let span = spans.iter().find(of_message).unwrap();
        assert_eq!((&*span.name, span.kind()), ("process", SpanKind::Consumer));
        let producers = span.links.iter();
        let producers = producers.map(|link| (hex(&link.trace_id), hex(&link.span_id)));
        let expected = vec![(TRACE.to_owned(), SPAN.to_owned()); links];
        assert_eq!(producers.collect::<Vec<_>>(), expected, "{message}");
        assert_ne!(hex(&span.trace_id), TRACE, "the producer is no parent");
        let attributes = attributes(span);
        assert_eq!(attributes["outcome"], outcome);
        assert_eq!(attributes["key"], format!("payments#{message}"));
    }
}

#[tokio::test]
async fn silent_collector_does_not_keep_the_response() {
    let silent = Router::new().fallback(async || pending::<()>().await);
    let (stage, endpoint) = (Stage::set().await, serve(silent).await);
    let lambda = example(&stage, &format!("http://{endpoint}")).await;
    for n in 0..2 {
        let event = batch([record(&format!("m-{n}"), "{}")]);
        let response = lambda.invoke(event, Duration::from_secs(3)).await;
        assert_eq!(failed(&response.response()), [""; 0]);
    }
    let unsent = |line: &_| says(line, "spans were not sent");
    assert_eq!(lambda.logged(2, unsent).await.len(), 2);
}

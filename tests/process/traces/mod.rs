//! Traces of the consumer, built with its feature `opentelemetry`.

mod collector;

use std::{path::Path, time::Duration};

use collector::{Collector, Daemon, Export, attributes, hanging, hex, named, text};
use opentelemetry_proto::tonic::{
    common::v1::any_value::Value::IntValue,
    trace::v1::{Span, span::SpanKind, status::StatusCode},
};
use serde_json::{Value, json};
use support::{
    event::{batch, failed, order, received, record},
    gateway::Reply,
    runtime_api::{Lambda, UNSAMPLED, consumer_missing, says},
    stage::{Stage, TIME},
};

const TRACE: &str = "5759e988bd862e3fe1be46a994272793";
const SEGMENT: &str = "53995c3f42cd8ad8";
const SAMPLED: &str = "Root=1-5759e988-bd862e3fe1be46a994272793;Parent=53995c3f42cd8ad8;Sampled=1";

const PRODUCER_TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const PRODUCER_SPAN: &str = "00f067aa0ba902b7";

/// A request for each claim and each settlement.
const SINGLE_WRITES: [(&str, &str); 1] = [("IDEMPOTENCY_BATCHED_WRITES", "off")];

/// The consumer of this build, in an invocation that X-Ray traces. A busy machine has time to send.
async fn consumer(stage: &Stage, settings: &[(&str, &str)]) -> Lambda {
    let patient = [("OTEL_EXPORTER_OTLP_TIMEOUT", "5000")];
    consumer_with_budget(stage, &[&patient, settings].concat()).await
}

/// The consumer of this build, with the budget that users have.
async fn consumer_with_budget(stage: &Stage, settings: &[(&str, &str)]) -> Lambda {
    let binary = Path::new(env!("CARGO_BIN_EXE_consumer"));
    let lambda = Lambda::start_binary(binary, stage.env(settings)).await;
    lambda.trace_header(SAMPLED);
    lambda
}

fn otlp(endpoint: &str) -> [(&str, &str); 3] {
    [
        ("OTEL_TRACES_EXPORTER", "otlp"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint),
        ("IDEMPOTENCY_KEY", "body:/orderId"),
    ]
}

fn string(value: &str) -> Value {
    json!({"stringValue": value, "dataType": "String", "stringListValues": [], "binaryListValues": []})
}

/// The process span of a message.
fn process_span(exports: &[Export], message_id: &str) -> Span {
    let mut spans = named(exports, "process orders");
    spans.retain(|span| attributes(span)["messaging.message.id"] == text(message_id));
    let [span] = &spans[..] else {
        panic!("not one span of {message_id}: {exports:#?}");
    };
    span.clone()
}

/// Trace and span of each link.
fn links(span: &Span) -> Vec<(String, String)> {
    let links = span.links.iter();
    links
        .map(|link| (hex(&link.trace_id), hex(&link.span_id)))
        .collect()
}

fn status(span: &Span) -> StatusCode {
    span.status.as_ref().unwrap().code()
}

fn is_unsent(line: &Value) -> bool {
    says(line, "spans were not sent")
}

#[tokio::test]
async fn each_message_has_one_process_span() {
    let (stage, collector) = (Stage::set().await, Collector::start().await);
    stage.gateway.script("declined", [Reply::Status(402)]);
    let lambda = consumer(&stage, &otlp(collector.endpoint())).await;
    let event = batch([
        record("m-1", &order("o-1")),
        received("m-2", &order("declined"), 3),
    ]);
    lambda.invoke(event, TIME).await.response();

    let exports = collector.exports();
    assert_eq!(named(&exports, "process").len(), 2);
    let completed = process_span(&exports, "m-1");
    assert_eq!(completed.kind(), SpanKind::Consumer);
    assert_eq!(hex(&completed.trace_id), TRACE);
    assert_eq!(hex(&completed.parent_span_id), SEGMENT);
    assert_eq!(status(&completed), StatusCode::Unset);
    let mut attributes_of = attributes(&completed);
    let request_id = attributes_of.remove("faas.invocation_id").unwrap();
    assert_ne!(request_id, text(""));
    let expected = [
        ("messaging.system", text("aws_sqs")),
        ("messaging.operation.name", text("process")),
        ("messaging.operation.type", text("process")),
        ("messaging.destination.name", text("orders")),
        ("messaging.message.id", text("m-1")),
        ("sqs_once.key", text("charge-orders#o-1")),
        ("sqs_once.receive_count", IntValue(1)),
        ("sqs_once.outcome", text("completed")),
    ];
    let expected = expected.map(|(name, value)| (name.to_owned(), value));
    assert_eq!(attributes_of, expected.into());

    let declined = process_span(&exports, "m-2");
    assert_eq!(status(&declined), StatusCode::Error);
    let attributes = attributes(&declined);
    assert_eq!(attributes["sqs_once.outcome"], text("permanent_failure"));
    assert_eq!(attributes["error.type"], text("permanent_failure"));
    assert_eq!(attributes["sqs_once.receive_count"], IntValue(3));
}

#[tokio::test]
async fn requests_of_the_sdk_are_child_spans() {
    let (stage, collector) = (Stage::set().await, Collector::start().await);
    stage.gateway.script("busy", [Reply::Status(503)]);
    let settings = [&otlp(collector.endpoint())[..], &SINGLE_WRITES].concat();
    let lambda = consumer(&stage, &settings).await;
    let event = batch([record("m-1", &order("o-1")), record("m-2", &order("busy"))]);
    let response = lambda.invoke(event, TIME).await.response();
    assert_eq!(failed(&response), ["m-2"]);

    let exports = collector.exports();
    for message in ["m-1", "m-2"] {
        let parent = process_span(&exports, message);
        let mut requests = named(&exports, "DynamoDB.");
        requests.retain(|request| request.parent_span_id == parent.span_id);
        let names: Vec<_> = requests.iter().map(|request| &request.name).collect();
        // The claim, and the end of the attempt.
        assert_eq!(names, ["DynamoDB.UpdateItem"; 2], "{message}");
        for request in &requests {
            assert_eq!(request.kind(), SpanKind::Client);
            assert_eq!(request.trace_id, parent.trace_id);
            assert!(request.start_time_unix_nano >= parent.start_time_unix_nano);
            assert!(request.end_time_unix_nano <= parent.end_time_unix_nano);
        }
    }
    // Requests for the whole batch.
    let requests = named(&exports, "SQS.");
    let names: Vec<_> = requests.iter().map(|request| &request.name).collect();
    assert_eq!(
        names,
        ["SQS.GetQueueUrl", "SQS.ChangeMessageVisibilityBatch"]
    );
    for request in &requests {
        assert_eq!(hex(&request.trace_id), TRACE);
        assert_eq!(hex(&request.parent_span_id), SEGMENT);
    }
}

#[tokio::test]
async fn shared_request_is_child_of_one_message() {
    let (stage, collector) = (Stage::set().await, Collector::start().await);
    let lambda = consumer(&stage, &otlp(collector.endpoint())).await;
    let event = batch([record("m-1", &order("o-1")), record("m-2", &order("o-2"))]);
    let response = lambda.invoke(event, TIME).await.response();
    assert_eq!(failed(&response), [""; 0]);

    let exports = collector.exports();
    let messages = ["m-1", "m-2"].map(|message| process_span(&exports, message).span_id);
    let claims = named(&exports, "DynamoDB.BatchExecuteStatement").remove(0);
    assert!(messages.contains(&claims.parent_span_id), "{exports:#?}");
    assert_eq!(hex(&claims.trace_id), TRACE);
}

#[tokio::test]
async fn producer_is_linked_and_not_the_parent() {
    let (stage, collector) = (Stage::set().await, Collector::start().await);
    let lambda = consumer(&stage, &otlp(collector.endpoint())).await;
    let mut xray = record("m-xray", &order("o-1"));
    xray["attributes"]["AWSTraceHeader"] =
        json!("Root=1-4bf92f35-77b34da6a3ce929d0e0e4736;Parent=00f067aa0ba902b7;Sampled=0");
    let mut w3c = record("m-w3c", &order("o-2"));
    w3c["messageAttributes"]["traceparent"] =
        string(&format!("00-{PRODUCER_TRACE}-{PRODUCER_SPAN}-01"));
    let none = record("m-none", &order("o-3"));
    lambda
        .invoke(batch([xray, w3c, none]), TIME)
        .await
        .response();

    let exports = collector.exports();
    let producer = (PRODUCER_TRACE.to_owned(), PRODUCER_SPAN.to_owned());
    for (message, linked) in [("m-xray", 1), ("m-w3c", 1), ("m-none", 0)] {
        let span = process_span(&exports, message);
        assert_eq!(links(&span), vec![producer.clone(); linked], "{message}");
        assert_eq!(hex(&span.parent_span_id), SEGMENT, "{message}");
    }
}

#[tokio::test]
async fn spans_hold_no_payload() {
    let (stage, collector) = (Stage::set().await, Collector::start().await);
    stage.gateway.script("busy", [Reply::Status(503)]);
    let settings = [("AWS_LAMBDA_LOG_LEVEL", "TRACE")];
    let settings = [&otlp(collector.endpoint())[..], &settings].concat();
    let lambda = consumer(&stage, &settings).await;
    let event = batch([
        record("m-1", &order("o-1")),
        record("m-2", &order("busy")),
        record("m-3", "{\"orderId\": \"o-3\", \"customerId\": \"c-17\"}"),
    ]);
    lambda.invoke(event, TIME).await.response();

    let exports = collector.exports();
    assert!(named(&exports, "").len() > 6, "{exports:#?}");
    for export in &exports {
        let text = String::from_utf8_lossy(&export.bytes);
        for secret in ["c-17", "99.99", "EUR", "receipt-m"] {
            assert!(!text.contains(secret), "{secret} is in {text}");
        }
        assert!(export.spans.iter().all(|span| span.events.is_empty()));
    }
}

#[tokio::test]
async fn resource_names_function_and_service() {
    let (stage, collector) = (Stage::set().await, Collector::start().await);
    for (service, expected) in [(None, "charge-orders"), (Some("payments"), "payments")] {
        let service = service.map(|name| ("OTEL_SERVICE_NAME", name));
        let added = [("OTEL_RESOURCE_ATTRIBUTES", "team=red")];
        let settings = otlp(collector.endpoint()).into_iter().chain(added);
        let settings: Vec<_> = settings.chain(service).collect();
        let lambda = consumer(&stage, &settings).await;
        lambda.invoke(batch([record("m", &order("o"))]), TIME).await;
        let resource = collector.exports().pop().unwrap().resource;
        assert_eq!(resource["service.name"], text(expected));
        assert_eq!(resource["faas.name"], text("charge-orders"));
        assert_eq!(resource["cloud.platform"], text("aws_lambda"));
        assert_eq!(resource["team"], text("red"));
    }
}

#[tokio::test]
async fn unsampled_invocation_sends_nothing() {
    let (stage, collector) = (Stage::set().await, Collector::start().await);
    let lambda = consumer(&stage, &otlp(collector.endpoint())).await;
    stage.gateway.script("busy", [Reply::Status(503)]);
    let event = batch([record("m-1", &order("o-1")), record("m-2", &order("busy"))]);
    let with_parent = SAMPLED.replace("Sampled=1", "Sampled=0");
    for header in [UNSAMPLED, &with_parent] {
        lambda.trace_header(header);
        lambda.invoke(event.clone(), TIME).await.response();
        assert_eq!(collector.exports().len(), 0, "{header}");
    }
    // The same invocation is sent where it is sampled.
    lambda.trace_header(SAMPLED);
    lambda.invoke(event, TIME).await.response();
    assert_eq!(collector.exports().len(), 1);
}

#[tokio::test]
async fn sampler_can_ignore_the_invocation() {
    let (stage, collector) = (Stage::set().await, Collector::start().await);
    let always = [("OTEL_TRACES_SAMPLER", "always_on")];
    let settings = [&otlp(collector.endpoint())[..], &always].concat();
    let lambda = consumer(&stage, &settings).await;
    lambda.trace_header(UNSAMPLED);
    lambda
        .invoke(batch([record("m-1", &order("o-1"))]), TIME)
        .await;
    let span = process_span(&collector.exports(), "m-1");
    assert_eq!(hex(&span.trace_id), "6a5e47a35c1f0e5d9ab74c8e21d03f65");
    assert_eq!(hex(&span.parent_span_id), "");
}

#[tokio::test]
async fn traces_are_off_by_default() {
    let (stage, collector) = (Stage::set().await, Collector::start().await);
    let endpoint = ("OTEL_EXPORTER_OTLP_ENDPOINT", collector.endpoint());
    for exporter in [None, Some("none"), Some("")] {
        let exporter = exporter.map(|name| ("OTEL_TRACES_EXPORTER", name));
        let settings: Vec<_> = [endpoint].into_iter().chain(exporter).collect();
        let lambda = consumer(&stage, &settings).await;
        let event = batch([record("m-1", &order("o-1"))]);
        lambda.invoke(event, TIME).await.response();
        assert_eq!(collector.exports().len(), 0, "{exporter:?}");
        assert!(
            !lambda
                .output()
                .iter()
                .any(|line| line.contains("traces are off"))
        );
    }
}

#[tokio::test]
async fn xray_daemon_receives_datagrams() {
    let (stage, daemon) = (Stage::set().await, Daemon::start().await);
    let addresses = format!("tcp:127.0.0.1:9 udp:{}", daemon.address());
    for address in [daemon.address(), addresses] {
        let settings = [
            ("OTEL_TRACES_EXPORTER", "xray"),
            ("AWS_XRAY_DAEMON_ADDRESS", &address),
        ];
        let lambda = consumer(&stage, &settings).await;
        let event = batch([record("m-1", &order("o-1"))]);
        lambda.invoke(event, TIME).await.response();
        let export = daemon.receive().await;
        let span = process_span(std::slice::from_ref(&export), "m-1");
        assert_eq!(hex(&span.parent_span_id), SEGMENT);
        assert_ne!(named(&[export], "DynamoDB."), []);
        assert!(daemon.is_idle());
    }
}

#[tokio::test]
async fn large_batch_is_split_over_datagrams() {
    let (stage, daemon) = (Stage::set().await, Daemon::start().await);
    let address = daemon.address();
    let settings = [
        ("OTEL_TRACES_EXPORTER", "xray"),
        ("AWS_XRAY_DAEMON_ADDRESS", &address),
    ];
    let lambda = consumer(&stage, &[&settings[..], &SINGLE_WRITES].concat()).await;
    // The socket holds all datagrams, should the daemon be slow.
    let records = (0..70).map(|n| record(&format!("m-{n}"), &order(&format!("o-{n}"))));
    let receive = async {
        let mut exports = Vec::new();
        while named(&exports, "").len() < 210 {
            exports.push(daemon.receive().await);
        }
        exports
    };
    let (answer, exports) = tokio::join!(lambda.invoke(batch(records), TIME), receive);
    assert_eq!(failed(&answer.response()), [""; 0]);
    assert_eq!(named(&exports, "process").len(), 70);
    assert!(exports.len() > 1, "{} datagrams", exports.len());
    assert!(daemon.is_idle());
    let unsent = lambda
        .output()
        .iter()
        .any(|line| line.contains("spans were not sent"));
    assert!(!unsent);
}

#[tokio::test]
async fn dead_collector_neither_fails_nor_delays() {
    let stage = Stage::set().await;
    // Port 9 refuses. The other collector accepts, and never answers.
    for endpoint in ["http://127.0.0.1:9", &hanging().await] {
        let lambda = consumer_with_budget(&stage, &otlp(endpoint)).await;
        for n in 0..3 {
            let event = batch([record("m-1", &order(&format!("{endpoint} {n}")))]);
            let answer = lambda.invoke(event, Duration::from_secs(5)).await;
            assert_eq!(failed(&answer.response()), [""; 0]);
        }
        // Once, and not for each batch.
        assert_eq!(lambda.logged(1, is_unsent).await.len(), 1);
    }
}

#[tokio::test]
async fn hanging_collector_does_not_pass_the_deadline() {
    let (stage, endpoint) = (Stage::set().await, hanging().await);
    stage.gateway.script("o-1", [Reply::Hang]);
    // The handler is cut off after 3.5 s, and the spans have 5 s.
    let lambda = consumer(&stage, &otlp(&endpoint)).await;
    let event = batch([record("m-1", &order("o-1"))]);
    let answer = lambda.invoke(event, Duration::from_secs(4)).await;
    assert_eq!(failed(&answer.response()), ["m-1"]);
}

#[tokio::test]
async fn collector_is_used_again_after_an_outage() {
    let (stage, collector) = (Stage::set().await, Collector::start().await);
    let lambda = consumer(&stage, &otlp(collector.endpoint())).await;
    for (n, is_out) in [(1, true), (2, true), (3, false), (4, true)] {
        collector.outage(is_out);
        let event = batch([record(&format!("m-{n}"), &order(&format!("o-{n}")))]);
        lambda.invoke(event, TIME).await.response();
    }
    let exports = collector.exports();
    assert_eq!(exports.len(), 1);
    process_span(&exports, "m-3");
    // One line per outage.
    let lines = lambda.logged(2, is_unsent).await;
    assert_eq!(lines.len(), 2);
    for line in lines {
        let error = line["error"].as_str().unwrap();
        assert!(error.ends_with("answered with status 503"), "{error}");
    }
}

#[tokio::test]
async fn unreadable_settings_are_named_in_a_warning() {
    let stage = Stage::set().await;
    let otlp = ("OTEL_TRACES_EXPORTER", "otlp");
    for (settings, named) in [
        (
            vec![("OTEL_TRACES_EXPORTER", "jaeger")],
            "OTEL_TRACES_EXPORTER",
        ),
        (
            vec![
                otlp,
                ("OTEL_EXPORTER_OTLP_ENDPOINT", "https://collector.example"),
            ],
            "OTEL_EXPORTER_OTLP_ENDPOINT",
        ),
        (
            vec![
                otlp,
                ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://me:SECRET@127.0.0.1"),
            ],
            "OTEL_EXPORTER_OTLP_ENDPOINT",
        ),
        (
            vec![
                otlp,
                (
                    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
                    "http://127.0.0.1:9/v1/traces?token=SECRET",
                ),
            ],
            "OTEL_EXPORTER_OTLP_ENDPOINT",
        ),
        (
            vec![otlp, ("OTEL_TRACES_SAMPLER", "xray")],
            "OTEL_TRACES_SAMPLER",
        ),
        (
            vec![
                otlp,
                ("OTEL_TRACES_SAMPLER", "parentbased_traceidratio"),
                ("OTEL_TRACES_SAMPLER_ARG", "0,01"),
            ],
            "OTEL_TRACES_SAMPLER",
        ),
        (
            vec![otlp, ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")],
            "OTEL_EXPORTER_OTLP_PROTOCOL",
        ),
        (
            vec![otlp, ("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "1s")],
            "OTEL_EXPORTER_OTLP_TIMEOUT",
        ),
    ] {
        let lambda = consumer_with_budget(&stage, &settings).await;
        let lines = lambda.logged(1, |line| says(line, "traces are off")).await;
        let error = lines[0]["error"].as_str().unwrap();
        assert!(error.contains(named), "{error}");
        let event = batch([record("m-1", &order("o-1"))]);
        lambda.invoke(event, TIME).await.response();
        assert!(!lambda.output().join("").contains("SECRET"));
    }
}

#[tokio::test]
async fn consumer_without_tracer_warns() {
    if consumer_missing() {
        return;
    }
    let stage = Stage::set().await;
    let lambda = stage.consumer(&[("OTEL_TRACES_EXPORTER", "xray")]).await;
    let lines = lambda.logged(1, |line| says(line, "traces are off")).await;
    let error = lines[0]["error"].as_str().unwrap();
    assert!(error.contains("crate `sqs-once-otel`"), "{error}");
}

//! A collector of traces: OTLP over HTTP, or over UDP as the X-Ray daemon receives it.

use std::{
    collections::HashMap,
    future::pending,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
};

use axum::{
    Router,
    body::Bytes,
    extract::State,
    http::{HeaderMap, StatusCode},
    routing::post,
};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use opentelemetry_proto::tonic::{
    collector::trace::v1::ExportTraceServiceRequest,
    common::v1::{KeyValue, any_value::Value},
    trace::v1::Span,
};
use prost::Message as _;
use support::{PATIENCE, serve};
use tokio::{net::UdpSocket, time::timeout};

/// One request or datagram: OTLP as it arrived, and its spans.
#[derive(Clone, Debug)]
pub(crate) struct Export {
    pub(crate) bytes: Vec<u8>,
    pub(crate) resource: HashMap<String, Value>,
    pub(crate) spans: Vec<Span>,
}

impl Export {
    fn of(bytes: Vec<u8>) -> Self {
        let request = ExportTraceServiceRequest::decode(bytes.as_slice()).unwrap();
        let [resource_spans] = &request.resource_spans[..] else {
            panic!("not one resource: {request:?}");
        };
        let scopes = resource_spans.scope_spans.iter();
        Self {
            resource: values(&resource_spans.resource.as_ref().unwrap().attributes),
            spans: scopes.flat_map(|scope| scope.spans.clone()).collect(),
            bytes,
        }
    }
}

fn values(attributes: &[KeyValue]) -> HashMap<String, Value> {
    let value = |attribute: &KeyValue| {
        let value = attribute.value.as_ref().unwrap().value.clone().unwrap();
        (attribute.key.clone(), value)
    };
    let values: HashMap<_, _> = attributes.iter().map(value).collect();
    assert_eq!(values.len(), attributes.len(), "{attributes:?}");
    values
}

/// Attributes of a span.
pub(crate) fn attributes(span: &Span) -> HashMap<String, Value> {
    values(&span.attributes)
}

pub(crate) fn text(value: &str) -> Value {
    Value::StringValue(value.to_owned())
}

pub(crate) fn hex(id: &[u8]) -> String {
    id.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The spans of all exports, with a name that starts so.
pub(crate) fn named(exports: &[Export], name: &str) -> Vec<Span> {
    let spans = exports.iter().flat_map(|export| &export.spans);
    spans
        .filter(|span| span.name.starts_with(name))
        .cloned()
        .collect()
}

pub(crate) struct Collector {
    desk: Arc<Desk>,
    endpoint: String,
}

#[derive(Default)]
struct Desk {
    exports: Mutex<Vec<Export>>,
    is_out: AtomicBool,
}

impl Collector {
    pub(crate) async fn start() -> Self {
        let desk = Arc::<Desk>::default();
        let traces = post(collect).with_state(desk.clone());
        let endpoint = serve(Router::new().route("/v1/traces", traces)).await;
        let endpoint = format!("http://{endpoint}");
        Self { desk, endpoint }
    }

    pub(crate) fn endpoint(&self) -> &str {
        &self.endpoint
    }

    pub(crate) fn exports(&self) -> Vec<Export> {
        self.desk.exports.lock().unwrap().clone()
    }

    /// Starts or ends an outage: every request is answered with 503.
    pub(crate) fn outage(&self, is_out: bool) {
        self.desk.is_out.store(is_out, SeqCst);
    }
}

async fn collect(State(desk): State<Arc<Desk>>, headers: HeaderMap, body: Bytes) -> StatusCode {
    if desk.is_out.load(SeqCst) {
        return StatusCode::SERVICE_UNAVAILABLE;
    }
    assert_eq!(headers["content-type"], "application/x-protobuf");
    let export = Export::of(body.to_vec());
    desk.exports.lock().unwrap().push(export);
    StatusCode::OK
}

/// A collector that accepts requests and does not respond. Returns its address.
pub(crate) async fn hanging() -> String {
    let hang = Router::new().fallback(async || pending::<()>().await);
    format!("http://{}", serve(hang).await)
}

pub(crate) struct Daemon {
    socket: UdpSocket,
}

impl Daemon {
    pub(crate) async fn start() -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        Self { socket }
    }

    pub(crate) fn address(&self) -> String {
        self.socket.local_addr().unwrap().to_string()
    }

    pub(crate) async fn receive(&self) -> Export {
        let mut datagram = vec![0; 65_536];
        let size = timeout(PATIENCE, self.socket.recv(&mut datagram)).await;
        let size = size.expect("no datagram arrived").unwrap();
        let text = std::str::from_utf8(&datagram[..size]).unwrap();
        let header = "{\"format\":\"json\",\"version\":1}\nT1S";
        let spans = text.strip_prefix(header).unwrap();
        Export::of(BASE64_STANDARD.decode(spans).unwrap())
    }

    /// Returns whether no datagram is waiting.
    pub(crate) fn is_idle(&self) -> bool {
        self.socket.try_recv(&mut [0; 1]).is_err()
    }
}

//! [`Exporter`]: the protocol and the address for sending spans.

use std::{env, error::Error, io, time::Duration};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use http_body_util::Full;
use hyper::{Request, Uri, body::Bytes, header::CONTENT_TYPE, http::uri::Authority};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use opentelemetry::KeyValue;
use opentelemetry_proto::{
    tonic::{
        collector::trace::v1::ExportTraceServiceRequest,
        common::v1::InstrumentationScope,
        resource::v1::Resource,
        trace::v1::{ResourceSpans, ScopeSpans, Span},
    },
    transform::common::tonic::ResourceAttributesWithSchema,
};
use opentelemetry_sdk::{resource::EnvResourceDetector, trace::SpanData};
use prost::Message as _;
use tokio::net::{UdpSocket, lookup_host};

/// Name of the instrumentation scope.
pub(crate) const SCOPE: &str = "sqs-once";

/// A datagram has room for 65,507 bytes, and Base64 makes 4 bytes out of 3.
const MAX_DATAGRAM: usize = 48_000;

/// Header of the X-Ray daemon's protocol, and the prefix of sampled spans in OTLP. AWS does not document
/// them; we took them from AWS's exporter for Python, `OTLPUdpSpanExporter`.
const DAEMON_HEADER: &str = "{\"format\":\"json\",\"version\":1}\nT1S";

/// How long sending spans may delay a response, unless a variable sets it.
const BUDGET: Duration = Duration::from_millis(100);

/// Sends spans.
pub(crate) struct Exporter {
    resource: Resource,
    receiver: Receiver,
    budget: Duration,
}

enum Receiver {
    /// A collector, by OTLP over HTTP.
    Collector {
        client: Box<Client<HttpConnector, Full<Bytes>>>,
        traces: Uri,
    },
    /// The X-Ray daemon, by OTLP over UDP.
    Daemon { address: String },
}

/// The error of a variable that cannot be parsed, so that no spans are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SettingError {
    #[error("OTEL_TRACES_EXPORTER must be `otlp`, `xray` or `none`")]
    Exporter,
    #[error("OTEL_EXPORTER_OTLP_PROTOCOL must be `http/protobuf`")]
    Protocol,
    #[error(
        "OTEL_EXPORTER_OTLP_ENDPOINT must be `http://` and the address of a local collector, without a password or a query: spans are sent without TLS"
    )]
    Endpoint,
    #[error(
        "OTEL_TRACES_SAMPLER must be `always_on`, `always_off` or `traceidratio`, with or without `parentbased_` before it, and OTEL_TRACES_SAMPLER_ARG a number from 0 to 1"
    )]
    Sampler,
    #[error("OTEL_EXPORTER_OTLP_TIMEOUT must be a number of milliseconds")]
    Timeout,
}

/// The error if spans did not reach the collector or the daemon.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ExportError {
    #[error("the request to {0} could not be built: {1}")]
    Request(Uri, hyper::http::Error),
    #[error("{0} is out of reach: {1}")]
    Collector(Uri, String),
    #[error("{0} answered with status {1}")]
    Status(Uri, u16),
    #[error("the X-Ray daemon at {0} is out of reach: {1}")]
    Daemon(String, io::Error),
    #[error("{0} spans are larger than a datagram")]
    TooLarge(usize),
}

impl Exporter {
    /// Reads the environment. `None` if no variable asks for spans.
    pub(crate) fn from_env() -> Result<Option<Self>, SettingError> {
        let receiver = match variable("OTEL_TRACES_EXPORTER").as_deref() {
            None | Some("none") => return Ok(None),
            Some("otlp") => Receiver::collector()?,
            Some("xray") => Receiver::daemon(),
            Some(_) => return Err(SettingError::Exporter),
        };
        check_sampler()?;
        Ok(Some(Self {
            resource: resource(),
            receiver,
            budget: budget()?,
        }))
    }

    /// Returns the time for sending the spans of one invocation.
    pub(crate) fn budget(&self) -> Duration {
        self.budget
    }

    pub(crate) async fn export(&self, spans: Vec<SpanData>) -> Result<(), ExportError> {
        let spans = spans.into_iter().map(Span::from).collect();
        match &self.receiver {
            Receiver::Collector { client, traces } => {
                let body = Bytes::from(self.encode(spans));
                post(client, traces, body).await
            }
            Receiver::Daemon { address } => self.send(spans, address).await,
        }
    }

    fn encode(&self, spans: Vec<Span>) -> Vec<u8> {
        let scope = InstrumentationScope {
            name: SCOPE.to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            ..InstrumentationScope::default()
        };
        let scope_spans = ScopeSpans {
            scope: Some(scope),
            spans,
            ..ScopeSpans::default()
        };
        let resource_spans = ResourceSpans {
            resource: Some(self.resource.clone()),
            scope_spans: vec![scope_spans],
            ..ResourceSpans::default()
        };
        ExportTraceServiceRequest {
            resource_spans: vec![resource_spans],
        }
        .encode_to_vec()
    }

    async fn send(&self, spans: Vec<Span>, address: &str) -> Result<(), ExportError> {
        let error = |error| ExportError::Daemon(address.to_owned(), error);
        let socket = connect(address).await.map_err(error)?;
        let (parts, too_large) = self.split(spans);
        for part in parts {
            let datagram = format!(
                "{DAEMON_HEADER}{}",
                BASE64_STANDARD.encode(self.encode(part))
            );
            socket.send(datagram.as_bytes()).await.map_err(error)?;
        }
        match too_large {
            0 => Ok(()),
            _ => Err(ExportError::TooLarge(too_large)),
        }
    }

    /// Returns the spans of each datagram, and how many spans fit into none.
    fn split(&self, spans: Vec<Span>) -> (Vec<Vec<Span>>, usize) {
        // A tag and its length precede each span, and so they do for the messages around it.
        const AROUND: usize = 8;
        let room = MAX_DATAGRAM.saturating_sub(self.encode(Vec::new()).len() + 3 * AROUND);
        let (mut parts, mut too_large, mut left) = (Vec::<Vec<Span>>::new(), 0, 0);
        for span in spans {
            let size = span.encoded_len() + AROUND;
            if size > room {
                too_large += 1;
                continue;
            }
            match parts.last_mut().filter(|_| size <= left) {
                Some(part) => part.push(span),
                None => {
                    parts.push(vec![span]);
                    left = room;
                }
            }
            left -= size;
        }
        (parts, too_large)
    }
}

impl Receiver {
    fn collector() -> Result<Self, SettingError> {
        let protocol = otlp_variable("PROTOCOL");
        if protocol.is_some_and(|protocol| protocol != "http/protobuf") {
            return Err(SettingError::Protocol);
        }
        let traces = variable("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT").unwrap_or_else(|| {
            let endpoint = variable("OTEL_EXPORTER_OTLP_ENDPOINT");
            let base = endpoint.as_deref().unwrap_or("http://localhost:4318");
            format!("{}/v1/traces", base.trim_end_matches('/'))
        });
        let traces: Uri = traces.parse().map_err(|_invalid| SettingError::Endpoint)?;
        // Errors name the address, so it must not contain a password or a token.
        let has_no_login = |authority: &Authority| !authority.as_str().contains('@');
        let is_plain = traces.authority().is_some_and(has_no_login) && traces.query().is_none();
        if traces.scheme_str() != Some("http") || !is_plain {
            return Err(SettingError::Endpoint);
        }
        let client = Client::builder(TokioExecutor::new()).build(HttpConnector::new());
        let client = Box::new(client);
        Ok(Self::Collector { client, traces })
    }

    /// Reads the variable. It has one address, or one for each protocol: `tcp:127.0.0.1:2000
    /// udp:127.0.0.1:2001`.
    fn daemon() -> Self {
        let variable = variable("AWS_XRAY_DAEMON_ADDRESS");
        let addresses = variable.as_deref().unwrap_or("127.0.0.1:2000");
        let mut each = addresses.split_whitespace();
        let address = each.find_map(|address| address.strip_prefix("udp:"));
        Self::Daemon {
            address: address.unwrap_or(addresses).to_owned(),
        }
    }
}

/// Returns the attributes of this function: those of Lambda, then those from the OpenTelemetry variables.
fn resource() -> Resource {
    let lambda = [
        ("service.name", "AWS_LAMBDA_FUNCTION_NAME"),
        ("cloud.region", "AWS_REGION"),
        ("faas.name", "AWS_LAMBDA_FUNCTION_NAME"),
        ("faas.version", "AWS_LAMBDA_FUNCTION_VERSION"),
        ("faas.instance", "AWS_LAMBDA_LOG_STREAM_NAME"),
        ("aws.log.group.names", "AWS_LAMBDA_LOG_GROUP_NAME"),
    ];
    let from_lambda = lambda
        .into_iter()
        .filter_map(|(name, from)| Some(KeyValue::new(name, variable(from)?)));
    let fixed = [
        KeyValue::new("cloud.provider", "aws"),
        KeyValue::new("cloud.platform", "aws_lambda"),
    ];
    let service = variable("OTEL_SERVICE_NAME");
    let resource = opentelemetry_sdk::Resource::builder_empty()
        .with_attributes(fixed.into_iter().chain(from_lambda))
        .with_detector(Box::new(EnvResourceDetector::new()))
        .with_attributes(service.map(|name| KeyValue::new("service.name", name)))
        .build();
    Resource {
        attributes: ResourceAttributesWithSchema::from(&resource).attributes.0,
        ..Resource::default()
    }
}

/// Checks the sampler's variables. The SDK reads them itself, but records every trace if it cannot parse
/// them.
fn check_sampler() -> Result<(), SettingError> {
    let name = variable("OTEL_TRACES_SAMPLER").unwrap_or_else(|| "always_on".to_owned());
    let ratio = variable("OTEL_TRACES_SAMPLER_ARG").map(|ratio| ratio.parse::<f64>());
    match (name.strip_prefix("parentbased_").unwrap_or(&name), ratio) {
        ("always_on" | "always_off", _) | ("traceidratio", None) => Ok(()),
        ("traceidratio", Some(Ok(ratio))) if (0.0..=1.0).contains(&ratio) => Ok(()),
        _ => Err(SettingError::Sampler),
    }
}

fn budget() -> Result<Duration, SettingError> {
    let Some(text) = otlp_variable("TIMEOUT") else {
        return Ok(BUDGET);
    };
    let millis: u32 = text.parse().map_err(|_invalid| SettingError::Timeout)?;
    Ok(Duration::from_millis(millis.into()))
}

async fn post(
    client: &Client<HttpConnector, Full<Bytes>>,
    traces: &Uri,
    body: Bytes,
) -> Result<(), ExportError> {
    let request = Request::post(traces.clone())
        .header(CONTENT_TYPE, "application/x-protobuf")
        .body(Full::new(body))
        .map_err(|error| ExportError::Request(traces.clone(), error))?;
    let response = client.request(request).await.map_err(|error| {
        let cause = error
            .source()
            .map_or_else(|| error.to_string(), ToString::to_string);
        ExportError::Collector(traces.clone(), cause)
    })?;
    match response.status() {
        status if status.is_success() => Ok(()),
        status => Err(ExportError::Status(traces.clone(), status.as_u16())),
    }
}

async fn connect(address: &str) -> io::Result<UdpSocket> {
    let address = lookup_host(address)
        .await?
        .next()
        .ok_or_else(|| io::Error::other("the name has no address"))?;
    let local = if address.is_ipv4() {
        "0.0.0.0:0"
    } else {
        "[::]:0"
    };
    let socket = UdpSocket::bind(local).await?;
    socket.connect(address).await?;
    Ok(socket)
}

/// Returns the variable for traces, or otherwise the one for all signals.
fn otlp_variable(name: &str) -> Option<String> {
    let of_traces = variable(&format!("OTEL_EXPORTER_OTLP_TRACES_{name}"));
    of_traces.or_else(|| variable(&format!("OTEL_EXPORTER_OTLP_{name}")))
}

/// Returns the value of a variable. An empty variable is treated as not set.
fn variable(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !value.is_empty())
}

//! The SDK's clients of a simulated process: a connector in memory, and the process's own clocks.

use std::{fmt, sync::Arc, time::SystemTime};

use aws_config::{
    BehaviorVersion, Region, SdkConfig, identity::IdentityCache, retry::RetryConfig,
    stalled_stream_protection::StalledStreamProtectionConfig, timeout::TimeoutConfig,
};
use aws_credential_types::{Credentials, provider::SharedCredentialsProvider};
use aws_smithy_async::{
    rt::sleep::{AsyncSleep, SharedAsyncSleep, Sleep},
    time::{SharedTimeSource, TimeSource},
};
use aws_smithy_runtime_api::client::{
    http::{HttpConnector, HttpConnectorFuture, SharedHttpConnector, http_client_fn},
    orchestrator::{HttpRequest, HttpResponse},
    result::ConnectorError,
};
use aws_smithy_types::body::SdkBody;
use serde_json::Value;
use sqs_once::{internal::system::sleep, protocol::Timestamp};

use crate::{
    ledger::{Event, Worker},
    world::{CLIENT_TIMEOUT, Member, World},
};

const ENDPOINT: &str = "http://service";

/// Returns the configuration of clients whose requests `answer` answers. The SDK repeats none.
pub fn config(
    answer: impl Fn(Request) -> HttpConnectorFuture + Send + Sync + 'static,
) -> SdkConfig {
    let wire = SharedHttpConnector::new(Wire(answer));
    let credentials = Credentials::new("test", "test", None, None, "tests");
    let timeouts = TimeoutConfig::builder().operation_attempt_timeout(CLIENT_TIMEOUT);
    SdkConfig::builder()
        .behavior_version(BehaviorVersion::latest())
        .region(Region::from_static("eu-central-1"))
        .endpoint_url(ENDPOINT)
        .credentials_provider(SharedCredentialsProvider::new(credentials))
        .identity_cache(IdentityCache::no_cache())
        .retry_config(RetryConfig::disabled())
        .timeout_config(timeouts.build())
        .stalled_stream_protection(StalledStreamProtectionConfig::disabled())
        .sleep_impl(SharedAsyncSleep::new(Clock))
        .time_source(SharedTimeSource::new(Clock))
        .http_client(http_client_fn(move |_, _| wire.clone()))
        .build()
}

/// Returns the configuration of a process's clients of a service that `serve` serves.
pub fn service(
    world: &Arc<World>,
    member: &Member,
    fault: fn(Worker) -> Event,
    serve: fn(&World, &Request) -> Answer,
) -> SdkConfig {
    let (world, member) = (Arc::clone(world), member.clone());
    config(move |request| {
        let (world, member) = (Arc::clone(&world), member.clone());
        HttpConnectorFuture::new(async move {
            let served = move |world: &World| serve(world, &request);
            let answer = world.exchange(&member, CLIENT_TIMEOUT, served).await;
            if answer.as_ref().is_none_or(|(status, _)| *status != 200) {
                world.note(fault(member.worker));
            }
            match answer {
                Some(answer) => response(answer),
                None => Err(ConnectorError::timeout("no answer".into())),
            }
        })
    })
}

/// The status and the body of a response.
pub type Answer = (u16, Vec<u8>);

/// A request of the SDK.
pub struct Request {
    /// Of a service that speaks JSON.
    pub operation: String,
    pub method: String,
    pub path: String,
    pub body: Vec<u8>,
}

impl Request {
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }
}

/// Returns a response with this status and body.
pub fn response((status, body): (u16, impl Into<SdkBody>)) -> Result<HttpResponse, ConnectorError> {
    let status = status
        .try_into()
        .map_err(|error| ConnectorError::other(Box::from(format!("{error}")), None))?;
    let mut response = HttpResponse::new(status, body.into());
    response.headers_mut().insert("etag", "\"1\"");
    Ok(response)
}

/// The clocks of the process that runs.
#[derive(Debug)]
struct Clock;

impl AsyncSleep for Clock {
    fn sleep(&self, duration: std::time::Duration) -> Sleep {
        Sleep::new(sleep(duration))
    }
}

impl TimeSource for Clock {
    fn now(&self) -> SystemTime {
        let since = std::time::Duration::from_millis(Timestamp::now().as_millis());
        SystemTime::UNIX_EPOCH + since
    }
}

struct Wire<F>(F);

impl<F> fmt::Debug for Wire<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Wire")
    }
}

impl<F> HttpConnector for Wire<F>
where
    F: Fn(Request) -> HttpConnectorFuture + Send + Sync,
{
    fn call(&self, request: HttpRequest) -> HttpConnectorFuture {
        let target = request.headers().get("x-amz-target").unwrap_or_default();
        let (_, operation) = target.split_once('.').unwrap_or_default();
        let uri = request.uri().trim_start_matches(ENDPOINT);
        let (path, _) = uri.split_once('?').unwrap_or((uri, ""));
        (self.0)(Request {
            operation: operation.to_owned(),
            method: request.method().to_owned(),
            path: path.to_owned(),
            body: request.body().bytes().unwrap_or_default().to_vec(),
        })
    }
}

//! The SDK's client over a wire of the test's own: no socket, no retries, no timeouts.
//!
//! The rest is the SDK's own code, and none of it waits. A call is polled up to the wire, and after
//! the response to its end.

use std::fmt;

use aws_sdk_dynamodb::{
    Client, Config,
    config::{
        BehaviorVersion, Credentials, Region, StalledStreamProtectionConfig,
        http::{HttpRequest, HttpResponse},
        retry::RetryConfig,
        timeout::TimeoutConfig,
    },
};
use aws_smithy_runtime_api::client::http::{
    HttpConnector, HttpConnectorFuture, SharedHttpConnector, http_client_fn,
};
use serde_json::Value;

/// A client whose requests are answered by `answer`.
pub fn client(
    answer: impl Fn(HttpRequest) -> HttpConnectorFuture + Clone + Send + Sync + 'static,
) -> Client {
    let wire = SharedHttpConnector::new(Wire(answer));
    let config = Config::builder()
        .behavior_version(BehaviorVersion::latest())
        .region(Region::from_static("eu-central-1"))
        .endpoint_url("http://table")
        .credentials_provider(Credentials::new("test", "test", None, None, "tests"))
        .retry_config(RetryConfig::disabled())
        .timeout_config(TimeoutConfig::disabled())
        .stalled_stream_protection(StalledStreamProtectionConfig::disabled())
        .http_client(http_client_fn(move |_, _| wire.clone()));
    Client::from_conf(config.build())
}

struct Wire<F>(F);

impl<F> fmt::Debug for Wire<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Wire")
    }
}

impl<F> HttpConnector for Wire<F>
where
    F: Fn(HttpRequest) -> HttpConnectorFuture + Send + Sync,
{
    fn call(&self, request: HttpRequest) -> HttpConnectorFuture {
        (self.0)(request)
    }
}

/// A response in DynamoDB's format: an error is a 400.
pub fn response(answer: Result<&Value, &Value>) -> HttpResponse {
    let (status, body) = match answer {
        Ok(body) => (200, body),
        Err(body) => (400, body),
    };
    HttpResponse::new(
        status.try_into().expect("a status"),
        body.to_string().into(),
    )
}

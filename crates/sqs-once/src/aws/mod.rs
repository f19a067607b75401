//! The AWS SDK, set up for Lambda.

mod connections;
#[cfg(test)]
mod tests;

use std::time::Duration;

use aws_config::{BehaviorVersion, SdkConfig, retry::RetryConfig, timeout::TimeoutConfig};
use aws_sdk_dynamodb::config::{SharedHttpClient, StalledStreamProtectionConfig};
use aws_smithy_http_client::{
    Builder, Connector,
    tls::{self, rustls_provider::CryptoMode},
};
use aws_smithy_runtime_api::client::http::{
    HttpClient as _, HttpConnectorSettings, SharedHttpConnector, http_client_fn,
};

use connections::Watched;

use crate::protocol::Timestamp;

/// Time for a connection: the endpoint is in the same Region, and a lost first packet is sent again after
/// a second.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// Time for a request on a connection that has rested.
const RESTED_TIMEOUT: Duration = Duration::from_secs(1);

/// Region, credentials and endpoint from the environment, as the SDK defines them; one
/// HTTP client for the life of the process; timeouts and retries for a caller that has
/// seconds, not minutes.
///
/// | bound | value | why |
/// | --- | --- | --- |
/// | connecting | 2 s | the endpoint is in the same Region, and the first packet may be lost once |
/// | a request on a connection that has rested for 5 s | 1 s | the connection may have died while Lambda had the process frozen |
/// | one operation | 5 s | a slow table answers; and never past the invocation's deadline, which the caller sees to |
/// | attempts | 4 | with 50 ms to 500 ms between them, jittered; the store repeats its writes itself |
///
/// A connection rests from its last answer to its next request, by the wall clock. After one rested
/// connection failed, the client uses none of the others that have rested, and connects anew.
///
/// The SDK's own defaults have no timeout at all, and wait a second before the first retry. A client of
/// your own works as well. It then decides how long a request may take.
///
/// ```no_run
/// # async fn run() {
/// let config = sqs_once::aws::config().await;
/// let client = aws_sdk_dynamodb::Client::new(&config);
/// # }
/// ```
pub async fn config() -> SdkConfig {
    aws_config::defaults(BehaviorVersion::latest())
        .http_client(http_client())
        .timeout_config(timeouts())
        .retry_config(retries())
        // For bodies that stream; ours are a few hundred bytes, under the operation's timeout.
        .stalled_stream_protection(StalledStreamProtectionConfig::disabled())
        .load()
        .await
}

fn timeouts() -> TimeoutConfig {
    TimeoutConfig::builder()
        .connect_timeout(CONNECT_TIMEOUT)
        .operation_timeout(Duration::from_secs(5))
        .build()
}

fn retries() -> RetryConfig {
    RetryConfig::standard()
        .with_max_attempts(4)
        .with_initial_backoff(Duration::from_millis(50))
        .with_max_backoff(Duration::from_millis(500))
}

/// An HTTP client with one connector for all clients that keep the timeouts of [`config`]. The SDK's own
/// HTTP client parses the root certificates for each client, and once more for the first request.
fn http_client() -> SharedHttpClient {
    let provider = tls::Provider::Rustls(CryptoMode::Ring);
    let own = HttpConnectorSettings::builder()
        .connect_timeout(CONNECT_TIMEOUT)
        .build();
    let connector = Connector::builder()
        .connector_settings(own)
        .tls_provider(provider.clone())
        .build();
    let connector = SharedHttpConnector::new(connector);
    let shared = SharedHttpConnector::new(Watched::new(connector, RESTED_TIMEOUT, Timestamp::now));
    let of_the_sdk = Builder::new().tls_provider(provider).build_https();
    http_client_fn(move |settings, components| {
        let timeouts = (settings.connect_timeout(), settings.read_timeout());
        if timeouts == (Some(CONNECT_TIMEOUT), None) {
            shared.clone()
        } else {
            of_the_sdk.http_connector(settings, components)
        }
    })
}

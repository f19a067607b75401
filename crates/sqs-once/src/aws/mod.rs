//! The AWS SDK, set up for Lambda.

mod connections;
pub(crate) mod explain;
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

/// Time limit for connecting. The endpoint is in the same Region, and TCP resends a lost first packet after a second.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// Time limit for a request on a connection that has rested.
const RESTED_TIMEOUT: Duration = Duration::from_secs(1);

/// Returns an SDK configuration for Lambda. Region, credentials and endpoint come from the environment, and one HTTP client
/// lives as long as the process. Timeouts and retries suit a caller that has seconds, not minutes.
///
/// | bound | value | why |
/// | --- | --- | --- |
/// | connecting | 2 s | the endpoint is in the same Region, and the first packet may be lost once |
/// | a request on a connection that was idle for 5 s | 1 s | the connection may have died while Lambda had the process frozen |
/// | one operation | 5 s | a slow table still responds in this time; the caller also stops at the invocation's deadline |
/// | attempts | 4 | with random waits of up to 50, 100 and 200 ms between them; the modes also retry their writes |
///
/// A connection is idle from its last response to its next request, in wall-clock time. After one idle
/// connection has failed, the client drops the others that were idle for 5 s, and opens new ones.
///
/// By default, the SDK limits only the time to connect, and waits up to a second before the first retry. You can
/// also pass a client that you configured yourself, which then decides how long a request may take.
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
        // This protection is for bodies that stream. Ours are a few hundred bytes, and the operation's
        // timeout covers them.
        .stalled_stream_protection(StalledStreamProtectionConfig::disabled())
        .load()
        .await
}

/// The SDK's default time limit for connecting.
const CONNECT_TIMEOUT_OF_SDK: Duration = Duration::from_millis(3100);

/// Completes a configuration with what [`config`] has and the SDK's defaults lack: time limits, quick retries, and the HTTP
/// client that drops rested connections. Keeps whatever the configuration itself sets.
pub(crate) fn completed(config: SdkConfig) -> SdkConfig {
    let limits = timeouts();
    let set = config
        .timeout_config()
        .cloned()
        .unwrap_or_else(TimeoutConfig::disabled);
    let connect = set
        .connect_timeout()
        .filter(|time| *time != CONNECT_TIMEOUT_OF_SDK);
    let is_limited = set
        .operation_timeout()
        .or(set.operation_attempt_timeout())
        .is_some();
    let mut completed_limits = set.to_builder();
    completed_limits.set_connect_timeout(connect.or(limits.connect_timeout()));
    if !is_limited {
        completed_limits.set_operation_timeout(limits.operation_timeout());
    }
    let retries_are_defaults = config
        .retry_config()
        .is_none_or(|set| *set == RetryConfig::standard());
    let has_protection = config.stalled_stream_protection().is_some();
    let has_client = config.http_client().is_some();
    let is_thawed = !has_client && connect.is_none() && set.read_timeout().is_none();
    let mut completed = config.into_builder();
    completed.set_timeout_config(Some(completed_limits.build()));
    if retries_are_defaults {
        completed.set_retry_config(Some(retries()));
    }
    if !has_client {
        completed.set_http_client(Some(http_client()));
    }
    if !has_protection {
        let off = StalledStreamProtectionConfig::disabled();
        completed.set_stalled_stream_protection(Some(off));
    }
    if !is_thawed {
        tracing::warn!(
            "the SDK configuration has its own HTTP client, connect timeout or read timeout, so it keeps connections that died while Lambda had the process frozen, and a message may wait for one until its time limit: leave these out, or take those of `sqs_once::aws::config()`"
        );
    }
    completed.build()
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

/// Returns an HTTP client whose clients all share one connector, as long as they keep the timeouts of
/// [`config`]. The SDK's HTTP client would parse the root certificates for each client, and once more for the
/// first request.
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

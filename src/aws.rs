//! The AWS SDK, set up for Lambda.

use std::time::Duration;

use aws_config::{BehaviorVersion, SdkConfig, retry::RetryConfig, timeout::TimeoutConfig};
use aws_sdk_dynamodb::config::StalledStreamProtectionConfig;
use aws_smithy_http_client::tls::{self, rustls_provider::CryptoMode};

/// Region, credentials and endpoint from the environment, as the SDK defines them; one
/// HTTP client for the life of the process; timeouts and retries for a caller that has
/// seconds, not minutes.
///
/// | bound | value | why |
/// | --- | --- | --- |
/// | connecting | 1 s | the endpoint is in the same region |
/// | one attempt | 1 s | DynamoDB answers in milliseconds or not at all, and a connection that died while Lambda had the process frozen is found out soon |
/// | attempts | 4 | with 50 ms to 500 ms between them, jittered |
/// | one operation | 5 s | and never past the invocation's deadline, which the caller sees to |
///
/// The SDK's own defaults have no timeout at all, and wait a second before the first retry.
///
/// ```no_run
/// # async fn run() {
/// let config = sqs_once::aws::config().await;
/// let client = aws_sdk_dynamodb::Client::new(&config);
/// # }
/// ```
pub async fn config() -> SdkConfig {
    let timeouts = TimeoutConfig::builder()
        .connect_timeout(Duration::from_secs(1))
        .operation_attempt_timeout(Duration::from_secs(1))
        .operation_timeout(Duration::from_secs(5))
        .build();
    let retries = RetryConfig::standard()
        .with_max_attempts(4)
        .with_initial_backoff(Duration::from_millis(50))
        .with_max_backoff(Duration::from_millis(500));
    let http = aws_smithy_http_client::Builder::new()
        .tls_provider(tls::Provider::Rustls(CryptoMode::Ring))
        .build_https();
    aws_config::defaults(BehaviorVersion::latest())
        .http_client(http)
        .timeout_config(timeouts)
        .retry_config(retries)
        // For bodies that stream; ours are a few hundred bytes, under the attempt's timeout.
        .stalled_stream_protection(StalledStreamProtectionConfig::disabled())
        .load()
        .await
}

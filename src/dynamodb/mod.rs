//! Words of DynamoDB that records, handlers and modes share: items, writes, refused conditions,
//! and explanations of errors.

pub(crate) mod empty_response;
pub(crate) mod explain;
pub(crate) mod item;
pub(crate) mod refused;
pub(crate) mod write;

use aws_sdk_dynamodb::{Client, config::retry::RetryConfig};

/// Returns the same client without the SDK's retries, for requests that the caller repeats until its
/// deadline. They use none of the retry quota that the client's other requests share.
pub(crate) fn without_retries(client: &Client) -> Client {
    let config = client.config().to_builder();
    Client::from_conf(config.retry_config(RetryConfig::disabled()).build())
}

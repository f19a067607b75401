//! DynamoDB vocabulary shared by stores, handlers and modes: items, writes, failed condition
//! checks, and explanations of errors.

pub(crate) mod empty_response;
pub(crate) mod explain;
pub(crate) mod item;
pub(crate) mod refused;
pub(crate) mod write;

use aws_sdk_dynamodb::{Client, config::retry::RetryConfig};

/// Returns the same client without the SDK's retries.
///
/// For requests that the caller retries until a deadline. Their retries use none of the SDK's retry
/// quota, which the client's other requests share.
pub(crate) fn without_retries(client: &Client) -> Client {
    let config = client.config().to_builder();
    Client::from_conf(config.retry_config(RetryConfig::disabled()).build())
}

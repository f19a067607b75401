//! Records and business writes in DynamoDB.

pub(crate) mod condition_failed;
pub(crate) mod done;
pub(crate) mod empty_response;
pub(crate) mod explain;
pub(crate) mod item;
pub(crate) mod outbox;
pub(crate) mod store;
pub(crate) mod write;
pub(crate) mod writes;

use aws_sdk_dynamodb::{Client, config::retry::RetryConfig};

/// Returns the same client without the SDK's retries.
///
/// Use it for requests that the caller retries until a deadline. These requests must not use up the SDK's retry quota,
/// which all requests of a client share.
pub(crate) fn without_retries(client: &Client) -> Client {
    let config = client.config().to_builder();
    Client::from_conf(config.retry_config(RetryConfig::disabled()).build())
}

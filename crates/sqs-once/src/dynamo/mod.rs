//! Records and business writes in DynamoDB.

pub mod claimed;
pub mod commit;
pub mod condition_failed;
pub mod done;
pub mod empty_response;
pub mod explain;
pub mod item;
pub mod not_written;
pub mod outbox;
pub mod store;
pub mod transactional;
pub mod write;

use aws_sdk_dynamodb::{Client, config::retry::RetryConfig};

/// Returns the same client without the SDK's retries.
///
/// It is for requests that the caller retries until a deadline. They must not use up the SDK's retry quota,
/// which all requests of a client share.
pub(crate) fn without_retries(client: &Client) -> Client {
    let config = client.config().to_builder();
    Client::from_conf(config.retry_config(RetryConfig::disabled()).build())
}

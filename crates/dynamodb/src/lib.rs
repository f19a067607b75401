//! Records and business writes in DynamoDB, for [sqs-once](https://docs.rs/sqs-once).
//!
//! A function depends on the crate `sqs-once`, which has the public types of this one under its own name.
//!
//! | module | contents |
//! | --- | --- |
//! | [`store`], [`transactional`] | [`DynamoStore`](store::DynamoStore): records in a table, alone, in batches or in a transaction |
//! | [`inbox`], [`on_item`] | modes without a claim |
//! | [`done`], [`write`](mod@write), [`refused`], [`item`] | answers of handlers: writes, and conditions that failed |
//! | [`plans`], [`planned`] | writes that a dry run records in place of sending them |
//! | [`outbox`] | items of published events |
//! | [`explain`] | errors of the SDK in words |

#![cfg_attr(docsrs, feature(doc_cfg))]
#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

mod claimed;
mod commit;
mod declined;
pub mod done;
mod empty_response;
pub mod explain;
pub mod inbox;
pub mod item;
pub mod on_item;
pub mod outbox;
pub mod planned;
pub mod plans;
pub mod refused;
pub mod store;
pub mod transactional;
pub mod write;

use aws_sdk_dynamodb::{Client, config::retry::RetryConfig};

/// Returns the same client without the SDK's retries.
///
/// For requests that the caller retries until a deadline. Their retries use none of the SDK's retry
/// quota, which the client's other requests share.
pub(crate) fn without_retries(client: &Client) -> Client {
    let config = client.config().to_builder();
    Client::from_conf(config.retry_config(RetryConfig::disabled()).build())
}

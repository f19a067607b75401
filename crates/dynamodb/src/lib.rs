//! Records and business writes in DynamoDB, for [sqs-once](https://docs.rs/sqs-once).
//!
//! Functions depend on the crate `sqs-once`, which exports the public types of this crate.
//!
//! | module | contents |
//! | --- | --- |
//! | [`store`], [`transactional`] | [`DynamoStore`](store::DynamoStore): records in a table, alone, in batches or in a transaction |
//! | [`inbox`], [`item_mode`] | modes without a claim |
//! | [`done`], [`write`](mod@write), [`condition_failed`], [`item`] | return values of handlers: writes, and conditions that failed |
//! | [`plans`], [`planned`] | writes that a dry run records and does not send |
//! | [`outbox`] | items of published events |
//! | [`explain`] | errors of the SDK in words |

#![cfg_attr(docsrs, feature(doc_cfg))]
#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

mod claimed;
mod commit;
pub mod condition_failed;
pub mod done;
mod empty_response;
pub mod explain;
pub mod inbox;
pub mod item;
pub mod item_mode;
mod not_written;
pub mod outbox;
pub mod planned;
pub mod plans;
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

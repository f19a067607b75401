//! The relay of [sqs-once](https://docs.rs/sqs-once): a Lambda function that sends published events. They come
//! from the stream of a DynamoDB table or, once a minute, from a PostgreSQL table.
//!
//! The binary `relay` of this package is that function for DynamoDB. For PostgreSQL, build it around your pool, as
//! `examples/relay_postgres.rs` does.
//!
//! | module | task |
//! | --- | --- |
//! | `targets` | finds the queue, topic or event bus for an event's name |
//! | `stream` | turns stream records into groups of events |
//! | `send` | one call to SQS, SNS or EventBridge, and its result for each event |
//! | `rounds` | sends groups in rounds |
//! | `relay` | sends a batch, and reports the first event that was not sent |
//! | `postgres` | sends the rows of a table, on a schedule |
//! | `lambda` | both relays as `tower` services |
//! | `settings` | turns environment variables into a relay |
//! | `report` | the log line of a batch |
//!
//! Handlers publish events with [`Done::publish`](sqs_once::Done::publish) and `InTransaction::publish`.
//! [Outbox](https://github.com/sqs-once/sqs-once/blob/main/docs/outbox.md) has the guarantees, the deployment and the settings.
//!
//! If an event matches no rule of its bus, EventBridge confirms it and drops it. The relay counts such an event as sent.

#![cfg_attr(docsrs, feature(doc_cfg))]
// Tests may read the clock. The library reads it only in its own module `system`.
#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

mod lambda;
#[cfg(feature = "postgres")]
mod postgres;
mod progress;
mod relay;
mod report;
mod rounds;
mod send;
mod settings;
mod stream;
mod targets;

pub use lambda::{RelayError, run};
#[cfg(feature = "postgres")]
pub use postgres::{PostgresRelay, Relayed};
pub use relay::Relay;
pub use settings::RelaySettings;
pub use targets::Targets;

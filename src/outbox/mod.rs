//! The relay: a Lambda function that sends published events, from the stream of a DynamoDB table or from
//! a PostgreSQL table.
//!
//! | module | task |
//! | --- | --- |
//! | `targets` | from the name of an event to a queue, a topic or an event bus |
//! | `stream` | records of the stream into groups of events |
//! | `send` | one call to SQS, SNS or EventBridge, and its result for each event |
//! | `relay` | sends groups in rounds; of a batch, reports the first event that was not sent |
//! | `postgres` | sends the rows of a table, by schedule and right after a commit |
//! | `lambda` | both relays as `tower` services |
//!
//! Events are published by [`Done::publish`](crate::Done::publish) and `InTransaction::publish`.
//! `docs/outbox.md` has the guarantees, the deployment and the settings.
//!
//! Create an event bus before the relay sends to it. EventBridge confirms events to a bus that does not exist, and
//! drops them. It also drops an event that matches no rule of its bus. The relay takes both for sent.

mod lambda;
#[cfg(feature = "postgres")]
mod postgres;
mod relay;
mod send;
mod stream;
mod targets;

pub use lambda::{RelayError, run};
#[cfg(feature = "postgres")]
pub use postgres::{PostgresRelay, Relayed};
pub use relay::Relay;
pub use targets::Targets;

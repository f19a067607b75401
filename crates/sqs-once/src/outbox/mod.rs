//! The relay: a Lambda function that sends published events, from the stream of a DynamoDB table or from
//! a PostgreSQL table.
//!
//! | module | task |
//! | --- | --- |
//! | `targets` | from the name of an event to a queue, a topic or an event bus |
//! | `check` | asks at the start whether the targets exist |
//! | `stream` | records of the stream into groups of events |
//! | `send` | one call to SQS, SNS or EventBridge, and its result for each event |
//! | `relay` | sends groups in rounds; of a batch, reports the first event that was not sent |
//! | `postgres` | sends the rows of a table, by schedule and right after a commit |
//! | `lambda` | both relays as `tower` services |
//!
//! Events are published by [`Done::publish`](crate::Done::publish) and `InTransaction::publish`.
//! `docs/outbox.md` has the guarantees, the deployment and the settings.
//!
//! EventBridge confirms an event that matches no rule of its bus, and drops it. The relay takes it for sent.

mod check;
mod lambda;
#[cfg(feature = "postgres")]
mod postgres;
mod relay;
mod send;
mod stream;
mod targets;

pub use check::MissingTargets;
pub use lambda::{RelayError, run};
#[cfg(feature = "postgres")]
pub use postgres::{PostgresRelay, Relayed};
pub use relay::Relay;
pub use targets::Targets;

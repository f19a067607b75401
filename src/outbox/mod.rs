//! The relay: a Lambda function on the stream of the outbox table, which sends published events.
//!
//! | module | task |
//! | --- | --- |
//! | `targets` | from the name of an event to a queue, a topic or an event bus |
//! | `stream` | records of the stream into groups of events |
//! | `send` | one call to SQS, SNS or EventBridge, and its result for each event |
//! | `relay` | sends a batch in rounds, and reports the first event that was not sent |
//! | `lambda` | the relay as a `tower` service |
//!
//! Events are published by [`Done::publish`](crate::Done::publish). `docs/outbox.md` has the
//! guarantees, the deployment and the settings.

mod lambda;
mod relay;
mod send;
mod stream;
mod targets;

pub use lambda::{RelayError, run};
pub use relay::Relay;
pub use targets::Targets;

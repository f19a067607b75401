//! The outbox: events that commit with a record, the relay that sends them, and the way from a
//! producer through two consumers.
//!
//! dynoxide has the stream of a table, and neither emulator has an event source mapping that reads
//! batch item failures (MiniStack's takes every response for a success). So a poller of the tests'
//! own reads the stream and invokes the relay, as the event source mapping of Lambda does.

#![allow(
    clippy::unwrap_used,
    reason = "in a test, what cannot be set up is a failure"
)]

#[path = "outbox/end_to_end.rs"]
mod end_to_end;
#[path = "outbox/in_postgres_relay.rs"]
mod in_postgres_relay;
#[path = "outbox/publish.rs"]
mod publish;
#[path = "outbox/relay.rs"]
mod relay;
#[path = "outbox/services.rs"]
mod services;
#[path = "outbox/stream.rs"]
mod stream;

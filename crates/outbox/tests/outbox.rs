//! The outbox: events that commit with a record, and the relays that send them. The simulation has a consumer, the
//! stream and the relay together; here is the way from a consumer in PostgreSQL to the target.

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

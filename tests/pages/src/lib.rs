//! The Rust blocks of the READMEs and of `docs/`, as doctests.

#[doc = include_str!("../../../README.md")]
mod readme {}

#[doc = include_str!("../../../crates/sqs-once/README.md")]
mod readme_of_sqs_once {}

#[doc = include_str!("../../../crates/postgres/README.md")]
mod readme_of_postgres {}

#[doc = include_str!("../../../crates/outbox/README.md")]
mod readme_of_outbox {}

#[doc = include_str!("../../../docs/keys.md")]
mod keys {}

#[doc = include_str!("../../../docs/effects-in-dynamodb.md")]
mod effects_in_dynamodb {}

#[doc = include_str!("../../../docs/effects-in-postgresql.md")]
mod effects_in_postgresql {}

#[doc = include_str!("../../../docs/handlers.md")]
mod handlers {}

#[doc = include_str!("../../../docs/telemetry.md")]
mod metrics {}

#[doc = include_str!("../../../docs/outbox.md")]
mod outbox {}

//! Properties that hold for random records, keys, payloads and batches.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "tests fail by panicking"
)]

#[path = "properties/batches.rs"]
mod batches;
#[path = "properties/decisions.rs"]
mod decisions;
#[path = "properties/identities.rs"]
mod identities;
#[path = "properties/isolation.rs"]
mod isolation;

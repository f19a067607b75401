//! WriteSet in DynamoDB happen exactly once, in each mode, under every fault. The real SDK talks
//! HTTP to a DynamoDB that fails on purpose.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "tests fail by panicking"
)]
#![allow(
    unreachable_pub,
    reason = "what the files share is public, as in tests/support"
)]

#[path = "modes/world.rs"]
mod world;

#[path = "modes/batches.rs"]
mod batches;
#[path = "modes/crashes.rs"]
mod crashes;
#[path = "modes/failures.rs"]
mod failures;
#[path = "modes/item_mode.rs"]
mod item_mode;
#[path = "modes/refusals.rs"]
mod refusals;
#[path = "modes/requests.rs"]
mod requests;

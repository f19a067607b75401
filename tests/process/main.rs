//! The release binaries behind a Runtime API: killed, frozen, cut off and overloaded.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "tests fail by panicking"
)]
#![allow(
    unreachable_pub,
    reason = "what the files share is public, as in tests/support"
)]

mod edges;
mod inbox;
mod metrics;
mod queries;
mod runtime_api;
mod security;
mod smoke;

//! The consumer and the examples as they are deployed, on an emulator, and the template.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "tests fail by panicking"
)]
#![allow(
    unreachable_pub,
    reason = "what the files share is public, as in tests/support"
)]

mod cdk;
mod examples;
mod integration;
mod operations;
mod parameters;
mod producers;
mod safety;
mod template;

//! The library in this process: operations, batches and messages, without a network.

#![recursion_limit = "256"]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "tests fail by panicking"
)]
#![allow(
    unreachable_pub,
    reason = "what the files share is public, as in tests/support"
)]

mod aws_numbers;
mod batch;
mod bodies;
mod breaker;
mod call_keys;
mod dry_run;
mod envelopes;
mod events;
mod fuzz_seeds;
mod isolation;
mod layers;
mod llms;
mod mistakes;
mod observer;
mod once;
mod payloads;
mod programs;
mod promises;
mod reconcile;
mod torture;
mod wall_clock;

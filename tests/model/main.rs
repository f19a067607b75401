//! Models: the promises in every state of crashing processes, under every order of events up to a bound, and
//! properties of the rules for random input.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "tests fail by panicking"
)]
#![allow(
    unreachable_pub,
    reason = "what the files share is public, as in tests/support"
)]

mod processes;
mod properties;
mod schedules;
mod waiting;

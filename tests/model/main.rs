//! The explorer: the promises under every order of events up to a bound. Also properties for random input.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "tests fail by panicking"
)]
#![allow(
    unreachable_pub,
    reason = "what the files share is public, as in tests/support"
)]

mod properties;
mod schedules;

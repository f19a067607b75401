//! What must not get out, who may do what, and what comes in with bad intent.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "tests fail by panicking"
)]

#[path = "security/gossip.rs"]
mod gossip;
#[path = "security/hostile.rs"]
mod hostile;
#[path = "security/logs.rs"]
mod logs;
mod support;
#[path = "security/template.rs"]
mod template;

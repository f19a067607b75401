//! Secrets in logs, the template, and hostile input.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "tests fail by panicking"
)]

#[path = "security/hostile.rs"]
mod hostile;
#[path = "security/library_logs.rs"]
mod library_logs;
#[path = "security/logs.rs"]
mod logs;
#[path = "security/operations.rs"]
mod operations;
#[path = "security/other_tools.rs"]
mod other_tools;
#[path = "security/parameters.rs"]
mod parameters;
#[path = "security/quoting_server.rs"]
mod quoting_server;
#[path = "security/secrets.rs"]
mod secrets;
#[path = "security/template.rs"]
mod template;

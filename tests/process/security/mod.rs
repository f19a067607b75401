//! Secrets in logs, and hostile input.

mod body_memory;
mod hostile;
mod library_logs;
mod logs;
mod quoting_server;
mod secrets;

//! Secrets in logs, and hostile input.

mod body_memory;
mod hostile;
mod logs;
mod quoting_server;
mod secrets;
mod writes;

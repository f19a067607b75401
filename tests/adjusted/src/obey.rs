//! A handler that does what its message says: panics, sleeps or blocks. It has a span and a metric of its own.

use std::time::Duration;

use serde::Deserialize;
use sqs_once::{Attempt, Failure, telemetry::Unit};

#[derive(Deserialize)]
pub(crate) struct Order {
    #[serde(default)]
    panic: bool,
    /// A text for the panic's message.
    #[serde(default)]
    secret: String,
    #[serde(default)]
    sleep_ms: u64,
    #[serde(default)]
    block_ms: u64,
    /// As `block_ms`, on a thread for blocking code.
    #[serde(default)]
    spawn_blocking_ms: u64,
}

/// Returns whether it was informed of an earlier attempt.
#[tracing::instrument(skip_all, fields(receive_count = "of the handler", tenant = "acme"))]
pub(crate) async fn obey(order: Order, attempt: Attempt) -> Result<bool, Failure> {
    tracing::info!("obeying");
    attempt.metric("Obeyed", Unit::Count, 1);
    std::thread::sleep(Duration::from_millis(order.block_ms));
    let blocking = Duration::from_millis(order.spawn_blocking_ms);
    tokio::task::spawn_blocking(move || std::thread::sleep(blocking)).await?;
    tokio::time::sleep(Duration::from_millis(order.sleep_ms)).await;
    assert!(!order.panic, "scripted panic: {}", order.secret);
    Ok(attempt.prior().is_some())
}

//! A function whose messages are traced: see `traces.rs`.
//!
//! It sends the traces to the collector at `OTEL_EXPORTER_OTLP_ENDPOINT`, by default `http://localhost:4318`, where a Lambda
//! layer with a collector listens. `OTEL_SERVICE_NAME` names the service.
//!
//! ```sh
//! cargo lambda build --release --arm64 --package opentelemetry-example
//! ```

mod traces;

use serde_json::Value;
use sqs_once::{Attempt, Consumer, Failure, handler_fn};

async fn handle(_: Value, attempt: Attempt) -> Result<(), Failure> {
    tracing::info!(key = %attempt.key(), "put your own effect here");
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), lambda_runtime::Error> {
    traces::run(Consumer::from_env(handler_fn(handle))).await
}

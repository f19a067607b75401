//! The Lambda function that is deployed: charges each order of an SQS queue once.
//!
//! To run your own business, replace `payments`, `order` and `gateway`; this file stays.

mod payments;

use std::process::ExitCode;

use sqs_once::{Settings, telemetry};

#[tokio::main]
async fn main() -> ExitCode {
    telemetry::init();
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(%error, "could not start");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Result<(), lambda_runtime::Error> {
    let consumer = payments::consumer(Settings::from_env()).await?;
    sqs_once::run(consumer).await
}

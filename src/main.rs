//! The Lambda function that is deployed: charges each order of an SQS queue once.
//!
//! To run your own business, replace `payments`, `order` and `gateway`; this file stays.

mod payments;

use std::process::ExitCode;

use sqs_once::Settings;
#[cfg(not(feature = "opentelemetry"))]
use sqs_once::telemetry::init;
#[cfg(feature = "opentelemetry")]
use sqs_once_otel::init;

fn main() -> ExitCode {
    init();
    match run(Settings::from_env()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(%error, "could not start");
            ExitCode::FAILURE
        }
    }
}

fn run(mut settings: Settings) -> Result<(), lambda_runtime::Error> {
    settings.runtime()?.block_on(async {
        let consumer = payments::consumer(settings).await?;
        sqs_once::run(consumer).await
    })
}

//! The Lambda function that sends events from an outbox in DynamoDB: see `docs/outbox.md`.

use std::process::ExitCode;

use sqs_once::{Settings, telemetry};
use sqs_once_outbox::Relay;

fn main() -> ExitCode {
    telemetry::init();
    match run(Settings::from_env()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(%error, "could not start");
            ExitCode::FAILURE
        }
    }
}

fn run(mut settings: Settings) -> Result<(), lambda_runtime::Error> {
    settings
        .runtime()?
        .block_on(async { sqs_once_outbox::run(Relay::from_settings(settings).await?).await })
}

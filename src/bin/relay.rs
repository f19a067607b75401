//! The Lambda function that sends the events of an outbox table: see `docs/outbox.md`.

use std::process::ExitCode;

use sqs_once::{Settings, outbox, telemetry};

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
        .block_on(async { outbox::run(settings.relay().await?).await })
}

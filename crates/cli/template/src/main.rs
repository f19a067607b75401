//! The Lambda function: processes each message of its queue once.

mod handler;

#[cfg(test)]
mod end_to_end;

use std::{error::Error, process::ExitCode};

use sqs_once::{Settings, telemetry};

fn main() -> ExitCode {
    telemetry::init();
    if let Err(error) = run(Settings::from_env()) {
        tracing::error!(%error, "could not start");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

fn run(mut settings: Settings) -> Result<(), Box<dyn Error + Send + Sync>> {
    let runtime = settings.runtime()?;
    runtime.block_on(async { sqs_once::run(handler::consumer(settings).await?).await })
}

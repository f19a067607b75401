//! The Lambda function that sends the events of an outbox: see `docs/outbox.md`.

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
    settings.runtime()?.block_on(async {
        #[cfg(feature = "postgres")]
        if std::env::var_os("IDEMPOTENCY_POSTGRES_URL").is_some_and(|url| !url.is_empty()) {
            return outbox::run(settings.postgres_relay().await?).await;
        }
        outbox::run(settings.relay().await?).await
    })
}

//! The Lambda function that we deploy: charges each order of an SQS queue once.
//!
//! To build your own function, replace `charge`, `order`, `gateway` and `look_up`, and keep `main` and `run`.

mod charge;
mod gateway;
mod look_up;
mod order;

use std::process::ExitCode;

use sqs_once::{Settings, telemetry};

use charge::Charge;

fn main() -> ExitCode {
    telemetry::init();
    if let Err(error) = run(Settings::from_env()) {
        tracing::error!(%error, "could not start");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

fn run(mut settings: Settings) -> Result<(), lambda_runtime::Error> {
    let charge = Charge::read(&mut settings);
    settings.runtime()?.block_on(async {
        // A charge is an effect outside DynamoDB, so its mode is `once`: it claims before the handler, and
        // records the result afterwards.
        let consumer = settings.once(charge.clone()).await?;
        let charge = charge?;
        let quarantine = charge.quarantine();
        sqs_once::run(consumer.look_up(charge, quarantine)).await
    })
}

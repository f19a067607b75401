//! The Lambda that ships: charges each order of an SQS queue once.
//!
//! Put your own business in place of `payments`, `order` and `gateway`; the rest stays.

mod gateway;
mod order;
mod payments;
mod settings;

use std::{process::ExitCode, time::Duration};

use aws_sdk_dynamodb::Client;
use sqs_once::{Consumer, Once, aws, sqs::Visibility, store::DynamoStore, telemetry};

use crate::{gateway::Gateway, payments::Payments, settings::Settings};

/// Lambda's init phase ends after 10 seconds; nothing here may use them up.
const PRIME_TIMEOUT: Duration = Duration::from_secs(2);

#[tokio::main]
async fn main() -> ExitCode {
    telemetry::init();
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(%error, "the consumer can't run");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Result<(), lambda_runtime::Error> {
    let settings = Settings::from_env()?;
    let gateway = Gateway::new(settings.gateway, settings.gateway_timeout)?;
    let config = aws::config().await;
    let store = DynamoStore::new(Client::new(&config), settings.table).layout(settings.layout);
    if settings.prime
        && let Err(error) = store.prime(PRIME_TIMEOUT).await
    {
        tracing::warn!(%error, "started all the same: messages go back to the queue until it answers");
    }
    let once = Once::new(store)
        .retention(settings.retention)
        .after_failure(settings.after_failure)
        .lease_margin(settings.lease_margin);
    let visibility = settings.visibility.then(|| {
        Visibility::new(aws_sdk_sqs::Client::new(&config))
            .backoff(settings.backoff_base, settings.backoff_cap)
            .record_retention(settings.retention)
            .dead_letter(settings.dead_letter)
    });
    let consumer = Consumer::new(once, settings.namespace, Payments::new(gateway))
        .key(settings.key)
        .fingerprint(settings.fingerprint)
        .concurrency(settings.concurrency)
        .conflict_wait(settings.conflict_wait)
        .deadline_reserve(settings.reserve)
        .assumed_timeout(settings.lease_fallback)
        .min_time_to_start(settings.gateway_timeout)
        .fail_when_store_unavailable(settings.fail_when_store_unavailable)
        .fifo_after_permanent(settings.fifo_after_permanent)
        .visibility(visibility);
    sqs_once::run(consumer).await
}

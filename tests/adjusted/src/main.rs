//! The shipped sample, with values that its builder methods take and no setting does. Tests and the benchmark set
//! them here, so that kills, conflicts and outages fit into seconds. The `TEST_` variables exist in this program alone.
//! With `TEST_OBEY=true` the messages control the handler, and nothing is charged.

// The tests of the sample's modules belong to the sample.
#![cfg(not(test))]

#[path = "../../../src/charge.rs"]
mod charge;
#[path = "../../../src/gateway.rs"]
mod gateway;
#[path = "../../../src/look_up.rs"]
mod look_up;
mod obey;
#[path = "../../../src/order.rs"]
mod order;

use sqs_once::{Settings, handler_fn, internal::positive, protocol::CrashWaits};

fn main() -> Result<(), lambda_runtime::Error> {
    sqs_once::telemetry::init();
    let mut settings = Settings::from_env();
    settings.runtime()?.block_on(run(settings))
}

async fn run(mut settings: Settings) -> Result<(), lambda_runtime::Error> {
    if settings.optional("TEST_OBEY", "false", str::parse)? {
        return sqs_once::run(settings.once(Ok(handler_fn(obey::obey))).await?).await;
    }
    let reserve = settings.duration("TEST_DEADLINE_RESERVE", "500ms")?;
    let margin = settings.duration("TEST_LEASE_MARGIN", "1s")?;
    let waits = settings.changed("TEST_CRASH_WAIT", CrashWaits::default(), |_, text| {
        Ok(CrashWaits::new([positive(text)?; 3]))
    })?;
    let warm_up = settings.optional("TEST_PRIME", "true", str::parse)?;
    let charge = charge::Charge::read(&mut settings);
    let consumer = settings
        .warm_up(warm_up)
        .once(charge.clone())
        .await?
        .deadline_reserve(reserve)
        .map_mode(|once| once.lease_margin(margin).crash_waits(waits));
    let charge = charge?;
    let quarantine = charge.quarantine();
    sqs_once::run(consumer.look_up(charge, quarantine)).await
}

//! Your own errors, which know what kind of failure they are. `?` works as usual, with `thiserror` and `anyhow`.

use std::time::Duration;

use serde::Deserialize;
use sqs_once::{Attempt, Classify, Consumer, Failure, handler_fn};

#[derive(Debug, thiserror::Error)]
pub(crate) enum ChargeError {
    #[error("the amount is 0")]
    NoAmount,
    #[error("the card was declined")]
    Declined,
    #[error("the gateway is busy")]
    Busy(Duration),
    #[error(transparent)]
    Other(#[from] anyhow::Error),
}

impl Classify for ChargeError {
    fn classify(self) -> Failure {
        match self {
            Self::NoAmount => Failure::permanent_no_effect(self),
            Self::Declined => Failure::declined(self),
            Self::Busy(wait) => Failure::retryable(self).retry_after(wait),
            Self::Other(error) => Failure::retryable(error),
        }
    }
}

#[derive(Deserialize)]
pub(crate) struct Order {
    cents: u64,
    card: String,
}

pub(crate) async fn charge(order: Order, _: Attempt) -> Result<u64, ChargeError> {
    if order.cents == 0 {
        return Err(ChargeError::NoAmount);
    }
    answer(&order.card)?;
    Ok(order.cents)
}

/// Returns the gateway's answer.
fn answer(card: &str) -> Result<(), ChargeError> {
    match card {
        "expired" => Err(ChargeError::Declined),
        "busy" => Err(ChargeError::Busy(Duration::from_secs(60))),
        card => Ok(checksum(card).map(drop)?),
    }
}

fn checksum(card: &str) -> anyhow::Result<u32> {
    let digits = card.chars().map(|digit| digit.to_digit(10));
    let sum: Option<u32> = digits.sum();
    sum.ok_or_else(|| anyhow::anyhow!("the card's number has other signs than digits"))
}

#[tokio::main]
async fn main() -> Result<(), lambda_runtime::Error> {
    sqs_once::telemetry::init();
    sqs_once::run(Consumer::from_env(handler_fn(charge)).await?).await
}

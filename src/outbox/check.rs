//! Asks the services at the start whether the targets exist.

use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::timeout;

use super::{Relay, send::Sent};

/// Longest time of a check. Lambda gives the start of a function 10 seconds.
const MAX_TIME: Duration = Duration::from_secs(2);

/// Codes by which SQS, SNS and EventBridge say that they have no such queue, topic or event bus.
const MISSING: [&str; 6] = [
    "AWS.SimpleQueueService.NonExistentQueue",
    "QueueDoesNotExist",
    "InvalidAddress",
    "NotFound",
    "NotFoundException",
    "ResourceNotFoundException",
];

/// Targets of a relay that do not exist.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no such queue, topic or event bus: {0}; create it, or correct the setting")]
pub struct MissingTargets(String);

impl Relay {
    /// Checks that every target and the dead-letter queue exist.
    ///
    /// EventBridge confirms events to an event bus that does not exist, and drops them. A relay that sends
    /// them anyway loses them. `Settings::relay` and `Settings::postgres_relay` make this check.
    ///
    /// A check that is denied, throttled or not answered in 2 seconds proves nothing. All such checks
    /// are logged as one warning.
    ///
    /// # Errors
    ///
    /// The targets that do not exist.
    pub async fn check_targets(&self) -> Result<(), MissingTargets> {
        let targets: Vec<_> = self.targets.all().chain([&self.dead_letters]).collect();
        let check = |target| timeout(MAX_TIME, self.sender.find(target));
        let found = join_all(targets.iter().copied().map(check)).await;
        let (mut missing, mut unchecked) = (Vec::new(), Vec::new());
        for (target, found) in targets.into_iter().zip(found) {
            let address = target.address();
            match found {
                Ok(Ok(()) | Err(Sent::Confirmed)) => {}
                Ok(Err(Sent::Refused(code))) => missing.push(format!("{address} ({code})")),
                Ok(Err(Sent::Failed(code))) if MISSING.contains(&&*code) => {
                    missing.push(format!("{address} ({code})"));
                }
                Ok(Err(Sent::Failed(why) | Sent::Silent(why))) => {
                    unchecked.push(format!("{address} ({why})"));
                }
                Err(_elapsed) => unchecked.push(format!("{address} (no answer in time)")),
            }
        }
        if !unchecked.is_empty() {
            tracing::warn!(
                targets = unchecked.join(", "),
                "could not check whether these targets exist: allow sqs:GetQueueAttributes, \
                 sns:GetTopicAttributes and events:DescribeEventBus"
            );
        }
        if missing.is_empty() {
            Ok(())
        } else {
            Err(MissingTargets(missing.join(", ")))
        }
    }
}

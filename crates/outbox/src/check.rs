//! Checks at start whether the targets exist.

use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::timeout;

use crate::{Relay, send::Sent};

/// Longest time of a check. Lambda gives the start of a function 10 seconds.
const MAX_TIME: Duration = Duration::from_secs(2);

/// Codes with which SQS, SNS and EventBridge say that a queue, topic or event bus does not exist.
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
    /// them anyway loses them. `Relay::from_settings` makes this check.
    ///
    /// A check proves nothing if it is denied or throttled, or gets no response in 2 seconds. Nor does it if
    /// the missing target is in a different account than the dead-letter queue. All of these become one
    /// warning in the log.
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
            let (is_missing, why) = match found {
                Ok(Ok(()) | Err(Sent::Confirmed)) => continue,
                Ok(Err(Sent::Refused(code))) => (true, code),
                Ok(Err(Sent::Failed(code))) => (MISSING.contains(&&*code), code),
                Ok(Err(Sent::Silent(why))) => (false, why),
                Err(_elapsed) => (false, "no answer in time".to_owned()),
            };
            let line = format!("{} ({why})", target.address());
            // If a different account only lets us send to a target, the service may say that the target is
            // missing.
            if is_missing && target.account() == self.dead_letters.account() {
                missing.push(line);
            } else {
                unchecked.push(line);
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

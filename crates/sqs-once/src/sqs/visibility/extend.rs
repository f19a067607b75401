//! Extends the visibility timeouts of the messages of a batch while their handlers run.

use std::{convert::Infallible, pin::pin, time::Duration};

use futures_util::future::select;
use tokio::time::{Instant, sleep_until};

use super::{BUDGET, Bound, LONGEST, Visibility, delay::TimeoutChange};
use crate::sqs::{batch::Batch, message::Message};

/// Part of the timeout after which it is extended. The rest leaves time for two more tries.
const EXTENDED_AFTER: u32 = 3;

impl Visibility {
    /// Awaits `run` and extends the visibility timeouts of the batch meanwhile. This includes messages that
    /// have a result, because SQS gets no response for them before the batch ends.
    pub(in crate::sqs) async fn while_extended(
        &self,
        batch: &Batch,
        run: impl Future<Output = ()>,
    ) {
        let Some(timeout) = self.heartbeat else {
            return run.await;
        };
        // A longer one is cut anyway, and no clock can count centuries.
        let timeout = timeout.min(Self::LONGEST_BACKOFF);
        let _ended = select(pin!(run), pin!(self.keep_extending(batch, timeout))).await;
    }

    async fn keep_extending(&self, batch: &Batch, timeout: Duration) -> Infallible {
        let received = Instant::now();
        let mut next = received;
        loop {
            next = Instant::now().max(next + timeout / EXTENDED_AFTER);
            sleep_until(next).await;
            let seconds = seconds(timeout, received.elapsed());
            self.extend(batch.messages(), seconds).await;
        }
    }

    async fn extend(&self, messages: &[Message], seconds: u16) {
        if seconds == 0 {
            return;
        }
        let changes = messages.iter().filter_map(|message| {
            let receipt = message.receipt()?;
            Some(TimeoutChange {
                message_id: message.id(),
                queue_arn: receipt.queue_arn,
                receipt_handle: receipt.handle,
                seconds,
            })
        });
        let bound = Bound::WhileRunning(Instant::now() + BUDGET);
        let outcome = "messages that run may be received again";
        self.change_queues(changes.collect(), bound, outcome).await;
    }
}

/// Returns the next timeout in whole seconds. SQS hides a message for at most 12 hours from its receive.
fn seconds(timeout: Duration, since_receive: Duration) -> u16 {
    let left = Duration::from_secs(LONGEST.into()).saturating_sub(since_receive);
    u16::try_from(timeout.min(left).as_secs()).unwrap_or(LONGEST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeout_never_exceeds_the_limit_of_sqs() {
        let hours = |hours: u64| Duration::from_secs(hours * 3600);
        assert_eq!(seconds(Duration::from_secs(30), Duration::ZERO), 30);
        assert_eq!(seconds(hours(24), Duration::ZERO), LONGEST);
        assert_eq!(seconds(hours(1), hours(11)), 1800);
        assert_eq!(seconds(hours(1), hours(12)), 0);
    }
}

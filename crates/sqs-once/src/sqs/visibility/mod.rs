//! [`Visibility`]: sets the visibility timeouts of failed messages.

mod attributes;
mod change;
mod dead_letter;
mod delay;
mod extend;
mod queues;
#[cfg(test)]
mod survival;

use std::{collections::HashSet, sync::Arc, time::Duration};

use aws_sdk_sqs::Client;
use tokio::time::Instant;

use attributes::Attributes;
use dead_letter::DeadLetters;
use delay::{Backoff, LONGEST, Rule};
use queues::{Bound, Queues};

use super::{message::Message, message_outcome::MessageOutcome};
use crate::{protocol::Timestamp, system};

/// For all of a batch, however much of the invocation is left: one attempt that goes unanswered
/// ([`crate::aws::config`]) and another.
const BUDGET: Duration = Duration::from_secs(2);

/// Sets the visibility timeout of each failed message, in place of the queue's one timeout for
/// all.
///
/// | outcome | visibility timeout |
/// | --- | --- |
/// | conflict | until the other lease ends, and one to three seconds more; a back-off if it has ended |
/// | retryable failure, panic, out of time, lease lost, completion unrecorded, commit unknown, store unavailable | a back-off, see [`backoff`](Self::backoff) |
/// | permanent failure, now or before; no key, key reused | where the queue has a dead-letter queue, 0 for three receives; then a back-off, on FIFO queues of 30 seconds at most |
/// | not started | 0 after the first receive, then a back-off |
/// | behind a failure in its FIFO group | that of the failed message |
///
/// This is best effort: after the outcomes are recorded, within two seconds and before the
/// batch must be answered. A timeout that can't be changed is logged, and the message comes back
/// after the queue's own visibility timeout. An endpoint that can't be reached, or gives no answer
/// within a second and a half, is not asked again for five minutes.
///
/// The first permanent failure makes the consumer read the queue's redrive policy and retention, and
/// again after an hour; no response to Lambda waits for them. A queue without a dead-letter queue is
/// warned of once.
///
/// The role needs `sqs:GetQueueUrl` and `sqs:GetQueueAttributes`, used once or twice per queue, and
/// `sqs:ChangeMessageVisibility`. A queue of another account must allow these; one of another region
/// is called there.
///
/// ```no_run
/// use sqs_once::{Consumer, Handler, Mode, sqs::Visibility};
///
/// # async fn run<M: Mode<H::Output>, H: Handler>(consumer: Consumer<M, H>) {
/// let sqs = aws_sdk_sqs::Client::new(&sqs_once::aws::config().await);
/// let consumer = consumer.visibility(Visibility::new(sqs));
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Visibility {
    queues: Arc<Queues>,
    attributes: Arc<Attributes>,
    dead_letter: bool,
    backoff: Backoff,
    jitter: fn(u64) -> u64,
    /// Visibility timeout of messages whose handlers run.
    heartbeat: Option<Duration>,
}

impl Visibility {
    /// The longest back-off. SQS hides a message for 12 hours from its receive at most; half an
    /// hour of them is left for the batch.
    pub const LONGEST_BACKOFF: Duration = Duration::from_secs(LONGEST as u64);

    /// With a back-off from 10 seconds to 15 minutes, and [direct dead-lettering](Self::dead_letter).
    #[must_use]
    pub fn new(client: Client) -> Self {
        let queues = Arc::new(Queues::new(client));
        Self {
            attributes: Arc::new(Attributes::new(Arc::clone(&queues))),
            queues,
            dead_letter: true,
            backoff: Backoff::default(),
            jitter: system::random_up_to,
            heartbeat: None,
        }
    }

    /// Sets the visibility timeout of the messages of a batch after each third of `timeout`, until the
    /// batch ends. `None`, the default, leaves them the queue's visibility timeout, which must be longer
    /// than a third of `timeout`. Messages with a result are extended too, since SQS gets the response
    /// for all messages at the end.
    ///
    /// For handlers that run longer than the queue's visibility timeout; see
    /// [`Once::heartbeat`](crate::Once::heartbeat) for their leases. SQS hides a message for at most
    /// 12 hours from its receive, and the consumer stops half an hour before. SQS counts whole
    /// seconds. Messages of a short batch cost no request.
    ///
    /// An extension that fails is logged. SQS may then deliver the message again, and the claim of
    /// that delivery is a conflict while the lease lives.
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use sqs_once::sqs::Visibility;
    /// # fn visibility(client: aws_sdk_sqs::Client) -> Visibility {
    /// Visibility::new(client).heartbeat(Duration::from_secs(30))
    /// # }
    /// ```
    #[must_use]
    pub fn heartbeat(self, timeout: impl Into<Option<Duration>>) -> Self {
        Self {
            heartbeat: timeout.into(),
            ..self
        }
    }

    /// Waits after a retryable failure: `base` after the first receive, twice that after the
    /// second, and so on up to `cap` ([`LONGEST_BACKOFF`](Self::LONGEST_BACKOFF) at most). Half
    /// of each wait is fixed, and the other half is jitter. SQS counts whole seconds.
    ///
    /// Half the sum of the waits between the receives (the queue's `maxReceiveCount`, less one)
    /// is an outage that every message survives.
    #[must_use]
    pub fn backoff(self, base: Duration, cap: Duration) -> Self {
        Self {
            backoff: Backoff { base, cap },
            ..self
        }
    }

    /// How long records are kept (see [`Once::retention`](crate::Once::retention)): a queue that
    /// keeps its messages longer is warned of once.
    ///
    /// ```no_run
    /// # use sqs_once::sqs::Visibility;
    /// # fn visibility(client: aws_sdk_sqs::Client) -> Visibility {
    /// let days = |days: u64| std::time::Duration::from_secs(days * 24 * 3600);
    /// Visibility::new(client).record_retention(days(20))
    /// # }
    /// ```
    #[must_use]
    pub fn record_retention(self, record_retention: Duration) -> Self {
        let attributes = Attributes::new(Arc::clone(&self.queues));
        Self {
            attributes: Arc::new(attributes.record_retention(record_retention)),
            ..self
        }
    }

    /// Switches direct dead-lettering on, the default, or off. A copy of each message that failed
    /// permanently goes to its queue's dead-letter queue, and the message is acknowledged once SQS
    /// confirmed the copy. Off, the message is received up to the queue's `maxReceiveCount`, at the cost
    /// of a write unit each time.
    ///
    /// The copy has the body and the message attributes unchanged, and these attributes more:
    ///
    /// | attribute | value |
    /// | --- | --- |
    /// | `SqsOnceReason` | the outcome: `permanent_failure`, `failed_before`, `key_reused` or `invalid` |
    /// | `SqsOnceError` | the first 1,024 bytes of the error |
    /// | `SqsOnceKey` | the idempotency key, where there is one; its SHA-256 where it has characters that SQS rejects |
    /// | `SqsOnceDeduplicationId` | on FIFO queues, the message's own deduplication id; the copy's is the id of the message, as where SQS moves it |
    ///
    /// A message is reported as failed as with `false` where no copy can be made: the queue has no
    /// dead-letter queue, or that is not known; the role may not send to it; the copy would have
    /// more than ten attributes or 1 MiB; there was no time. The metric `DeadLettersNotSent` counts
    /// these messages, and a process warns once of a missing queue or permission. A message that took
    /// its outcome from another of its batch is reported as failed too. A crash between copy and
    /// acknowledgement leaves two copies in the dead-letter queue, never none.
    ///
    /// The role needs `sqs:GetQueueUrl` and `sqs:SendMessage` on the dead-letter queue. To move
    /// copies back, `StartMessageMoveTask` and the console need the source queue named as
    /// destination.
    ///
    /// ```no_run
    /// # use sqs_once::sqs::Visibility;
    /// # fn visibility(client: aws_sdk_sqs::Client) -> Visibility {
    /// Visibility::new(client).dead_letter(false)
    /// # }
    /// ```
    #[must_use]
    pub fn dead_letter(self, dead_letter: bool) -> Self {
        Self {
            dead_letter,
            ..self
        }
    }

    /// Another source of chance, for tests: a number up to the one given.
    #[must_use]
    pub fn jitter(self, jitter: fn(u64) -> u64) -> Self {
        Self { jitter, ..self }
    }

    /// A message failed permanently: its queue's attributes will be needed.
    pub(super) fn expect(&self, message: &Message) {
        if let Some(receipt) = message.receipt() {
            self.attributes.read_in_background(receipt.queue_arn);
        }
    }

    /// Sends messages that failed permanently to their dead-letter queue, if that is switched on, and marks
    /// those whose copies are confirmed. Returns the number of the others. Leaves half the time until
    /// `answer`.
    pub(super) async fn dead_letter_all(
        &self,
        batch: &mut [MessageOutcome<'_>],
        answer: Instant,
    ) -> usize {
        if !self.dead_letter {
            return 0;
        }
        let now = Instant::now();
        let dead_letters = DeadLetters {
            queues: &self.queues,
            attributes: &self.attributes,
            until: now + BUDGET.min(answer.saturating_duration_since(now) / 2),
        };
        // Where the mode records no failures, there is nothing to record first.
        let failed = |of: &&MessageOutcome<'_>| of.processed.is_recorded_failure(true);
        let failed: Vec<_> = batch.iter().filter(failed).collect();
        let ids: HashSet<_> = failed.iter().map(|of| of.message_id).collect();
        let confirmed = dead_letters.send(&failed).await;
        let not_sent = ids.len() - confirmed.len();
        for of in batch {
            of.dead_lettered = confirmed.contains(of.message.id());
        }
        not_sent
    }

    /// Changes the visibility timeouts of a batch, but for messages in the dead-letter queue, as far as
    /// there is time until `answer`.
    pub(super) async fn apply(
        &self,
        batch: &[MessageOutcome<'_>],
        now: Timestamp,
        answer: Instant,
    ) {
        let rule = Rule {
            now,
            backoff: self.backoff,
            jitter: self.jitter,
        };
        let changes = rule.plan(batch, |arn| self.attributes.may_have_dead_letter_queue(arn));
        let bound = Bound::Until(answer.min(Instant::now() + BUDGET));
        let outcome = "failed messages come back after the queue's visibility timeout";
        self.change_queues(changes, bound, outcome).await;
    }
}

//! [`Visibility`]: gives a failed message a visibility timeout, or copies it to the dead-letter queue.

mod attributes;
mod change;
mod dead_letter;
pub(super) mod delay;
mod entries;
mod queues;
#[cfg(test)]
mod survival;

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use aws_sdk_sqs::Client;

use attributes::Attributes;
use change::Changes;
use dead_letter::DeadLetters;
use delay::{Backoff, LONGEST, Rule};
use queues::{Bound, Queues};

use super::{message::Message, message_outcome::MessageOutcome};
use crate::{
    flawed::flawed,
    protocol::Timestamp,
    system::{self, Instant},
};

/// Time for all calls of a batch, however much of the invocation is left. It is enough for a first attempt that gets no
/// response ([`crate::aws::config`]) and a retry.
const BUDGET: Duration = Duration::from_secs(2);

/// Sets the visibility timeout of each failed message according to its outcome. Without this, the queue's own
/// timeout applies to all of them. The table of timeouts is in
/// [docs/operations.md](https://github.com/sqs-once/sqs-once/blob/main/docs/operations.md).
///
/// This is best effort: the consumer does it after the outcomes are recorded, for at most two seconds, and before the
/// response is due. If a timeout can't be changed, the consumer logs that, and the message comes back after the queue's own
/// visibility timeout. If an endpoint can't be reached or does not respond within a second and a half, the consumer does
/// not call it again for five minutes of wall-clock time.
///
/// At the first failure, the consumer reads the queue's redrive policy, retention and visibility timeout. It reads
/// them again at the first failure after an hour. The response to Lambda does not wait for this. The consumer warns once if
/// a queue has no dead-letter queue, or if its messages don't survive an outage of twelve hours.
///
/// The role needs `sqs:ChangeMessageVisibility`, and also `sqs:GetQueueUrl` and `sqs:GetQueueAttributes`, which the consumer rarely
/// calls. A queue in another account must allow them. For a queue in another Region, the consumer calls SQS there.
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
    attributes: Arc<Attributes>,
    dead_letter: bool,
    backoff: Backoff,
    jitter: fn(u64) -> u64,
}

impl Visibility {
    /// The longest backoff. SQS hides a message for at most 12 hours from its receive, and we leave half an
    /// hour of that for the time before the invocation. The consumer also subtracts the time since the
    /// invocation's start.
    pub const LONGEST_BACKOFF: Duration = Duration::from_secs(LONGEST as u64);

    /// Sets visibility timeouts with a backoff from 10 seconds to 15 minutes, and with [direct
    /// dead-lettering](Self::dead_letter).
    #[must_use]
    pub fn new(client: Client) -> Self {
        Self {
            attributes: Arc::new(Attributes::new(Queues::new(client), None)),
            dead_letter: true,
            backoff: Backoff::default(),
            jitter: system::random_up_to,
        }
    }

    /// Sets the waits after a retryable failure: `base` after the first receive, twice that after the second,
    /// and so on up to `cap` ([`LONGEST_BACKOFF`](Self::LONGEST_BACKOFF) at most). Half of each wait is
    /// fixed, and the other half is jitter. SQS counts whole seconds.
    ///
    /// Every message survives an outage that lasts half as long as the sum of its waits. The wait after the first receive
    /// doesn't count, because a message that isn't started then is visible again at once. The number of waits is one less
    /// than the queue's `maxReceiveCount`.
    #[must_use]
    pub fn backoff(self, base: Duration, cap: Duration) -> Self {
        Self {
            backoff: Backoff { base, cap },
            ..self
        }
    }

    /// Returns the longest wait of these settings, or of the defaults if there are none.
    pub(super) fn longest_backoff(visibility: Option<&Self>) -> Duration {
        let backoff = visibility.map(|visibility| visibility.backoff);
        backoff.unwrap_or_default().cap
    }

    /// Sets how long records are kept (see [`Once::retention`](crate::Once::retention)), so that the consumer
    /// can warn about a queue that keeps its messages longer.
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
        Self {
            attributes: Arc::new(self.attributes.with_record_retention(record_retention)),
            ..self
        }
    }

    /// Switches direct dead-lettering on (the default) or off. When it is on, the consumer copies each message that failed
    /// permanently to its queue's dead-letter queue, and acknowledges the message as soon as SQS has confirmed the copy. When it is
    /// off, SQS delivers the message until the queue's `maxReceiveCount` is reached, and each receive costs a write unit.
    ///
    /// The copy has the same body and message attributes, plus these attributes:
    ///
    /// | attribute | value |
    /// | --- | --- |
    /// | `SqsOnceReason` | the outcome: `permanent_failure`, `failed_before`, `key_reused`, `invalid` or `crashed` |
    /// | `SqsOnceError` | the first 1,024 bytes of the error |
    /// | `SqsOnceKey` | the idempotency key, if there is one; its SHA-256 if it has characters that SQS rejects |
    /// | `SqsOnceDeduplicationId` | on FIFO queues, the message's deduplication id; the copy's own is the message id, as when SQS moves a message |
    ///
    /// If the copy would have more than ten attributes or more bytes than the queue takes, the consumer shortens
    /// `SqsOnceError`. If that isn't enough, it leaves out the error, then the key, then the reason.
    ///
    /// If the consumer can't make a copy, it reports the message as failed, as with `false`. This happens if:
    /// - the queue has no dead-letter queue, or we don't know it;
    /// - the role may not send to the dead-letter queue;
    /// - the batch has another message with the same id and different content;
    /// - keys are made from deduplication ids, and `SqsOnceDeduplicationId` doesn't fit into the copy;
    /// - there was no time.
    ///
    /// The metric `DeadLettersNotSent` counts messages without a copy, and a process warns once about a missing queue or
    /// permission. If the process crashes between copy and acknowledgement, the dead-letter queue gets the message twice,
    /// but no message is lost.
    ///
    /// The role needs `sqs:GetQueueUrl` and `sqs:SendMessage` on the dead-letter queue. To move copies back
    /// with `StartMessageMoveTask` or the console, name the source queue as the destination.
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

    /// Replaces the wall clock, for tests. The clock times the pauses after a silent endpoint and between reads of a
    /// queue's attributes.
    #[must_use]
    pub fn clock(self, clock: fn() -> Timestamp) -> Self {
        Self {
            attributes: Arc::new(self.attributes.with_clock(clock)),
            ..self
        }
    }

    /// Replaces the random numbers, for tests. The function returns a number up to the given one.
    #[must_use]
    pub fn jitter(self, jitter: fn(u64) -> u64) -> Self {
        Self { jitter, ..self }
    }

    /// Prepares the copy of a message that failed permanently, by reading its queue's attributes early.
    pub(super) fn expect(&self, message: &Message) {
        if let Some(receipt) = message.receipt() {
            self.attributes
                .read_in_background(receipt.queue_arn, self.backoff);
        }
    }

    /// Sends messages that failed permanently to their dead-letter queues, if direct dead-lettering is on, and marks those
    /// whose copies SQS confirms. Returns how many could not be sent. Uses at most half of the time until `answer`. If keys
    /// are made from deduplication ids (`needs_deduplication_id`), a copy for a FIFO queue must carry the message's own id.
    pub(super) async fn dead_letter_all(
        &self,
        batch: &mut [MessageOutcome<'_>],
        needs_deduplication_id: bool,
        answer: Instant,
    ) -> usize {
        // By now the failure is recorded, in modes that record failures.
        let failed = |of: &&MessageOutcome<'_>| of.ended.is_permanent();
        let failed: Vec<_> = batch.iter().filter(failed).collect();
        if !self.dead_letter || failed.is_empty() {
            return 0;
        }
        let ids: HashSet<_> = failed.iter().map(|of| of.message_id).collect();
        let shared = shared_ids(batch);
        for message_id in ids.intersection(&shared) {
            tracing::warn!(
                message_id,
                "the messages are reported as failed: they have one id and different contents"
            );
        }
        let alone = failed.into_iter();
        let alone = alone.filter(|of| !shared.contains(of.message_id));
        let now = system::instant();
        let dead_letters = DeadLetters {
            attributes: &self.attributes,
            needs_deduplication_id,
            until: now + BUDGET.min(answer.saturating_duration_since(now) / 2),
        };
        let confirmed = dead_letters.send(&alone.collect::<Vec<_>>()).await;
        for of in batch {
            of.dead_lettered = confirmed.contains(&of.message.id)
                || flawed("a copy is not confirmed") && of.ended.is_permanent();
        }
        ids.len() - confirmed.len()
    }

    /// Changes the visibility timeouts of a batch's messages, for two seconds at most and not past `answer`. Skips messages
    /// that are already in the dead-letter queue. With a `quarantine`, a failed message comes back only after the
    /// quarantine. The invocation began at `begun`.
    pub(super) async fn apply(
        &self,
        batch: &[MessageOutcome<'_>],
        (begun, now): (Timestamp, Timestamp),
        quarantine: Option<Duration>,
        answer: Instant,
    ) {
        let rule = Rule {
            now,
            begun,
            backoff: self.backoff,
            quarantine,
            jitter: self.jitter,
        };
        let changes = rule.plan(batch, |arn| self.attributes.may_have_dead_letter_queue(arn));
        let changes_queues = Changes {
            attributes: &self.attributes,
            backoff: self.backoff,
            bound: Bound::Until(answer.min(system::instant() + BUDGET)),
        };
        changes_queues.make(changes).await;
    }
}

/// Returns the ids that several messages of the batch share although their contents differ. The response names
/// ids, so it can't acknowledge just one of them, and a FIFO queue would drop the second copy.
fn shared_ids<'a>(batch: &[MessageOutcome<'a>]) -> HashSet<&'a str> {
    let mut first = HashMap::new();
    let differs = |of: &&MessageOutcome<'a>| {
        let first: &Message = first.entry(of.message_id).or_insert(of.message);
        first.sent_body != of.message.sent_body
            || first.sent_attributes() != of.message.sent_attributes()
    };
    batch
        .iter()
        .filter(differs)
        .map(|of| of.message_id)
        .collect()
}

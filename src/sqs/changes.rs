//! [`Visibility`]: sets the visibility timeouts of failed messages.

use std::{collections::BTreeMap, sync::Mutex, time::Duration};

use aws_sdk_sqs::{Client, types::ChangeMessageVisibilityBatchRequestEntry as Entry};
use futures_util::{FutureExt as _, StreamExt as _, stream};
use tokio::time::Instant;

use super::{
    message::Message,
    processed::Processed,
    queues::{CallError, Queue, Queues, lock},
    visibility::{Backoff, Change, LONGEST, plan},
};
use crate::protocol::Timestamp;

/// Entries of one call, a limit of SQS.
const PER_CALL: usize = 10;
/// Calls of one batch at a time.
const CALLS: usize = 4;
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
/// | permanent failure, now or before; no key, key reused; not started | 0 |
/// | behind a failure in its FIFO group | that of the failed message |
///
/// This is best effort: after the outcomes are recorded, within two seconds and before the
/// batch must be answered. A timeout that can't be changed is logged, and the message comes back
/// after the queue's own visibility timeout. An endpoint that can't be reached, or gives no answer
/// within a second and a half, is not asked again for five minutes.
///
/// The role needs `sqs:GetQueueUrl`, used once per queue, and `sqs:ChangeMessageVisibility`.
/// A queue of another account must allow both; one of another region is called there.
///
/// ```no_run
/// use sqs_once::{Consumer, Handler, Mode, sqs::Visibility};
///
/// # async fn run<M: Mode<H::Output>, H: Handler>(consumer: Consumer<M, H>) {
/// let sqs = aws_sdk_sqs::Client::new(&sqs_once::aws::config().await);
/// let consumer = consumer.visibility(Visibility::new(sqs));
/// # }
/// ```
#[derive(Debug)]
pub struct Visibility {
    queues: Queues,
    backoff: Backoff,
    jitter: fn(u64) -> u64,
}

impl Visibility {
    /// The longest back-off. SQS hides a message for 12 hours from its receive at most; half an
    /// hour of them is left for the batch.
    pub const LONGEST_BACKOFF: Duration = Duration::from_secs(LONGEST as u64);

    /// With a back-off from 10 seconds to 15 minutes.
    #[must_use]
    pub fn new(client: Client) -> Self {
        Self {
            queues: Queues::new(client),
            backoff: Backoff::default(),
            jitter: |most| fastrand::u64(..=most),
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

    /// Another source of chance, for tests: a number up to the one given.
    #[must_use]
    pub fn jitter(self, jitter: fn(u64) -> u64) -> Self {
        Self { jitter, ..self }
    }

    /// Changes the visibility timeouts of a batch, as far as there is time until `answer`.
    pub(super) async fn apply<'a>(
        &self,
        batch: impl IntoIterator<Item = (&'a Message, Option<&'a Processed>)>,
        now: Timestamp,
        answer: Instant,
    ) {
        let changes = plan(batch, now, self.backoff, self.jitter);
        if changes.is_empty() {
            return;
        }
        let until = answer.min(Instant::now() + BUDGET);
        // An event source mapping sends the messages of one queue; nothing here relies on it.
        let mut of_queue: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for change in changes {
            of_queue.entry(change.queue_arn).or_default().push(change);
        }
        for (arn, changes) in of_queue {
            self.change_all(arn, &changes, until).await;
        }
    }

    async fn change_all(&self, arn: &str, changes: &[Change<'_>], until: Instant) {
        let queue = match self.queues.queue(arn, until).await {
            Ok(queue) => queue,
            Err(error) => return not_changed(arn, changes.len(), &error),
        };
        let unchanged = Mutex::new((0, None));
        stream::iter(changes.chunks(PER_CALL))
            .for_each_concurrent(CALLS, |changes| {
                let change = self.change(&queue, changes, until);
                change.map(|changed| {
                    if let Err(error) = changed {
                        let mut unchanged = lock(&unchanged);
                        unchanged.0 += changes.len();
                        unchanged.1.get_or_insert(error);
                    }
                })
            })
            .await;
        if let (messages, Some(error)) = &*lock(&unchanged) {
            not_changed(arn, *messages, error);
        }
    }

    async fn change(
        &self,
        queue: &Queue,
        changes: &[Change<'_>],
        until: Instant,
    ) -> Result<(), CallError> {
        let entries = changes.iter().enumerate().map(|(index, change)| {
            Entry::builder()
                .id(index.to_string())
                .receipt_handle(change.receipt_handle)
                .visibility_timeout(change.seconds.into())
                .build()
        });
        let entries: Result<_, _> = entries.collect();
        let call = queue
            .client
            .change_message_visibility_batch()
            .queue_url(&queue.url)
            .set_entries(Some(entries.map_err(CallError::not_made)?));
        let permission = "sqs:ChangeMessageVisibility";
        let answer = (self.queues)
            .ask(queue, permission, until, call.send())
            .await?;
        for failed in answer.failed() {
            let change = failed.id().parse::<usize>().ok();
            let change = change.and_then(|index| changes.get(index));
            // Without its message, which may quote the receipt handle.
            tracing::warn!(
                message_id = change.map(|change| change.message_id),
                code = failed.code(),
                "the message comes back after the queue's visibility timeout: its visibility could not be changed"
            );
        }
        Ok(())
    }
}

fn not_changed(queue: &str, messages: usize, error: &CallError) {
    // The first call that failed was logged.
    if *error != CallError::Paused {
        tracing::warn!(
            queue,
            messages,
            %error,
            "failed messages come back after the queue's visibility timeout: their visibility could not be changed"
        );
    }
}

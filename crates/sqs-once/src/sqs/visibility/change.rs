//! Changes visibility timeouts, in calls of ten messages of one queue.

use std::{collections::BTreeMap, sync::Mutex};

use aws_sdk_sqs::types::ChangeMessageVisibilityBatchRequestEntry as Entry;
use futures_util::{FutureExt as _, StreamExt as _, stream};

use super::{
    Visibility,
    delay::TimeoutChange,
    queues::{Bound, CallError, Queue, lock},
};

/// Most entries of one call, a limit of SQS.
const PER_CALL: usize = 10;
/// How many calls of one batch run at a time.
const CALLS: usize = 4;

impl Visibility {
    /// Changes visibility timeouts in each queue.
    pub(super) async fn change_queues(&self, changes: Vec<TimeoutChange<'_>>, bound: Bound) {
        // An event source mapping sends only messages of one queue, but we do not rely on that.
        let mut of_queue: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for change in changes {
            of_queue.entry(change.queue_arn).or_default().push(change);
        }
        for (arn, changes) in of_queue {
            self.change_all(arn, &changes, bound).await;
        }
    }

    async fn change_all(&self, arn: &str, changes: &[TimeoutChange<'_>], bound: Bound) {
        let queue = match self.queues.queue(arn, bound).await {
            Ok(queue) => queue,
            Err(error) => return not_changed(arn, changes.len(), &error),
        };
        // Here, because only now the queue's URL is known: one request less.
        self.attributes.read_in_background(arn, self.backoff);
        let unchanged = Mutex::new((0, None));
        stream::iter(changes.chunks(PER_CALL))
            .for_each_concurrent(CALLS, |changes| {
                let change = self.change(&queue, changes, bound);
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
        changes: &[TimeoutChange<'_>],
        bound: Bound,
    ) -> Result<(), CallError> {
        let entry = |(index, change): (usize, &TimeoutChange<'_>)| {
            Entry::builder()
                .id(index.to_string())
                .receipt_handle(change.receipt_handle)
                .visibility_timeout(change.seconds.into())
                .build()
        };
        let entries: Result<_, _> = changes.iter().enumerate().map(entry).collect();
        let call = queue
            .client
            .change_message_visibility_batch()
            .queue_url(&queue.url)
            .set_entries(Some(entries.map_err(CallError::not_made)?));
        let permission = "sqs:ChangeMessageVisibility";
        let answer = (self.queues)
            .ask(queue, permission, bound, || call.clone().send())
            .await?;
        for failed in answer.failed() {
            let index = failed.id().parse::<usize>().ok();
            let change = index.and_then(|index| changes.get(index));
            // Leaves out the text, which may quote the receipt handle.
            tracing::warn!(
                message_id = change.map(|change| change.message_id.as_str()),
                code = failed.code(),
                "the message comes back after the queue's visibility timeout: its visibility could not be changed"
            );
        }
        Ok(())
    }
}

fn not_changed(queue: &str, messages: usize, error: &CallError) {
    // The first call that failed was already logged.
    if *error != CallError::Paused {
        tracing::warn!(
            queue,
            messages,
            %error,
            "failed messages come back after the queue's visibility timeout: their visibility could not be changed"
        );
    }
}

//! [`Changes`]: changes visibility timeouts, in calls with up to ten messages of one queue.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

use aws_sdk_sqs::types::ChangeMessageVisibilityBatchRequestEntry as Entry;
use futures_util::{FutureExt as _, StreamExt as _, stream};

use super::{
    attributes::Attributes,
    delay::{Backoff, TimeoutChange},
    entries::{PER_CALL, entries, warn_of_rejected},
    queues::{Bound, CallError, Queue},
};

/// How many calls run at a time for a batch.
const CALLS: usize = 4;

/// Changes the visibility timeouts of a batch.
pub(super) struct Changes<'a> {
    pub(super) attributes: &'a Arc<Attributes>,
    pub(super) backoff: Backoff,
    pub(super) bound: Bound,
}

impl Changes<'_> {
    /// Changes visibility timeouts in each queue.
    pub(super) async fn make(&self, changes: Vec<TimeoutChange<'_>>) {
        // An event source mapping sends only messages of one queue, but we don't rely on that.
        let mut of_queue: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for change in changes {
            of_queue.entry(change.queue_arn).or_default().push(change);
        }
        for (arn, changes) in of_queue {
            self.change_all(arn, &changes).await;
        }
    }

    async fn change_all(&self, arn: &str, changes: &[TimeoutChange<'_>]) {
        let queue = match self.attributes.queues.queue(arn, self.bound).await {
            Ok(queue) => queue,
            Err(error) => return not_changed(arn, changes.len(), &error),
        };
        // We start this read here because the queue's URL is now known, which saves a request.
        self.attributes.read_in_background(arn, self.backoff);
        let unchanged = Mutex::new((0, None));
        stream::iter(changes.chunks(PER_CALL))
            .for_each_concurrent(CALLS, |changes| {
                let change = self.change(&queue, changes);
                change.map(|changed| {
                    if let Err(error) = changed {
                        let mut unchanged =
                            unchanged.lock().unwrap_or_else(PoisonError::into_inner);
                        unchanged.0 += changes.len();
                        unchanged.1.get_or_insert(error);
                    }
                })
            })
            .await;
        let unchanged = unchanged.into_inner();
        if let (messages, Some(error)) = unchanged.unwrap_or_else(PoisonError::into_inner) {
            not_changed(arn, messages, &error);
        }
    }

    async fn change(&self, queue: &Queue, changes: &[TimeoutChange<'_>]) -> Result<(), CallError> {
        let entries = entries(changes, |change, id| {
            Entry::builder()
                .id(id)
                .receipt_handle(change.receipt_handle)
                .visibility_timeout(change.seconds.into())
                .build()
        })?;
        let call = queue
            .client
            .change_message_visibility_batch()
            .queue_url(&queue.url)
            .set_entries(Some(entries));
        let permission = "sqs:ChangeMessageVisibility";
        let answer = (self.attributes.queues)
            .call(&queue.region, permission, self.bound, || {
                call.clone().send()
            })
            .await?;
        warn_of_rejected(
            changes,
            answer.failed(),
            |change| change.message_id,
            "the message comes back after the queue's visibility timeout: its visibility could not be changed",
        );
        Ok(())
    }
}

fn not_changed(queue: &str, messages: usize, error: &CallError) {
    // The first failed call was already logged.
    if *error != CallError::Paused {
        tracing::warn!(
            queue,
            messages,
            %error,
            "failed messages come back after the queue's visibility timeout: their visibility could not be changed"
        );
    }
}

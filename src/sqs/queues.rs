//! [`Visibility`]: tells SQS when what failed is to be seen again.

use std::{collections::BTreeMap, time::Duration};

use aws_sdk_sqs::{
    Client,
    config::Region,
    error::{ProvideErrorMetadata, SdkError},
    operation::RequestId as _,
    types::ChangeMessageVisibilityBatchRequestEntry as Entry,
};
use futures_util::{StreamExt as _, stream};
use tokio::{
    sync::Mutex,
    time::{Instant, timeout_at},
};

use super::{
    message::Message,
    processed::Processed,
    visibility::{Backoff, Change, LONGEST, plan},
};
use crate::protocol::Timestamp;

/// What SQS takes in one call.
const PER_CALL: usize = 10;
/// Calls of one batch at a time.
const CALLS: usize = 4;
/// For all of a batch, however much of the invocation is left: one attempt that goes unanswered
/// ([`crate::aws::config`]) and another.
const BUDGET: Duration = Duration::from_secs(2);

/// Tells SQS when each message that failed is to be seen again, in place of the queue's one
/// visibility timeout for all.
///
/// | what became of it | it is seen again |
/// | --- | --- |
/// | conflict | when the other's lease is over, and one to three seconds later; after a back-off if it is over already |
/// | retryable failure, panic, out of time, lease lost, completion unrecorded, commit unknown, store unavailable | after a back-off, see [`backoff`](Self::backoff) |
/// | permanent failure, now or before; no key, key reused; not started | at once |
/// | behind a failure in its FIFO group | with what failed |
///
/// It is best effort: after the outcomes are recorded, within two seconds and before the
/// batch must be answered. What can't be changed is logged, and comes back after the queue's own
/// visibility timeout.
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
    client: Client,
    backoff: Backoff,
    jitter: fn(u64) -> u64,
    queues: Mutex<BTreeMap<String, Queue>>,
}

/// A queue as it is called.
#[derive(Clone, Debug)]
struct Queue {
    client: Client,
    url: String,
}

impl Visibility {
    /// The longest back-off. SQS hides a message for 12 hours from its receive at most; half an
    /// hour of them is left for the batch.
    pub const LONGEST_BACKOFF: Duration = Duration::from_secs(LONGEST as u64);

    /// With a back-off from 10 seconds to 15 minutes.
    #[must_use]
    pub fn new(client: Client) -> Self {
        Self {
            client,
            backoff: Backoff::default(),
            jitter: |most| fastrand::u64(..=most),
            queues: Mutex::default(),
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

    /// Changes what is to be changed for a batch, as far as it gets until `answer`.
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
        let started = Instant::now();
        if started < answer {
            let send = self.send(&changes);
            if timeout_at(answer.min(started + BUDGET), send).await.is_ok() {
                return;
            }
        }
        tracing::warn!(
            messages = changes.len(),
            "there was no time to change the visibility of all that failed: the rest comes back after the queue's visibility timeout"
        );
    }

    async fn send(&self, changes: &[Change<'_>]) {
        // An event source mapping sends the messages of one queue; nothing here relies on it.
        let mut of_queue: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for change in changes {
            of_queue.entry(change.queue_arn).or_default().push(change);
        }
        for (arn, changes) in of_queue {
            match self.queue(arn).await {
                Ok(queue) => {
                    stream::iter(changes.chunks(PER_CALL))
                        .for_each_concurrent(CALLS, |changes| queue.change(changes))
                        .await;
                }
                Err(error) => tracing::warn!(
                    queue = arn,
                    messages = changes.len(),
                    error,
                    "what failed comes back after the queue's visibility timeout: its URL could not be found"
                ),
            }
        }
    }

    /// The queue of an ARN, looked up once.
    async fn queue(&self, arn: &str) -> Result<Queue, String> {
        // Held over the call: invocations that run side by side ask once.
        let mut queues = self.queues.lock().await;
        if let Some(queue) = queues.get(arn) {
            return Ok(queue.clone());
        }
        let (region, account, name) =
            parse(arn).ok_or("this is not the ARN of a queue".to_owned())?;
        let config = self.client.config();
        // The region tells the partition too.
        let client = if config.region().is_some_and(|own| own.as_ref() == region) {
            self.client.clone()
        } else {
            let region = Region::new(region.to_owned());
            Client::from_conf(config.to_builder().region(region).build())
        };
        let found = client
            .get_queue_url()
            .queue_name(name)
            .queue_owner_aws_account_id(account)
            .send()
            .await
            .map_err(|error| explain(&error, "sqs:GetQueueUrl"))?;
        let url = found.queue_url.ok_or("SQS named no URL")?;
        let queue = Queue { client, url };
        queues.insert(arn.to_owned(), queue.clone());
        Ok(queue)
    }
}

impl Queue {
    async fn change(&self, changes: &[&Change<'_>]) {
        let entries = changes.iter().enumerate().map(|(index, change)| {
            Entry::builder()
                .id(index.to_string())
                .receipt_handle(change.receipt_handle)
                .visibility_timeout(change.seconds.into())
                .build()
        });
        let entries = match entries.collect() {
            Ok(entries) => entries,
            Err(error) => return tracing::warn!(%error, "visibility could not be changed"),
        };
        let change = self
            .client
            .change_message_visibility_batch()
            .queue_url(&self.url)
            .set_entries(Some(entries));
        match change.send().await {
            Ok(answer) => {
                for failed in answer.failed() {
                    let change = failed
                        .id()
                        .parse::<usize>()
                        .ok()
                        .and_then(|i| changes.get(i));
                    // Without its message, which may quote the receipt handle.
                    tracing::warn!(
                        message_id = change.map(|change| change.message_id),
                        code = failed.code(),
                        "the message comes back after the queue's visibility timeout: its visibility could not be changed"
                    );
                }
            }
            Err(error) => tracing::warn!(
                queue = self.url,
                messages = changes.len(),
                error = explain(&error, "sqs:ChangeMessageVisibility"),
                "messages come back after the queue's visibility timeout: their visibility could not be changed"
            ),
        }
    }
}

/// Region, account and name: `arn:aws:sqs:eu-central-1:123456789012:orders`.
fn parse(arn: &str) -> Option<(&str, &str, &str)> {
    let mut parts = arn.split(':');
    if parts.next() != Some("arn") || parts.next()?.is_empty() || parts.next() != Some("sqs") {
        return None;
    }
    let (region, account, name) = (parts.next()?, parts.next()?, parts.next()?);
    let whole = [region, account, name].iter().all(|part| !part.is_empty());
    (whole && parts.next().is_none()).then_some((region, account, name))
}

/// What went wrong and what to do, without the request.
fn explain<E>(error: &SdkError<E>, permission: &str) -> String
where
    E: ProvideErrorMetadata,
{
    let Some(service) = error.as_service_error() else {
        return match error {
            SdkError::TimeoutError(_) => "no answer in time".into(),
            SdkError::DispatchFailure(_) => {
                "could not connect; check the endpoint, the region and the network".into()
            }
            _ => "the answer could not be read".into(),
        };
    };
    let code = service.code().unwrap_or("unknown error");
    let advice = if code.starts_with("AccessDenied") {
        format!(": this role may not {permission} on it; grant it")
    } else {
        String::new()
    };
    let request_id = error.request_id().unwrap_or("none");
    format!("{code}{advice} (request id {request_id})")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_arn_tells_where_a_queue_is() {
        assert_eq!(
            parse("arn:aws-cn:sqs:cn-north-1:123456789012:orders.fifo"),
            Some(("cn-north-1", "123456789012", "orders.fifo"))
        );
        for arn in [
            "",
            "orders",
            "arn:aws:sns:eu-west-1:123456789012:orders",
            "arn:aws:sqs:eu-west-1:123456789012",
            "arn:aws:sqs:eu-west-1::orders",
            "arn:aws:sqs:eu-west-1:123456789012:orders:more",
        ] {
            assert_eq!(parse(arn), None, "{arn}");
        }
    }
}

//! [`Relay`]: sends the events of a batch, and reports the first one that was not sent.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use aws_config::SdkConfig;
use aws_lambda_events::{
    dynamodb::Event,
    streams::{DynamoDbBatchItemFailure, DynamoDbEventResponse},
};

use crate::report::RelayReport;
use crate::{
    progress::{Progress, number},
    rounds::Rounds,
    send::Sender,
    stream::{Group, groups},
    targets::{Target, Targets},
};
use sqs_once::{Deadline, InvalidValue, internal::flawed, protocol::Timestamp, telemetry::Metrics};

/// Time budget of an invocation whose deadline is not known.
pub(crate) const ASSUMED_TIMEOUT: Duration = Duration::from_secs(60);
/// Time reserved for the response.
const RESERVE: Duration = Duration::from_millis(500);

/// Age at which a stream's failed event goes to the dead-letter queue. Until then, the event blocks all later records of its shard.
const MAX_AGE: Duration = Duration::from_secs(15 * 60);

/// Sends the events of an outbox table, one batch of its stream at a time. Clones share the clients.
///
/// # Order
///
/// Events of one group are sent one after the other, in the order of the stream. If an event can't be sent, no later event of its
/// group is sent in this batch. Groups are sent in parallel.
///
/// # Failures
///
/// | failure | consequence |
/// | --- | --- |
/// | target not reachable, throttled, access denied | the response names the batch's first failed event, and Lambda sends the batch again from there |
/// | the same, more than 15 minutes after the event was published, unless the target throttles or was not called again after a timeout | the event goes to the dead-letter queue, and the group continues |
/// | target rejects the event, or `OUTBOX_TARGETS` has none for its name | the event goes to the dead-letter queue, and the group continues |
/// | dead-letter queue did not confirm the event | the same as if the target is not reachable |
///
/// Events behind the first failure are sent again with it, so a target gets an event at least once. If the first failure is
/// in a record with several events, this process does not resend the events before it. The target recognizes a duplicate by
/// the event's id. The id is in the message attribute `idempotencyKey`, on FIFO also in the deduplication id, and on
/// EventBridge in `metadata.idempotencyKey`.
///
/// ```no_run
/// # async fn run() -> Result<(), lambda_runtime::Error> {
/// use sqs_once::aws;
/// use sqs_once_outbox::Relay;
///
/// let targets = "*=https://sqs.eu-central-1.amazonaws.com/123456789012/shipping.fifo".parse()?;
/// let dead_letters = "https://sqs.eu-central-1.amazonaws.com/123456789012/outbox-dead-letters";
/// sqs_once_outbox::run(Relay::new(&aws::config().await, targets, dead_letters)?).await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Relay {
    pub(crate) targets: Arc<Targets>,
    pub(crate) dead_letters: Target,
    pub(crate) sender: Sender,
    progress: Arc<Progress>,
    metrics: Option<Metrics>,
}

impl Relay {
    /// Creates a relay that sends events to `targets`, and rejected events to the queue with the URL
    /// `dead_letters`.
    ///
    /// # Errors
    ///
    /// Returns an error if `dead_letters` is not a URL.
    pub fn new(
        config: &SdkConfig,
        targets: Targets,
        dead_letters: &str,
    ) -> Result<Self, InvalidValue> {
        let dead_letters = Target::queue(dead_letters);
        Ok(Self {
            targets: Arc::new(targets),
            dead_letters: dead_letters
                .ok_or_else(|| InvalidValue::new("must be the URL of a queue"))?,
            sender: Sender::new(config, "sqs-once".to_owned()),
            progress: Arc::default(),
            metrics: None,
        })
    }

    /// Sets the `source` of events on EventBridge. The default is `sqs-once`.
    #[must_use]
    pub fn source(mut self, source: impl Into<String>) -> Self {
        self.sender.source = source.into();
        self
    }

    /// Adds metrics to the log line of each batch.
    #[must_use]
    pub fn metrics(mut self, metrics: impl Into<Option<Metrics>>) -> Self {
        self.metrics = metrics.into();
        self
    }

    /// Sends a batch. Returns before `deadline`. The response names the first event that was not sent, by its
    /// record's sequence number.
    ///
    /// Dropping the returned future is like a crash: Lambda sends the batch again.
    pub async fn process(&self, event: Event, deadline: Deadline) -> DynamoDbEventResponse {
        self.process_batch(event, deadline, None).await
    }

    pub(crate) fn deadline(&self, at: Timestamp) -> Deadline {
        Deadline::of_invocation(Timestamp::now(), at, ASSUMED_TIMEOUT, RESERVE)
    }

    pub(crate) async fn process_batch(
        &self,
        event: Event,
        deadline: Deadline,
        request_id: Option<&str>,
    ) -> DynamoDbEventResponse {
        let mut numbers = Vec::with_capacity(event.records.len());
        for record in &event.records {
            numbers.push(record.change.sequence_number.clone());
        }
        let mut report = RelayReport::new(Timestamp::now());
        let mut groups = groups(event.records);
        let mut in_batch = events_by_record(groups.iter());
        self.progress.skip(&mut groups, &numbers);
        groups.retain(|group| !group.is_empty());
        if flawed("the progress is of one invocation") {
            in_batch = events_by_record(groups.iter());
        }
        let now = Timestamp::now().as_millis();
        let max_age = u64::try_from(MAX_AGE.as_millis()).unwrap_or(u64::MAX);
        let mut run = Rounds::new(deadline);
        run.oldest = Some(Timestamp::from_millis(now.saturating_sub(max_age)));
        let unsent = self.send_groups(groups, &mut run, &mut report).await;
        for group in &unsent {
            report.failed(group.events.len());
        }
        if unsent.iter().any(|group| !group.has_failed) {
            tracing::warn!("no time is left to send the rest of the batch");
        }
        self.log(report, request_id);
        let mut response = DynamoDbEventResponse::default();
        // Lambda sends the batch again from the lowest number on, so we name only that. An empty number makes Lambda send
        // the whole batch again.
        let left = events_by_record(unsent.iter().map(|group| &group.events));
        let mut left = left.into_iter();
        let named = if flawed("the response names the last failure") {
            left.next_back()
        } else {
            left.next()
        };
        if let Some((first, left)) = named {
            let number = number(&numbers, first).cloned().unwrap_or_default();
            self.progress.note(number.clone(), in_batch[&first] - left);
            let mut failure = DynamoDbBatchItemFailure::default();
            failure.item_identifier = Some(number);
            response.batch_item_failures.push(failure);
        }
        response
    }

    pub(crate) fn log(&self, report: RelayReport, request_id: Option<&str>) {
        report.log(self.metrics.as_ref(), request_id);
    }
}

/// Counts the events of each record, by the record's position in the batch.
fn events_by_record<'a>(groups: impl Iterator<Item = &'a Group>) -> BTreeMap<i64, usize> {
    let mut counts = BTreeMap::new();
    for pending in groups.flatten() {
        *counts.entry(pending.position).or_default() += 1;
    }
    counts
}

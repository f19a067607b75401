//! [`Attributes`]: a queue's redrive policy and retention, read without delaying the response.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{Arc, Once},
    time::Duration,
};

use aws_sdk_sqs::types::QueueAttributeName;
use serde_json::Value;
use tokio::sync::watch;

use crate::{
    protocol::{Pause, Timestamp},
    system::{self, Instant, timeout_at},
};

use super::{
    delay::{Backoff, LEAST_OUTAGE, survived_outage},
    queues::{Bound, CallError, Queues},
};

/// How long attributes stay valid. We read them again after that, because a redrive policy may change.
const VALID: Duration = Duration::from_secs(60 * 60);
/// Pause after SQS refused to return the attributes.
const REFUSED: Duration = Duration::from_secs(5 * 60);

/// The attributes of the queues whose messages failed.
#[derive(Debug)]
pub(super) struct Attributes {
    pub(super) queues: Queues,
    /// How long records are kept. A queue that keeps messages longer causes a warning.
    record_retention: Option<Duration>,
    /// The queues by ARN. They are in a channel, so that dead-lettering can wait for a read in the background.
    known: watch::Sender<BTreeMap<String, KnownQueue>>,
    warned_of_retention: Once,
}

/// A queue's attributes, and the state of the latest read.
#[derive(Debug)]
struct KnownQueue {
    /// The attributes from the last read that succeeded.
    facts: Option<Arc<Facts>>,
    read: Read,
    said: BTreeSet<Warning>,
}

/// The latest read of a queue's attributes.
#[derive(Debug)]
enum Read {
    /// The first read is in flight.
    First,
    /// A later read is in flight.
    Again,
    /// The read has ended. The next one begins after the pause, if there is one.
    Ended(Option<Pause>),
}

/// A warning that we log once for each queue.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Warning {
    /// SQS refused to return the attributes. We log this again if a read succeeded in between.
    Refused,
    NoDeadLetterQueue,
    /// The role may not send copies to the dead-letter queue, or the queue is missing.
    DeniedCopies,
}

impl KnownQueue {
    fn is_being_read(&self) -> bool {
        matches!(self.read, Read::First | Read::Again)
    }
}

/// The attributes of a queue that the consumer needs.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Facts {
    pub(super) dead_letter_queue: Option<String>,
    /// The longest message that the queue accepts, in bytes. A dead-letter queue rarely has a lower limit.
    pub(super) max_bytes: Option<usize>,
    retention: Option<Duration>,
    /// How many receives SQS allows before it moves a message to the dead-letter queue.
    max_receives: Option<u32>,
    visibility_timeout: Option<Duration>,
}

impl Attributes {
    /// Creates the attributes of these queues. None is read yet.
    pub(super) fn new(queues: Queues, record_retention: Option<Duration>) -> Self {
        Self {
            queues,
            record_retention,
            known: watch::Sender::default(),
            warned_of_retention: Once::new(),
        }
    }

    /// Returns a copy with this clock and no attributes read yet.
    pub(super) fn with_clock(&self, clock: fn() -> Timestamp) -> Self {
        Self::new(self.queues.with_clock(clock), self.record_retention)
    }

    /// Returns a copy for records that are kept this long, with no attributes read yet.
    pub(super) fn with_record_retention(&self, retention: Duration) -> Self {
        let queues = self.queues.with_clock(self.queues.clock);
        Self::new(queues, Some(retention))
    }

    /// Returns whether a permanently failed message of this queue ends in a dead-letter queue.
    ///
    /// While the first read is in flight, we assume that it does. The batch that starts this read rarely sees the response,
    /// and each receive may go to a new worker. If the queue has no dead-letter queue, the assumption costs one early
    /// receive per worker.
    pub(super) fn may_have_dead_letter_queue(&self, arn: &str) -> bool {
        let known = self.known.borrow();
        known.get(arn).is_some_and(|known| match &known.facts {
            Some(facts) => facts.dead_letter_queue.is_some(),
            None => matches!(known.read, Read::First),
        })
    }

    /// Starts to read a queue's attributes, unless they are known or being read. Returns at once, so the
    /// response to Lambda does not wait. Lambda may freeze the process before SQS responds. The next invocation
    /// then finds the response, or the SDK retries the request.
    ///
    /// After the first read, warns if messages with this `backoff` become dead letters too soon.
    pub(super) fn read_in_background(self: &Arc<Self>, arn: &str, backoff: Backoff) {
        let now = self.queues.now();
        let begins = self.known.send_if_modified(|known| {
            let Some(known) = known.get_mut(arn) else {
                let first = KnownQueue {
                    facts: None,
                    read: Read::First,
                    said: BTreeSet::new(),
                };
                known.insert(arn.to_owned(), first);
                return true;
            };
            let Read::Ended(pause) = known.read else {
                return false;
            };
            let is_due = !pause.is_some_and(|pause| pause.is_on(now));
            if is_due {
                known.read = Read::Again;
            }
            is_due
        });
        if begins {
            let (this, arn) = (Arc::clone(self), arn.to_owned());
            system::spawn(async move {
                let read = this.read(&arn).await;
                this.store(&arn, read, backoff);
            });
        }
    }

    /// Returns the attributes of a queue as last read, or `None` if SQS refuses to return them, which the read has logged.
    /// Waits until `until` for a background read to end.
    pub(super) async fn wait(
        &self,
        arn: &str,
        until: Instant,
    ) -> Result<Option<Arc<Facts>>, CallError> {
        if !self.queues.is_paused(arn) {
            let mut known = self.known.subscribe();
            let read =
                known.wait_for(|known| !known.get(arn).is_some_and(KnownQueue::is_being_read));
            drop(timeout_at(until, read).await);
        }
        let known = self.known.borrow();
        let known = known.get(arn).ok_or(CallError::OutOfTime)?;
        match &known.facts {
            None if !known.said.contains(&Warning::Refused) => Err(CallError::OutOfTime),
            facts => Ok(facts.clone()),
        }
    }

    /// Returns whether this warning is the first of its kind for a queue whose attributes were read.
    pub(super) fn is_news(&self, arn: &str, warning: Warning) -> bool {
        (self.known).send_if_modified(|known| match known.get_mut(arn) {
            Some(known) => known.said.insert(warning),
            None => false,
        })
    }

    async fn read(&self, arn: &str) -> Result<Facts, CallError> {
        let queue = self.queues.queue(arn, Bound::Background).await?;
        let call = queue
            .client
            .get_queue_attributes()
            .queue_url(&queue.url)
            .attribute_names(QueueAttributeName::RedrivePolicy)
            .attribute_names(QueueAttributeName::MaximumMessageSize)
            .attribute_names(QueueAttributeName::MessageRetentionPeriod)
            .attribute_names(QueueAttributeName::VisibilityTimeout);
        let permission = "sqs:GetQueueAttributes";
        let answer = (self.queues)
            .call(&queue.region, permission, Bound::Background, || {
                call.clone().send()
            })
            .await?;
        Facts::of(&answer.attributes.unwrap_or_default())
            .ok_or_else(|| CallError::Refused("SQS sent a redrive policy without a queue".into()))
    }

    /// Keeps what a read returned, and warns of problems with the queue.
    fn store(&self, arn: &str, read: Result<Facts, CallError>, backoff: Backoff) {
        let pause = match &read {
            Ok(_) => Some(VALID),
            Err(CallError::Denied(_) | CallError::Refused(_)) => Some(REFUSED),
            // Other calls log that SQS can't be reached.
            Err(_) => None,
        };
        let pause = pause.map(|length| Pause::new(self.queues.now(), length));
        self.known.send_modify(|known| {
            let Some(known) = known.get_mut(arn) else {
                return;
            };
            known.read = Read::Ended(pause);
            match read {
                Ok(facts) => {
                    known.said.remove(&Warning::Refused);
                    self.compare_retention(arn, &facts);
                    if facts.dead_letter_queue.is_none()
                        && known.said.insert(Warning::NoDeadLetterQueue)
                    {
                        tracing::warn!(
                            queue = arn,
                            "the queue has no dead-letter queue: messages that fail permanently are received again until its retention ends"
                        );
                    }
                    if known.facts.is_none() {
                        facts.warn_of_short_outage(arn, backoff);
                    }
                    known.facts = Some(Arc::new(facts));
                }
                Err(error) if pause.is_some() && known.said.insert(Warning::Refused) => tracing::warn!(
                    queue = arn,
                    %error,
                    "the queue's attributes could not be read: permanent failures are treated as if it had no dead-letter queue"
                ),
                Err(_) => {}
            }
        });
    }

    /// Warns if a queue keeps messages longer than the store keeps records, because a message that outlives its record runs again.
    fn compare_retention(&self, arn: &str, facts: &Facts) {
        if let (Some(of_queue), Some(of_records)) = (facts.retention, self.record_retention)
            && of_queue > of_records
        {
            self.warned_of_retention.call_once(|| tracing::warn!(
                queue = arn,
                queue_retention_s = of_queue.as_secs(),
                record_retention_s = of_records.as_secs(),
                "the queue keeps messages longer than the table keeps records: a message older than its record runs again; raise the retention of records above that of the queue and its dead-letter queue"
            ));
        }
    }
}

impl Facts {
    fn of(attributes: &HashMap<QueueAttributeName, String>) -> Option<Self> {
        let (mut dead_letter_queue, mut max_receives) = (None, None);
        if let Some(policy) = attributes.get(&QueueAttributeName::RedrivePolicy) {
            let policy: Value = serde_json::from_str(policy).ok()?;
            dead_letter_queue = Some(policy["deadLetterTargetArn"].as_str()?.to_owned());
            let count = &policy["maxReceiveCount"];
            max_receives = (count.as_u64())
                .or_else(|| count.as_str()?.parse().ok())
                .and_then(|count| count.try_into().ok());
        }
        let number = |name| attributes.get(&name)?.parse().ok();
        let span = |name| number(name).map(Duration::from_secs);
        let max_bytes = number(QueueAttributeName::MaximumMessageSize);
        Some(Self {
            dead_letter_queue,
            max_bytes: max_bytes.and_then(|bytes| bytes.try_into().ok()),
            retention: span(QueueAttributeName::MessageRetentionPeriod),
            max_receives,
            visibility_timeout: span(QueueAttributeName::VisibilityTimeout),
        })
    }

    /// Warns if an outage of less than twelve hours moves good messages to the dead-letter queue.
    fn warn_of_short_outage(&self, queue: &str, Backoff { base, cap }: Backoff) {
        let Some(receives) = self.max_receives else {
            return;
        };
        let visibility_timeout = self.visibility_timeout.unwrap_or(Duration::MAX);
        let survived = survived_outage((base, cap), receives, visibility_timeout);
        if survived < LEAST_OUTAGE {
            tracing::warn!(
                queue,
                max_receive_count = receives,
                survived_outage_s = survived.as_secs(),
                "maxReceiveCount is too low: an outage that lasts longer than `survived_outage_s` can move good messages to the dead-letter queue; set it to 130, as our template does (47 for a function timeout over 300 s), and the visibility timeout and CONSUMER_BACKOFF_CAP as in docs/operations.md"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_parsed_as_sqs_writes_them() {
        use QueueAttributeName as Name;
        let arn = "arn:aws:sqs:eu-west-1:123456789012:dead";
        for count in ["8", "\"8\""] {
            let policy = format!(r#"{{"deadLetterTargetArn":"{arn}","maxReceiveCount":{count}}}"#);
            let wanted = Facts {
                dead_letter_queue: Some(arn.into()),
                max_bytes: Some(262_144),
                retention: Some(Duration::from_secs(345_600)),
                max_receives: Some(8),
                visibility_timeout: Some(Duration::from_secs(30)),
            };
            let sent = [
                (Name::RedrivePolicy, &*policy),
                (Name::MaximumMessageSize, "262144"),
                (Name::MessageRetentionPeriod, "345600"),
                (Name::VisibilityTimeout, "30"),
            ];
            let sent = sent.map(|(name, text)| (name, text.to_owned())).into();
            assert_eq!(Facts::of(&sent), Some(wanted));
        }
        let none = Facts {
            dead_letter_queue: None,
            max_bytes: None,
            retention: None,
            max_receives: None,
            visibility_timeout: None,
        };
        assert_eq!(Facts::of(&HashMap::new()), Some(none));
        for unreadable in ["", "{}", r#"{"deadLetterTargetArn":7}"#] {
            let sent = [(Name::RedrivePolicy, unreadable.to_owned())].into();
            assert_eq!(Facts::of(&sent), None, "{unreadable}");
        }
    }
}

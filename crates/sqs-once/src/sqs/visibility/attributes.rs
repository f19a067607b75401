//! [`Attributes`]: a queue's redrive policy and retention, read without delaying the response.

use std::{
    collections::BTreeMap,
    mem,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use aws_sdk_sqs::types::QueueAttributeName;
use serde_json::Value;
use tokio::sync::watch;

use crate::{
    protocol::Timestamp,
    system::{self, Instant, timeout_at},
};

use super::{
    delay::{Backoff, LEAST_OUTAGE, survived_outage},
    queues::{Bound, CallError, Queues, lock},
};

/// How long attributes stay valid. A redrive policy may change, so we read it again.
const VALID: Duration = Duration::from_secs(60 * 60);
/// Pause after SQS refused to return the attributes.
const REFUSED: Duration = Duration::from_secs(5 * 60);

/// The attributes of the queues whose messages failed, by ARN.
#[derive(Debug)]
pub(super) struct Attributes {
    queues: Arc<Queues>,
    record_retention: Option<Duration>,
    of_queue: Mutex<BTreeMap<String, watch::Sender<Known>>>,
    warned_of_retention: AtomicBool,
}

/// The known attributes of one queue.
#[derive(Debug, Default)]
struct Known {
    facts: Option<Arc<Facts>>,
    reading: bool,
    /// True if a read has ended, with or without the attributes.
    was_read: bool,
    /// When and how long no read begins, by the wall clock: [`Timestamp::is_in_pause`].
    rest: Option<(Duration, Timestamp)>,
    warned_of_no_dead_letter_queue: bool,
    /// True if SQS refused the last read. We warn only of the first refusal.
    refused: bool,
    warned_of_refused_copies: bool,
}

/// The attributes of a queue that the consumer needs.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Facts {
    /// The ARN of its dead-letter queue.
    pub(super) dead_letter_queue: Option<String>,
    /// The queue's own limit for the bytes of a message. A dead-letter queue rarely has a lower one.
    pub(super) max_bytes: Option<usize>,
    retention: Option<Duration>,
    /// Receives after which SQS moves a message to the dead-letter queue.
    max_receives: Option<u32>,
    visibility_timeout: Option<Duration>,
}

impl Attributes {
    pub(super) fn new(queues: Arc<Queues>) -> Self {
        Self {
            queues,
            record_retention: None,
            of_queue: Mutex::default(),
            warned_of_retention: AtomicBool::new(false),
        }
    }

    /// Returns attributes that nobody has read, of these queues.
    pub(super) fn with_queues(&self, queues: Arc<Queues>) -> Self {
        Self {
            record_retention: self.record_retention,
            ..Self::new(queues)
        }
    }

    /// Sets how long records are kept. A queue that keeps messages longer causes a warning.
    pub(super) fn record_retention(self, record_retention: Duration) -> Self {
        Self {
            record_retention: Some(record_retention),
            ..self
        }
    }

    /// Returns the attributes of a queue as they were last read.
    pub(super) fn known(&self, arn: &str) -> Option<Arc<Facts>> {
        let of_queue = lock(&self.of_queue);
        of_queue.get(arn)?.borrow().facts.clone()
    }

    /// Returns whether a permanent failure of this queue ends in a dead-letter queue.
    ///
    /// Assumes so while the first read is in flight, because the batch that starts this read seldom sees its
    /// end, and a new worker may handle each receive. If the queue has no dead-letter queue, that costs such
    /// a worker one early receive.
    pub(super) fn may_have_dead_letter_queue(&self, arn: &str) -> bool {
        let of_queue = lock(&self.of_queue);
        of_queue.get(arn).is_some_and(|look| {
            let known = look.borrow();
            match &known.facts {
                Some(facts) => facts.dead_letter_queue.is_some(),
                None => known.reading && !known.was_read,
            }
        })
    }

    /// Starts to read a queue's attributes, unless they are known or being read. Returns at once, so the
    /// response to Lambda does not wait. Lambda may freeze the process before SQS responds. Then the next
    /// invocation finds the response, or the SDK repeats the request.
    ///
    /// After the first read, warns if messages with this `backoff` are dead letters too soon.
    pub(super) fn read_in_background(self: &Arc<Self>, arn: &str, backoff: Backoff) {
        let begins = {
            let mut of_queue = lock(&self.of_queue);
            let look = of_queue.entry(arn.to_owned()).or_default();
            let now = self.queues.now();
            look.send_if_modified(|look| {
                let rests = look.rest;
                let rests = rests.is_some_and(|(length, end)| now.is_in_pause(length, end));
                let due = !look.reading && !rests;
                look.reading |= due;
                due
            })
        };
        if begins {
            let (this, arn) = (Arc::clone(self), arn.to_owned());
            system::spawn(async move {
                let read = this.read(&arn).await;
                this.store(&arn, read, backoff);
            });
        }
    }

    /// Returns the attributes of a queue. Waits until `until` for a read in the background to end.
    pub(super) async fn wait(&self, arn: &str, until: Instant) -> Option<Arc<Facts>> {
        let look = lock(&self.of_queue).get(arn).map(watch::Sender::subscribe);
        if let Some(mut look) = look
            && !self.queues.is_paused(arn)
        {
            let read = look.wait_for(|look| !look.reading);
            let _in_time = timeout_at(until, read).await;
        }
        self.known(arn)
    }

    /// Returns whether SQS refused to return the attributes of a queue.
    pub(super) fn is_refused(&self, arn: &str) -> bool {
        let of_queue = lock(&self.of_queue);
        of_queue.get(arn).is_some_and(|look| look.borrow().refused)
    }

    /// Returns whether this is the first time that a copy for the dead-letter queue of `arn` was refused.
    pub(super) fn is_first_refused_copy(&self, arn: &str) -> bool {
        let of_queue = lock(&self.of_queue);
        of_queue.get(arn).is_none_or(|look| {
            look.send_if_modified(|look| !mem::replace(&mut look.warned_of_refused_copies, true))
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
            .ask(&queue, permission, Bound::Background, || {
                call.clone().send()
            })
            .await?;
        let attribute = |name| Some(answer.attributes()?.get(&name)?.as_str());
        Facts::of(
            attribute(QueueAttributeName::RedrivePolicy),
            attribute(QueueAttributeName::MaximumMessageSize),
            attribute(QueueAttributeName::MessageRetentionPeriod),
            attribute(QueueAttributeName::VisibilityTimeout),
        )
        .ok_or_else(|| CallError::Refused("SQS sent a redrive policy without a queue".into()))
    }

    fn store(&self, arn: &str, read: Result<Facts, CallError>, backoff: Backoff) {
        let length = match &read {
            Ok(facts) => {
                self.compare_retention(arn, facts);
                Some(VALID)
            }
            Err(CallError::Denied(_) | CallError::Refused(_)) => Some(REFUSED),
            // Other calls log that SQS cannot be reached.
            Err(_) => None,
        };
        let now = self.queues.now();
        let of_queue = lock(&self.of_queue);
        let Some(look) = of_queue.get(arn) else {
            return;
        };
        look.send_modify(|look| {
            (look.reading, look.was_read) = (false, true);
            look.rest = length.map(|length| (length, now + length));
            let facts = match read {
                Ok(facts) => facts,
                Err(error @ (CallError::Denied(_) | CallError::Refused(_))) if !look.refused => {
                    look.refused = true;
                    return tracing::warn!(
                        queue = arn,
                        %error,
                        "the queue's attributes could not be read: permanent failures are treated as if it had no dead-letter queue"
                    );
                }
                Err(_) => return,
            };
            look.refused = false;
            if facts.dead_letter_queue.is_none() && !look.warned_of_no_dead_letter_queue {
                look.warned_of_no_dead_letter_queue = true;
                tracing::warn!(
                    queue = arn,
                    "the queue has no dead-letter queue: messages that fail permanently are received again until its retention ends"
                );
            }
            if look.facts.is_none() {
                facts.warn_of_short_outage(arn, backoff);
            }
            look.facts = Some(Arc::new(facts));
        });
    }

    /// Warns if a queue keeps messages longer than records are kept, because such a message runs again.
    fn compare_retention(&self, arn: &str, facts: &Facts) {
        if let (Some(of_queue), Some(of_records)) = (facts.retention, self.record_retention)
            && of_queue > of_records
            && !self.warned_of_retention.swap(true, Ordering::Relaxed)
        {
            tracing::warn!(
                queue = arn,
                queue_retention_s = of_queue.as_secs(),
                record_retention_s = of_records.as_secs(),
                "the queue keeps messages longer than the table keeps records: a message older than its record runs again; raise the retention of records above that of the queue and its dead-letter queue"
            );
        }
    }
}

impl Facts {
    fn of(
        redrive_policy: Option<&str>,
        max_bytes: Option<&str>,
        retention: Option<&str>,
        visibility_timeout: Option<&str>,
    ) -> Option<Self> {
        let (mut dead_letter_queue, mut max_receives) = (None, None);
        if let Some(policy) = redrive_policy {
            let policy: Value = serde_json::from_str(policy).ok()?;
            dead_letter_queue = Some(policy["deadLetterTargetArn"].as_str()?.to_owned());
            let count = &policy["maxReceiveCount"];
            max_receives = (count.as_u64())
                .or_else(|| count.as_str()?.parse().ok())
                .and_then(|count| count.try_into().ok());
        }
        let span = |text: Option<&str>| text?.parse().ok().map(Duration::from_secs);
        Some(Self {
            dead_letter_queue,
            max_bytes: max_bytes.and_then(|text| text.parse().ok()),
            retention: span(retention),
            max_receives,
            visibility_timeout: span(visibility_timeout),
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
            let of = Facts::of(Some(&policy), Some("262144"), Some("345600"), Some("30"));
            assert_eq!(of, Some(wanted));
        }
        let none = Facts {
            dead_letter_queue: None,
            max_bytes: None,
            retention: None,
            max_receives: None,
            visibility_timeout: None,
        };
        assert_eq!(Facts::of(None, None, None, None), Some(none));
        for unreadable in ["", "{}", r#"{"deadLetterTargetArn":7}"#] {
            assert_eq!(
                Facts::of(Some(unreadable), None, None, None),
                None,
                "{unreadable}"
            );
        }
    }
}

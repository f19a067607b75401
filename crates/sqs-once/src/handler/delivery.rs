//! [`Delivery`]: one receive of a message, as SQS describes it.

use std::{collections::HashMap, sync::Arc};

use crate::protocol::Timestamp;

/// One delivery of a message. If you know only the message id, [`Delivery::new`] makes a first delivery
/// without attributes. Clones share the facts.
#[derive(Clone, Debug)]
pub struct Delivery(Arc<DeliveryMetadata>);

/// The facts of a delivery. [`Attempt::delivery`](crate::Attempt::delivery) returns them to a handler, and functions that
/// make keys, spans and messages also get them.
#[derive(Clone, Debug, Default)]
pub struct DeliveryMetadata {
    /// The message id.
    pub message_id: String,
    /// How many times the message was received, this time included (`ApproximateReceiveCount`).
    pub receive_count: u32,
    /// Message attributes by name.
    pub attributes: HashMap<String, Attribute>,
    /// The ARN of the queue that the message was received from (`eventSourceARN`).
    pub queue_arn: Option<String>,
    /// The message group (`MessageGroupId`). On a FIFO queue, the messages of a group run in order. On a standard queue, SQS
    /// fair queues treat the message group as the tenant (*Amazon SQS Developer Guide*, "Amazon SQS fair queues").
    pub group_id: Option<String>,
    /// The deduplication id of a message from a FIFO queue (`MessageDeduplicationId`).
    pub deduplication_id: Option<String>,
    /// The sequence number of a message from a FIFO queue: up to 128 bits, in decimal digits (`SequenceNumber`).
    pub sequence_number: Option<String>,
    /// When the message was sent to the queue (`SentTimestamp`).
    pub sent_at: Option<Timestamp>,
    /// When the message was first received (`ApproximateFirstReceiveTimestamp`).
    pub first_received_at: Option<Timestamp>,
    /// The id of the IAM user or role that sent the message, or the IP address of an anonymous sender (`SenderId`).
    pub sender_id: Option<String>,
    /// The producer's X-Ray trace header, such as `Root=1-...;Parent=...;Sampled=1` (`AWSTraceHeader`).
    pub trace_header: Option<String>,
    /// The ARN of the queue from which SQS moved the message to a dead-letter queue (`DeadLetterQueueSourceArn`). Only a
    /// consumer of a dead-letter queue sees it.
    ///
    /// After `sqs-once dlq redrive`, the attribute `SqsOnceRedriveOf` holds the id that the message had in the dead-letter
    /// queue.
    pub dead_letter_source_arn: Option<String>,
    /// The metadata of the removed envelope (`CONSUMER_ENVELOPE=auto`), or of the innermost if there were several. `None`
    /// if there was no envelope.
    pub envelope: Option<EnvelopeMetadata>,
    /// The request id of the Lambda invocation, for the handler's own logs and requests. All messages of an invocation
    /// share it. `None` outside an invocation.
    pub request_id: Option<Arc<str>>,
}

/// The metadata of the envelope in which SNS, EventBridge or S3 sent a message. If envelopes are nested, these are
/// the metadata of the innermost one, from the service that the message came from.
///
/// | field | SNS | EventBridge | S3 |
/// | --- | --- | --- | --- |
/// | `id` | `MessageId` | `id` | |
/// | `source` | `TopicArn` | `source` | ARN of the bucket |
/// | `detail_type` | `Subject`, if there is one | `detail-type` | `eventName` |
/// | `time` | `Timestamp` | `time` | `eventTime` |
///
/// If an S3 event notification has several records, these are the facts of the first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct EnvelopeMetadata {
    /// The id that the service gave the message. If the producer sends the message again, it gets another id.
    pub id: Option<String>,
    /// Topic, source or bucket of the message.
    pub source: Option<String>,
    /// Kind of the message.
    pub detail_type: Option<String>,
    /// Time at which the service received the message, in the service's own format (ISO 8601).
    pub time: Option<String>,
}

/// A message attribute (*Amazon SQS Developer Guide*, "Amazon SQS message metadata").
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Attribute {
    /// The type as it was sent, such as `Number.float`.
    pub data_type: String,
    /// The value.
    pub value: AttributeValue,
}

/// The value of a message attribute.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AttributeValue {
    /// A value of type String or Number.
    Text(String),
    /// A value of type Binary.
    Binary(Vec<u8>),
}

impl DeliveryMetadata {
    /// Returns the text of a message attribute of type String or Number. SQS sends numbers as text, with up to 38 digits.
    #[must_use]
    pub fn attribute(&self, name: &str) -> Option<&str> {
        match &self.attributes.get(name)?.value {
            AttributeValue::Text(text) => Some(text),
            AttributeValue::Binary(_) => None,
        }
    }

    /// Returns the bytes of a message attribute of type Binary.
    #[must_use]
    pub fn binary_attribute(&self, name: &str) -> Option<&[u8]> {
        match &self.attributes.get(name)?.value {
            AttributeValue::Binary(bytes) => Some(bytes),
            AttributeValue::Text(_) => None,
        }
    }

    pub(crate) fn queue_name(&self) -> Option<&str> {
        self.queue_arn.as_deref()?.rsplit(':').next()
    }

    /// Returns whether the message probably has a record: SQS has delivered it before, or it comes from a dead-letter
    /// queue.
    pub(crate) fn expects_record(&self) -> bool {
        let ours = |name: &String| name.starts_with("SqsOnce");
        self.receive_count > 1 || self.attributes.keys().any(ours)
    }
}

impl Delivery {
    /// Creates the first delivery of a message, without attributes.
    #[must_use]
    pub fn new(message_id: impl Into<String>) -> Self {
        Self::from(DeliveryMetadata {
            message_id: message_id.into(),
            receive_count: 1,
            ..DeliveryMetadata::default()
        })
    }

    /// Sets how many times the message was received, this time included.
    #[must_use]
    pub fn receive_count(mut self, receive_count: u32) -> Self {
        self.facts_mut().receive_count = receive_count;
        self
    }

    /// Returns the facts.
    #[must_use]
    pub fn facts(&self) -> &DeliveryMetadata {
        &self.0
    }

    pub(crate) fn facts_mut(&mut self) -> &mut DeliveryMetadata {
        Arc::make_mut(&mut self.0)
    }

    /// Returns the message id.
    #[must_use]
    pub fn message_id(&self) -> &str {
        &self.0.message_id
    }
}

impl From<DeliveryMetadata> for Delivery {
    fn from(facts: DeliveryMetadata) -> Self {
        Self(Arc::new(facts))
    }
}

impl From<String> for Delivery {
    fn from(message_id: String) -> Self {
        Self::new(message_id)
    }
}

impl From<&str> for Delivery {
    fn from(message_id: &str) -> Self {
        Self::new(message_id)
    }
}

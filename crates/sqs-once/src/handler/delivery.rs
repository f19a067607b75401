//! [`Delivery`]: one receive of a message, as SQS describes it.

use std::{collections::HashMap, sync::Arc};

use crate::protocol::Timestamp;

/// One delivery of a message. If you know only the message id, [`Delivery::new`] makes a first delivery
/// without attributes. Clones share the facts.
#[derive(Clone, Debug)]
pub struct Delivery(Arc<DeliveryMetadata>);

/// The facts of a delivery. [`Attempt`](crate::Attempt) documents each.
#[derive(Clone, Debug, Default)]
pub struct DeliveryMetadata {
    /// The message id.
    pub message_id: String,
    /// Number of receives, this one included.
    pub receive_count: u32,
    /// Message attributes by name.
    pub attributes: HashMap<String, Attribute>,
    /// ARN of the queue.
    pub queue_arn: Option<String>,
    /// Message group.
    pub group_id: Option<String>,
    /// Deduplication id, on a FIFO queue.
    pub deduplication_id: Option<String>,
    /// Sequence number, on a FIFO queue.
    pub sequence_number: Option<String>,
    /// Time of the send.
    pub sent_at: Option<Timestamp>,
    /// Time of the first receive.
    pub first_received_at: Option<Timestamp>,
    /// Sender.
    pub sender_id: Option<String>,
    /// X-Ray trace header of the producer.
    pub trace_header: Option<String>,
    /// Queue from which SQS moved the message to a dead-letter queue.
    pub dead_letter_source_arn: Option<String>,
    /// Facts of the removed envelope.
    pub envelope: Option<EnvelopeMetadata>,
    /// Request id, which the messages of an invocation share.
    pub request_id: Option<Arc<str>>,
}

/// The facts of the envelope in which SNS, EventBridge or S3 sent a message. Of several envelopes, one inside
/// the other, these are the facts of the innermost: of the service that the message came from.
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
    /// The service's id of the message. If the producer sends the message again, it gets a different id.
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
    /// Returns the text of a message attribute of type String or Number.
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
}

impl DeliveryMetadata {
    /// Returns the name of the queue.
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

    /// Sets how often the message was received, this time included.
    #[must_use]
    pub fn receive_count(mut self, receive_count: u32) -> Self {
        Arc::make_mut(&mut self.0).receive_count = receive_count;
        self
    }

    /// Returns the facts.
    #[must_use]
    pub fn facts(&self) -> &DeliveryMetadata {
        &self.0
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

//! [`Message`]: an SQS message, and events made from messages.

use std::collections::HashMap;

use aws_lambda_events::sqs::{SqsEvent, SqsMessage, SqsMessageAttribute};
use serde::Serialize;

use crate::protocol::Timestamp;

const QUEUE_ARN: &str = "arn:aws:sqs:eu-central-1:123456789012:test";

/// An SQS message as Lambda delivers it.
///
/// ```
/// use sqs_once::testing::{Message, event};
///
/// let order = serde_json::json!({ "orderId": "o-1", "cents": 1250 });
/// let batch = event([
///     Message::new("m-1", &order).attribute("tenant", "acme").receive_count(2),
///     Message::text("m-2", "not JSON").group("customer-7"),
/// ]);
/// assert_eq!(batch.records[0].body.as_deref(), Some(r#"{"cents":1250,"orderId":"o-1"}"#));
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct Message(SqsMessage);

impl Message {
    /// Creates a message with `body` as JSON, received for the first time from a standard queue.
    ///
    /// # Panics
    ///
    /// Panics if `body` can't be written as JSON, such as a map whose keys are not text.
    pub fn new(id: impl Into<String>, body: &impl Serialize) -> Self {
        match serde_json::to_string(body) {
            Ok(body) => Self::text(id, body),
            Err(error) => panic!("the body cannot be written as JSON: {error}"),
        }
    }

    /// Creates a message with exactly this `body`, received for the first time from a standard queue.
    pub fn text(id: impl Into<String>, body: impl Into<String>) -> Self {
        let id = id.into();
        let mut message = SqsMessage::default();
        message.receipt_handle = Some(format!("receipt-{id}"));
        message.message_id = Some(id);
        message.body = Some(body.into());
        message.event_source = Some("aws:sqs".into());
        message.event_source_arn = Some(QUEUE_ARN.into());
        message.aws_region = Some("eu-central-1".into());
        Self(message).receive_count(1)
    }

    /// Adds a message attribute of type String.
    pub fn attribute(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        let mut attribute = SqsMessageAttribute::default();
        attribute.string_value = Some(value.into());
        attribute.data_type = Some("String".into());
        self.0.message_attributes.insert(name.into(), attribute);
        self
    }

    /// Sets how many times the message was received, this time included (`ApproximateReceiveCount`).
    pub fn receive_count(self, receive_count: u32) -> Self {
        self.system("ApproximateReceiveCount", receive_count.to_string())
    }

    /// Puts the message into a message group of a FIFO queue. Its deduplication id is the message id.
    pub fn group(mut self, group: impl Into<String>) -> Self {
        self.0.event_source_arn = Some(format!("{QUEUE_ARN}.fifo"));
        let id = self.0.message_id.clone().unwrap_or_default();
        self.system("MessageGroupId", group.into())
            .system("MessageDeduplicationId", id)
    }

    /// Sets when the message was sent to the queue: `SentTimestamp`.
    pub fn sent_at(self, at: Timestamp) -> Self {
        self.system("SentTimestamp", at.as_millis().to_string())
    }

    fn system(mut self, name: &str, value: String) -> Self {
        let attributes: &mut HashMap<String, String> = &mut self.0.attributes;
        attributes.insert(name.into(), value);
        self
    }

    pub(super) fn into_sqs(self) -> SqsMessage {
        self.0
    }
}

/// Creates an event with these messages, in this order: see [`process`](super::process).
pub fn event(messages: impl IntoIterator<Item = Message>) -> SqsEvent {
    let mut event = SqsEvent::default();
    event.records = messages.into_iter().map(Message::into_sqs).collect();
    event
}

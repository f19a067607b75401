//! [`Message`]: one record of an SQS event, its ids, its body and its delivery.

use std::collections::HashMap;

use aws_lambda_events::sqs::{SqsMessage, SqsMessageAttribute};
use serde::de::DeserializeOwned;

use crate::{
    handler::{Attribute, Delivery},
    protocol::{Fingerprint, Key, Timestamp},
};

/// A message of a batch. It has an id: the response could not name a record without one.
#[derive(Debug)]
pub(crate) struct Message {
    id: MessageId,
    identity: Result<Identity, InvalidMessage>,
    body: Option<String>,
    group: Option<String>,
    receipt: Option<Receipt>,
    receive_count: u32,
    sent_at: Option<Timestamp>,
    deduplication_id: Option<String>,
    /// As they were sent: a copy must carry them unchanged.
    attributes: HashMap<String, SqsMessageAttribute>,
}

/// The key and the fingerprint of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) key: Key,
    pub(crate) fingerprint: Option<Fingerprint>,
}

/// The id that names a message in the response: never empty.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct MessageId(String);

/// The queue and the receipt handle of one receive of a message.
#[derive(Debug)]
pub(crate) struct Receipt {
    pub(crate) queue_arn: String,
    pub(crate) handle: String,
}

impl MessageId {
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

impl Message {
    /// Makes a message of a record; `None` if the record has no id.
    pub(crate) fn new(
        record: SqsMessage,
        identify: impl FnOnce(&SqsMessage) -> Result<Identity, InvalidMessage>,
    ) -> Option<Self> {
        let identity = identify(&record);
        let id = record.message_id.filter(|id| !id.is_empty())?;
        let mut system = record.attributes;
        // A standard queue has groups too, for fairness; they order nothing.
        let group = system.remove("MessageGroupId").filter(|_| {
            let arn = record.event_source_arn.as_deref();
            arn.is_some_and(|arn| arn.ends_with(".fifo"))
        });
        let receipt = record.event_source_arn.zip(record.receipt_handle);
        Some(Self {
            id: MessageId(id),
            identity,
            body: record.body,
            group,
            receipt: receipt.map(|(queue_arn, handle)| Receipt { queue_arn, handle }),
            receive_count: system
                .remove("ApproximateReceiveCount")
                .and_then(|count| count.parse().ok())
                .unwrap_or(1),
            sent_at: system
                .remove("SentTimestamp")
                .and_then(|sent_at| sent_at.parse().ok())
                .map(Timestamp::from_millis),
            deduplication_id: system.remove("MessageDeduplicationId"),
            attributes: record.message_attributes,
        })
    }

    pub(crate) fn id(&self) -> &MessageId {
        &self.id
    }

    /// Within a group of a FIFO queue, messages run in order, one at a time.
    pub(crate) fn fifo_group(&self) -> Option<&str> {
        self.group.as_deref()
    }

    /// `None` where the record holds no handle or no queue.
    pub(crate) fn receipt(&self) -> Option<&Receipt> {
        self.receipt.as_ref()
    }

    pub(crate) fn receive_count(&self) -> u32 {
        self.receive_count
    }

    pub(crate) fn sent_at(&self) -> Option<Timestamp> {
        self.sent_at
    }

    pub(crate) fn identity(&self) -> Result<&Identity, &InvalidMessage> {
        self.identity.as_ref()
    }

    pub(crate) fn key(&self) -> Option<&Key> {
        self.identity().ok().map(|identity| &identity.key)
    }

    pub(crate) fn body(&self) -> Option<&str> {
        self.body.as_deref()
    }

    /// The message attributes as they were sent.
    pub(crate) fn attributes(&self) -> &HashMap<String, SqsMessageAttribute> {
        &self.attributes
    }

    /// Only messages of FIFO queues have one.
    pub(crate) fn deduplication_id(&self) -> Option<&str> {
        self.deduplication_id.as_deref()
    }

    /// Parses the body as the handler's type.
    pub(crate) fn parse<T: DeserializeOwned>(&self) -> Result<T, InvalidMessage> {
        let body = self.body.as_deref().ok_or_else(InvalidMessage::no_body)?;
        serde_json::from_str(body).map_err(|error| InvalidMessage::json(&error))
    }

    /// The delivery for the handler.
    pub(crate) fn delivery(&self) -> Delivery {
        let attributes = self.attributes.iter();
        let attributes =
            attributes.filter_map(|(name, value)| Some((name.clone(), attribute(value)?)));
        Delivery::new(self.id.as_str())
            .receive_count(self.receive_count)
            .attributes(attributes.collect())
    }
}

/// The reason why a message can never be processed, without any of its payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct InvalidMessage(pub(crate) String);

impl InvalidMessage {
    pub(crate) fn no_body() -> Self {
        Self("the message has no body".into())
    }

    /// serde's own texts quote the payload ("invalid type: string \"4242…\""), except for a missing
    /// field, where they quote the handler's type. A path would quote the payload too: the keys of a
    /// map.
    pub(crate) fn json(error: &serde_json::Error) -> Self {
        let text = error.to_string();
        let what = match error.classify() {
            serde_json::error::Category::Data => match text.split_once(" at line ") {
                Some((missing, _)) if missing.starts_with("missing field `") => missing,
                _ => "a value is not of the type the handler takes",
            },
            _ => "not valid JSON",
        };
        let (line, column) = (error.line(), error.column());
        Self(format!(
            "the body can't be read: {what}, at line {line}, column {column}"
        ))
    }
}

/// The value of the declared type; `None` if it is missing.
fn attribute(attribute: &SqsMessageAttribute) -> Option<Attribute> {
    let kind = attribute.data_type.as_deref().unwrap_or_default();
    let text = attribute.string_value.clone();
    match kind.split('.').next() {
        Some("Binary") => {
            let value = attribute.binary_value.as_ref()?;
            Some(Attribute::Binary(value.0.clone()))
        }
        _ => text.map(Attribute::Text),
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, Deserialize)]
    struct Order {
        #[serde(rename = "orderId")]
        _id: String,
        #[serde(rename = "card")]
        _card: u64,
    }

    fn record(body: &str) -> SqsMessage {
        let mut record = SqsMessage::default();
        record.message_id = Some("m-1".into());
        record.body = Some(body.into());
        record
    }

    fn message(record: SqsMessage) -> Option<Message> {
        Message::new(record, |_| Err(InvalidMessage::no_body()))
    }

    #[test]
    fn record_without_message_id_is_refused() {
        for id in [None, Some(String::new())] {
            let mut record = record("{}");
            record.message_id = id;
            assert!(message(record).is_none());
        }
    }

    #[test]
    fn body_error_never_quotes_the_body() {
        for (body, told) in [
            (
                r#"{"orderId":"o-1","card":"4242-SECRET"}"#,
                "not of the type the handler takes, at line 1",
            ),
            (r#"{"orderId":"4242-SECRET"}"#, "missing field `card`"),
            (r#"{"orderId":"4242-SECRET"#, "not valid JSON"),
            (r#"{"orderId":"o-1","card":1} SECRET"#, "not valid JSON"),
            (
                r#""4242-SECRET""#,
                "not of the type the handler takes, at line 1",
            ),
        ] {
            let InvalidMessage(text) = message(record(body)).unwrap().parse::<Order>().unwrap_err();
            assert!(text.contains(told), "{text}");
            assert!(!text.contains("SECRET"), "{text}");
        }
        assert!(
            message(record(r#"{"orderId":"o-1","card":1}"#))
                .unwrap()
                .parse::<Order>()
                .is_ok()
        );
    }

    #[test]
    fn message_group_counts_only_on_fifo_queues() {
        let group = |arn: &str| {
            let mut record = record("{}");
            record.event_source_arn = Some(arn.into());
            record.attributes = HashMap::from([("MessageGroupId".into(), "g".into())]);
            message(record).unwrap().fifo_group().map(str::to_owned)
        };
        assert_eq!(
            group("arn:aws:sqs:eu-west-1:123456789012:q.fifo").as_deref(),
            Some("g")
        );
        assert_eq!(group("arn:aws:sqs:eu-west-1:123456789012:q"), None);
    }
}

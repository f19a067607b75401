//! [`Envelope`]: removes the JSON that a service put around the producer's message.

use std::{collections::HashMap, mem, str::FromStr};

use aws_lambda_events::{
    encodings::Base64Data,
    sqs::{SqsMessage, SqsMessageAttribute},
};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Value, value::RawValue};

use crate::{
    InvalidValue,
    handler::{EnvelopeMetadata, InvalidMessage},
};

/// The service that wraps each message of the queue in JSON.
///
/// The consumer removes the envelope before anything else: key, fingerprint and handler see the message
/// inside, and JSON pointers start there. So if the key comes from the body, an order that a producer
/// published twice is one operation. [`Attempt::envelope`](crate::Attempt::envelope) returns what the
/// envelope said.
///
/// | setting | queue | the message inside |
/// | --- | --- | --- |
/// | `none` | producers send to it, or SNS with raw message delivery | the body |
/// | `sns` | a subscription to an SNS topic (*Amazon SNS Developer Guide*, "Fanout to Amazon SQS queues") | `Message`, with `MessageAttributes` as the message attributes |
/// | `eventbridge` | a target of an EventBridge rule (*Amazon EventBridge User Guide*, "Event structure") | `detail` |
/// | `s3` | S3 event notifications (*Amazon S3 User Guide*, "Event message structure") | the list `Records`, with object keys URL-decoded |
///
/// When you set up notifications, S3 sends `s3:TestEvent`. The consumer acknowledges it without calling the
/// handler. A body without the envelope is a permanent failure.
///
/// ```
/// use sqs_once::sqs::Envelope;
///
/// assert_eq!("sns".parse(), Ok(Envelope::Sns));
/// assert!("SNS".parse::<Envelope>().is_err());
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Envelope {
    /// The body is the producer's.
    #[default]
    None,
    /// An SNS notification.
    Sns,
    /// An EventBridge event.
    EventBridge,
    /// An S3 event notification.
    S3,
}

/// A message as SQS stores it. A copy must carry it unchanged.
#[derive(Debug)]
pub(super) struct Sent {
    pub(super) body: Option<String>,
    pub(super) attributes: HashMap<String, SqsMessageAttribute>,
}

/// The content of an envelope.
#[derive(Default)]
struct Content {
    body: String,
    /// Attributes inside the envelope.
    attributes: HashMap<String, SqsMessageAttribute>,
    facts: EnvelopeMetadata,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Notification {
    message_id: String,
    topic_arn: String,
    subject: Option<String>,
    message: String,
    timestamp: String,
    #[serde(default)]
    message_attributes: HashMap<String, SnsAttribute>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct SnsAttribute {
    #[serde(rename = "Type")]
    kind: String,
    value: String,
}

#[derive(Deserialize)]
struct Event {
    id: String,
    source: String,
    #[serde(rename = "detail-type")]
    detail_type: String,
    time: String,
    detail: Box<RawValue>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum S3Notification {
    Events {
        #[serde(rename = "Records")]
        records: Vec<Value>,
    },
    Test {
        #[serde(rename = "Event")]
        event: TestEvent,
        #[serde(rename = "Time")]
        time: Option<String>,
    },
}

#[derive(Deserialize)]
enum TestEvent {
    #[serde(rename = "s3:TestEvent")]
    TestEvent,
}

impl FromStr for Envelope {
    type Err = InvalidValue;

    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        match text {
            "none" => Ok(Self::None),
            "sns" => Ok(Self::Sns),
            "eventbridge" => Ok(Self::EventBridge),
            "s3" => Ok(Self::S3),
            _ => Err(InvalidValue::new(
                "must be `none`, `sns`, `eventbridge` or `s3`",
            )),
        }
    }
}

impl Envelope {
    /// Replaces body and attributes of `record` by those in the envelope. Returns the original ones, and the
    /// facts of the envelope. `None` if there is no envelope.
    pub(super) fn open(
        self,
        record: &mut SqsMessage,
    ) -> Result<Option<(Sent, EnvelopeMetadata)>, InvalidMessage> {
        let Some(body) = record.body.as_deref() else {
            return Ok(None); // reported as a message without a body
        };
        let content: Content = match self {
            Self::None => return Ok(None),
            Self::Sns => self
                .parse::<Notification>(body, "an SNS notification")?
                .into(),
            Self::EventBridge => self.parse::<Event>(body, "an EventBridge event")?.into(),
            Self::S3 => self
                .parse::<S3Notification>(body, "an S3 event notification")?
                .try_into()?,
        };
        // Attributes of the queue win, because a copy in a dead-letter queue has attributes that the consumer
        // added.
        let mut attributes = content.attributes;
        attributes.extend(record.message_attributes.clone());
        let sent = Sent {
            body: record.body.replace(content.body),
            attributes: mem::replace(&mut record.message_attributes, attributes),
        };
        Ok(Some((sent, content.facts)))
    }

    /// Parses the envelope. The error contains no payload.
    fn parse<T: DeserializeOwned>(self, body: &str, what: &str) -> Result<T, InvalidMessage> {
        serde_json::from_str(body).map_err(|error| {
            let (line, column) = (error.line(), error.column());
            let setting = match self {
                Self::Sns => "sns: for raw message delivery set CONSUMER_ENVELOPE=none",
                Self::EventBridge => "eventbridge",
                Self::S3 => "s3",
                Self::None => "none",
            };
            InvalidMessage(format!(
                "the body is not {what}, at line {line}, column {column}: CONSUMER_ENVELOPE is {setting}"
            ))
        })
    }
}

impl From<Notification> for Content {
    fn from(notification: Notification) -> Self {
        let attributes = notification.message_attributes.into_iter();
        Self {
            body: notification.message,
            attributes: attributes
                .filter_map(|(name, attribute)| Some((name, attribute.into_sqs()?)))
                .collect(),
            facts: EnvelopeMetadata {
                id: Some(notification.message_id),
                source: Some(notification.topic_arn),
                detail_type: notification.subject,
                time: Some(notification.timestamp),
                is_test: false,
            },
        }
    }
}

impl SnsAttribute {
    /// Converts the attribute to the form that SQS uses. `None` for a binary value that is not base64.
    fn into_sqs(self) -> Option<SqsMessageAttribute> {
        let mut attribute = SqsMessageAttribute::default();
        if self.kind == "Binary" {
            let value = Value::String(self.value);
            attribute.binary_value = Some(serde_json::from_value::<Base64Data>(value).ok()?);
        } else {
            attribute.string_value = Some(self.value);
        }
        attribute.data_type = Some(self.kind);
        Some(attribute)
    }
}

impl From<Event> for Content {
    fn from(event: Event) -> Self {
        Self {
            body: Box::<str>::from(event.detail).into_string(),
            attributes: HashMap::new(),
            facts: EnvelopeMetadata {
                id: Some(event.id),
                source: Some(event.source),
                detail_type: Some(event.detail_type),
                time: Some(event.time),
                is_test: false,
            },
        }
    }
}

impl TryFrom<S3Notification> for Content {
    type Error = InvalidMessage;

    fn try_from(notification: S3Notification) -> Result<Self, InvalidMessage> {
        let mut records = match notification {
            S3Notification::Events { records } => records,
            S3Notification::Test {
                event: TestEvent::TestEvent,
                time,
            } => {
                return Ok(Self {
                    body: "[]".to_owned(),
                    facts: EnvelopeMetadata {
                        time,
                        is_test: true,
                        ..EnvelopeMetadata::default()
                    },
                    ..Self::default()
                });
            }
        };
        for (index, record) in records.iter_mut().enumerate() {
            if let Some(key) = record.pointer_mut("/s3/object/key") {
                let decoded = key.as_str().and_then(decode_object_key);
                *key = decoded.map(Value::String).ok_or_else(|| {
                    InvalidMessage(format!(
                        "the object key of record {index} of the S3 event notification is not URL-encoded UTF-8"
                    ))
                })?;
            }
        }
        let text = |name: &str| records.first()?[name].as_str().map(str::to_owned);
        let facts = EnvelopeMetadata {
            id: None,
            source: records
                .first()
                .and_then(|record| Some(record.pointer("/s3/bucket/arn")?.as_str()?.to_owned())),
            detail_type: text("eventName"),
            time: text("eventTime"),
            is_test: false,
        };
        Ok(Self {
            body: Value::from(records).to_string(),
            attributes: HashMap::new(),
            facts,
        })
    }
}

/// Decodes an object key of an S3 event notification: `+` is a space, and `%XX` a byte of UTF-8.
fn decode_object_key(key: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(key.len());
    let mut rest = key.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'+' => b' ',
            b'%' => {
                let digit = |byte: u8| char::from(byte).to_digit(16);
                let (high, low) = (digit(rest.next()?)?, digit(rest.next()?)?);
                u8::try_from(high * 16 + low).ok()?
            }
            other => other,
        });
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn record(body: &str) -> SqsMessage {
        let mut record = SqsMessage::default();
        record.body = Some(body.into());
        record
    }

    #[test]
    fn object_keys_are_decoded_as_s3_encodes_them() {
        for (encoded, decoded) in [
            ("plain.txt", Some("plain.txt")),
            ("my+photo%281%29.jpg", Some("my photo(1).jpg")),
            ("Bestellungen/%C3%A4.csv", Some("Bestellungen/ä.csv")),
            ("a%2Bb", Some("a+b")),
            ("%", None),
            ("%4", None),
            ("%GG", None),
            ("%FF", None),
        ] {
            assert_eq!(decode_object_key(encoded).as_deref(), decoded, "{encoded}");
        }
    }

    #[test]
    fn body_without_envelope_names_the_setting() {
        for (envelope, name) in [
            (
                Envelope::Sns,
                "is sns: for raw message delivery set CONSUMER_ENVELOPE=none",
            ),
            (Envelope::EventBridge, "CONSUMER_ENVELOPE is eventbridge"),
            (Envelope::S3, "CONSUMER_ENVELOPE is s3"),
        ] {
            for body in ["SECRET", r#"{"orderId":"SECRET"}"#, r#"["SECRET"]"#] {
                let InvalidMessage(error) = envelope.open(&mut record(body)).unwrap_err();
                assert!(error.ends_with(name), "{error}");
                assert!(!error.contains("SECRET"), "{error}");
            }
        }
    }

    #[test]
    fn binary_attributes_of_sns_are_decoded() {
        let notification = json!({
            "Type": "Notification", "MessageId": "s-1", "TopicArn": "arn", "Message": "{}",
            "Timestamp": "2026-11-22T08:00:00.000Z",
            "MessageAttributes": {
                "blob": {"Type": "Binary", "Value": "AAE="},
                "broken": {"Type": "Binary", "Value": "?"},
                "count": {"Type": "Number", "Value": "7"},
            },
        });
        let mut record = record(&notification.to_string());
        let (sent, facts) = Envelope::Sns.open(&mut record).unwrap().unwrap();
        assert_eq!(facts.id.as_deref(), Some("s-1"));
        assert_eq!(sent.body, Some(notification.to_string()));
        assert!(sent.attributes.is_empty());
        let attributes = &record.message_attributes;
        assert_eq!(attributes["blob"].binary_value.as_ref().unwrap().0, [0, 1]);
        assert_eq!(attributes["count"].string_value.as_deref(), Some("7"));
        assert!(!attributes.contains_key("broken"));
    }
}

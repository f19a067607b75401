//! One record of an SQS event: what names it, and what makes it the same operation as another.

use std::{collections::HashMap, str::FromStr};

use aws_lambda_events::sqs::{SqsMessage, SqsMessageAttribute};
use serde::de::DeserializeOwned;

use crate::{
    Attribute, Delivery,
    protocol::{Fingerprint, Key, Namespace},
};

/// A message of a batch. It has an id: what has none cannot be named in the response.
#[derive(Debug)]
pub(crate) struct Message {
    id: MessageId,
    identity: Result<Identity, InvalidMessage>,
    body: Option<String>,
    group: Option<String>,
    receive_count: u32,
    attributes: HashMap<String, Attribute>,
}

/// What makes a message the same operation as another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) key: Key,
    pub(crate) fingerprint: Fingerprint,
}

/// What names a message in the response: never empty.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct MessageId(String);

impl MessageId {
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

impl Message {
    /// Takes a record apart; `None` if it has no id.
    pub(crate) fn new(
        record: SqsMessage,
        namespace: &Namespace,
        source: &KeySource,
    ) -> Option<Self> {
        let id = record.message_id.filter(|id| !id.is_empty())?;
        let mut system = record.attributes;
        let attributes = record.message_attributes.into_iter();
        Some(Self {
            identity: identity(&id, record.body.as_deref(), namespace, source),
            id: MessageId(id),
            body: record.body,
            // A standard queue has groups too, for fairness; they order nothing.
            group: system.remove("MessageGroupId").filter(|_| {
                record
                    .event_source_arn
                    .is_some_and(|arn| arn.ends_with(".fifo"))
            }),
            receive_count: system
                .remove("ApproximateReceiveCount")
                .and_then(|count| count.parse().ok())
                .unwrap_or(1),
            attributes: attributes
                .filter_map(|(name, value)| Some((name, attribute(value)?)))
                .collect(),
        })
    }

    pub(crate) fn id(&self) -> &MessageId {
        &self.id
    }

    /// Within a group of a FIFO queue, messages run in order, one at a time.
    pub(crate) fn fifo_group(&self) -> Option<&str> {
        self.group.as_deref()
    }

    pub(crate) fn receive_count(&self) -> u32 {
        self.receive_count
    }

    pub(crate) fn identity(&self) -> Result<&Identity, &InvalidMessage> {
        self.identity.as_ref()
    }

    pub(crate) fn key(&self) -> Option<&Key> {
        self.identity().ok().map(|identity| &identity.key)
    }

    /// The body as what the handler takes.
    pub(crate) fn parse<T: DeserializeOwned>(&self) -> Result<T, InvalidMessage> {
        let mut json = serde_json::Deserializer::from_str(present(self.body.as_deref())?);
        let message = serde_path_to_error::deserialize(&mut json).map_err(|error| {
            let path = error.path().to_string();
            InvalidMessage(describe(error.inner(), &path))
        })?;
        json.end()
            .map_err(|error| InvalidMessage(describe(&error, ".")))?;
        Ok(message)
    }

    /// What the handler is told of it.
    pub(crate) fn delivery(&self) -> Delivery {
        Delivery::new(self.id.as_str())
            .receive_count(self.receive_count)
            .attributes(self.attributes.clone())
    }
}

fn present(body: Option<&str>) -> Result<&str, InvalidMessage> {
    body.ok_or_else(|| InvalidMessage("the message has no body".into()))
}

fn identity(
    id: &str,
    body: Option<&str>,
    namespace: &Namespace,
    source: &KeySource,
) -> Result<Identity, InvalidMessage> {
    let body = present(body)?;
    let key = match source {
        KeySource::MessageId => Key::new(namespace, [id]),
        KeySource::Body(pointer) => Key::new(namespace, [key_in_body(body, pointer)?.as_str()]),
    };
    Ok(Identity {
        key: key.map_err(|_| source.not_found("it is empty there"))?,
        fingerprint: Fingerprint::of(body.as_bytes()),
    })
}

/// Why a message can never be processed, without a word of its payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct InvalidMessage(pub(crate) String);

/// serde's own texts quote the payload ("invalid type: string \"4242…\""), all but those on a
/// missing field, which quote the handler's type.
fn describe(error: &serde_json::Error, path: &str) -> String {
    let text = error.to_string();
    let what = match error.classify() {
        serde_json::error::Category::Data => match text.split_once(" at line ") {
            Some((missing, _)) if missing.starts_with("missing field `") => missing,
            _ => "a value is not of the type the handler takes",
        },
        _ => "it is not valid JSON",
    };
    format!(
        "the body can't be read: {what}, at `{path}` (line {}, column {})",
        error.line(),
        error.column()
    )
}

fn key_in_body(body: &str, pointer: &str) -> Result<String, InvalidMessage> {
    let json: serde_json::Value =
        serde_json::from_str(body).map_err(|error| InvalidMessage(describe(&error, ".")))?;
    match json.pointer(pointer) {
        Some(serde_json::Value::String(text)) => Ok(text.clone()),
        Some(value @ (serde_json::Value::Number(_) | serde_json::Value::Bool(_))) => {
            Ok(value.to_string())
        }
        Some(_) => {
            Err(KeySource::Body(pointer.into())
                .not_found("there is no text, number or boolean there"))
        }
        None => Err(KeySource::Body(pointer.into()).not_found("there is nothing there")),
    }
}

/// Where a message's idempotency key comes from.
///
/// Written `message-id`, or `body:` and a JSON pointer (RFC 6901):
///
/// ```
/// use sqs_once::sqs::KeySource;
///
/// assert_eq!("message-id".parse(), Ok(KeySource::MessageId));
/// assert_eq!("body:/orderId".parse(), Ok(KeySource::Body("/orderId".into())));
/// assert!("orderId".parse::<KeySource>().is_err());
/// ```
///
/// The message id makes the deliveries of one message the same operation. Where a producer
/// may send an operation twice, each time with an id of its own, the key must come from the
/// body.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum KeySource {
    /// The message's id.
    #[default]
    MessageId,
    /// The text, number or boolean at this JSON pointer into the body. A message without it
    /// is a permanent failure.
    Body(String),
}

impl KeySource {
    fn not_found(&self, why: &str) -> InvalidMessage {
        let place = match self {
            Self::MessageId => "the message id".to_owned(),
            Self::Body(pointer) => format!("`{pointer}` of the body"),
        };
        InvalidMessage(format!("no idempotency key at {place}: {why}"))
    }
}

impl FromStr for KeySource {
    type Err = KeySourceError;

    fn from_str(text: &str) -> Result<Self, KeySourceError> {
        match text.strip_prefix("body:") {
            _ if text == "message-id" => Ok(Self::MessageId),
            Some(pointer) if is_json_pointer(pointer) => Ok(Self::Body(pointer.into())),
            _ => Err(KeySourceError),
        }
    }
}

/// RFC 6901, section 3; the empty pointer, the whole body, is no key.
fn is_json_pointer(text: &str) -> bool {
    text.starts_with('/')
        && text
            .split('~')
            .skip(1)
            .all(|rest| rest.starts_with('0') || rest.starts_with('1'))
}

/// What was given is no [`KeySource`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("must be `message-id`, or `body:` and a JSON pointer such as `body:/orderId`")]
pub struct KeySourceError;

/// By the declared type; `None` where there is no value of it.
fn attribute(attribute: SqsMessageAttribute) -> Option<Attribute> {
    let kind = attribute.data_type.unwrap_or_default();
    match kind.split('.').next() {
        Some("Binary") => attribute
            .binary_value
            .map(|value| Attribute::Binary(value.0)),
        Some("Number") => attribute.string_value.map(Attribute::Number),
        _ => attribute.string_value.map(Attribute::String),
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

    fn message(record: SqsMessage, source: &str) -> Option<Message> {
        Message::new(
            record,
            &Namespace::new("ns").unwrap(),
            &source.parse().unwrap(),
        )
    }

    #[test]
    fn a_record_without_an_id_is_no_message() {
        for id in [None, Some(String::new())] {
            let mut record = record("{}");
            record.message_id = id;
            assert!(message(record, "message-id").is_none());
        }
    }

    #[test]
    fn what_is_wrong_with_a_body_is_told_without_quoting_it() {
        for (body, told) in [
            (
                r#"{"orderId":"o-1","card":"4242-SECRET"}"#,
                "not of the type the handler takes, at `card`",
            ),
            (r#"{"orderId":"4242-SECRET"}"#, "missing field `card`"),
            (r#"{"orderId":"4242-SECRET"#, "not valid JSON"),
            (r#"{"orderId":"o-1","card":1} SECRET"#, "not valid JSON"),
            (
                r#""4242-SECRET""#,
                "not of the type the handler takes, at `.`",
            ),
        ] {
            let InvalidMessage(text) = message(record(body), "message-id")
                .unwrap()
                .parse::<Order>()
                .unwrap_err();
            assert!(text.contains(told), "{text}");
            assert!(!text.contains("SECRET"), "{text}");
        }
        assert!(
            message(record(r#"{"orderId":"o-1","card":1}"#), "message-id")
                .unwrap()
                .parse::<Order>()
                .is_ok()
        );
    }

    #[test]
    fn a_missing_key_is_an_error_that_says_what_was_looked_for() {
        let read = |body| message(record(body), "body:/order/id").unwrap();
        for body in [
            "{}",
            r#"{"order":{"id":""}}"#,
            r#"{"order":{"id":null}}"#,
            r#"{"order":{"id":{}}}"#,
        ] {
            let message = read(body);
            let InvalidMessage(text) = message.identity().unwrap_err();
            assert!(
                text.contains("no idempotency key at `/order/id` of the body"),
                "{text}"
            );
        }
        for (body, key) in [
            (r#"{"order":{"id":"a"}}"#, "ns#a"),
            (r#"{"order":{"id":0}}"#, "ns#0"),
        ] {
            assert_eq!(read(body).key().unwrap().as_str(), key);
        }
    }

    #[test]
    fn a_group_counts_on_a_fifo_queue_only() {
        let group = |arn: &str| {
            let mut record = record("{}");
            record.event_source_arn = Some(arn.into());
            record.attributes = HashMap::from([("MessageGroupId".into(), "g".into())]);
            message(record, "message-id")
                .unwrap()
                .fifo_group()
                .map(str::to_owned)
        };
        assert_eq!(
            group("arn:aws:sqs:eu-west-1:123456789012:q.fifo").as_deref(),
            Some("g")
        );
        assert_eq!(group("arn:aws:sqs:eu-west-1:123456789012:q"), None);
    }
}

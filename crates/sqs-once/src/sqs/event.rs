//! Reads the messages of an event, even those of a shape that SQS does not send.

use std::{
    borrow::Borrow,
    collections::{BTreeMap, HashMap},
    fmt,
};

use aws_lambda_events::sqs::{SqsMessage, SqsMessageAttribute};
use serde::{
    Deserialize, Deserializer,
    de::{MapAccess, Visitor, value::MapAccessDeserializer},
};
use serde_json::value::RawValue;

use super::{batch_error::BatchError, message::Message};
use crate::handler::InvalidMessage;

/// The event of an event source mapping.
#[derive(Deserialize)]
struct MappingEvent<'a> {
    #[serde(rename = "Records", borrow)]
    records: Vec<&'a RawValue>,
}

/// The same event, if all its messages have the shape that SQS sends. Such an event is parsed only once.
#[derive(Deserialize)]
struct OrdinaryEvent {
    #[serde(rename = "Records")]
    records: Vec<Ordinary>,
}

/// A message of the shape that SQS sends, or `None` if it has no id. Rejects a list, because serde would take the list's
/// elements for the members of a struct.
struct Ordinary(Option<Message>);

impl<'de> Deserialize<'de> for Ordinary {
    fn deserialize<D: Deserializer<'de>>(message: D) -> Result<Self, D::Error> {
        struct Object;
        impl<'de> Visitor<'de> for Object {
            type Value = Ordinary;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, members: A) -> Result<Ordinary, A::Error> {
                let sqs = SqsMessage::deserialize(MapAccessDeserializer::new(members))?;
                Ok(Ordinary(Message::new(sqs)))
            }
        }
        message.deserialize_map(Object)
    }
}

/// Members of an object, each as its text. If a name occurs twice, the last one wins.
type Members<'a> = BTreeMap<Name, &'a RawValue>;

/// The name of a member. Empty if it isn't Unicode (half of a surrogate pair, say), because we never look for such a member.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Name(String);

impl Borrow<str> for Name {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl<'de> Deserialize<'de> for Name {
    fn deserialize<D: Deserializer<'de>>(name: D) -> Result<Self, D::Error> {
        struct Bytes;
        impl Visitor<'_> for Bytes {
            type Value = Name;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a name")
            }

            fn visit_bytes<E>(self, name: &[u8]) -> Result<Name, E> {
                let name = str::from_utf8(name).unwrap_or_default();
                Ok(Name(name.to_owned()))
            }
        }
        name.deserialize_bytes(Bytes)
    }
}

/// Reads the event of an event source mapping, or the list of messages that an EventBridge pipe sends.
///
/// `SqsEvent` rejects the whole event for one odd message. All its messages would then come back until they are in
/// the dead-letter queue.
pub(super) fn read(event: &str) -> Result<Vec<Message>, BatchError> {
    let list = if event.trim_start().starts_with('[') {
        serde_json::from_str(event)
    } else if let Ok(OrdinaryEvent { records }) = serde_json::from_str(event) {
        return with_ids(records.into_iter().map(|Ordinary(message)| message));
    } else {
        serde_json::from_str(event).map(|event: MappingEvent<'_>| event.records)
    };
    let list: Vec<&RawValue> = list.map_err(|error| BatchError::NotSqs {
        line: error.line(),
        column: error.column(),
    })?;
    with_ids(list.into_iter().map(read_one))
}

/// Collects messages. Fails if one has no id, because the response could not name it.
pub(super) fn with_ids(
    messages: impl Iterator<Item = Option<Message>>,
) -> Result<Vec<Message>, BatchError> {
    let with_id =
        |(index, message): (usize, Option<_>)| message.ok_or(BatchError::NoMessageId { index });
    messages.enumerate().map(with_id).collect()
}

fn read_one(json: &RawValue) -> Option<Message> {
    match serde_json::from_str(json.get()) {
        Ok(Ordinary(message)) => message,
        Err(_) => {
            let members = parsed(json).unwrap_or_default();
            let odd = Message::new(readable(&members))?;
            Some(odd.refused(fault(&members)))
        }
    }
}

/// Reads only the members of an odd message that the response, the visibility timeout and a copy need.
fn readable(members: &Members<'_>) -> SqsMessage {
    let text = |name| parsed::<String>(members.get(name)?);
    let mut sqs = SqsMessage::default();
    sqs.message_id = text("messageId");
    sqs.receipt_handle = text("receiptHandle");
    sqs.event_source_arn = text("eventSourceARN");
    let system = members.get("attributes").copied().and_then(parsed);
    let system: Members<'_> = system.unwrap_or_default();
    sqs.attributes = system
        .into_iter()
        .filter_map(|(Name(name), value)| Some((name, text_or_digits(value)?)))
        .collect();
    let attributes = match members.get("messageAttributes") {
        Some(attributes) => all_attributes(attributes),
        None => Some(HashMap::new()),
    };
    // A copy that lacks an attribute would be a different message, so we also drop the body. Without a body, no copy is sent.
    if let Some(attributes) = attributes {
        sqs.message_attributes = attributes;
        sqs.body = text("body");
    }
    sqs
}

/// Parses those members of message attributes that SQS uses. Returns `None` if the value of an attribute can't be read.
fn all_attributes(attributes: &RawValue) -> Option<HashMap<String, SqsMessageAttribute>> {
    let attributes: Option<Members<'_>> = parsed(attributes)?;
    let attribute = |(Name(name), attribute): (Name, &RawValue)| {
        let members: Members<'_> = parsed(attribute)?;
        let data_type: String = parsed(members.get("dataType")?)?;
        let mut attribute = SqsMessageAttribute::default();
        if data_type.starts_with("Binary") {
            attribute.binary_value = Some(parsed(members.get("binaryValue")?)?);
        } else {
            attribute.string_value = Some(parsed(members.get("stringValue")?)?);
        }
        attribute.data_type = Some(data_type);
        Some((name, attribute))
    };
    attributes.into_iter().flatten().map(attribute).collect()
}

/// Names the first member whose type is not the one that SQS sends. We don't pass on serde's error, which may quote the payload.
fn fault(members: &Members<'_>) -> InvalidMessage {
    let is_odd = |(Name(name), value): &(&Name, &&RawValue)| match name.as_str() {
        "attributes" => parsed::<Option<HashMap<String, String>>>(value).is_none(),
        "messageAttributes" => {
            parsed::<Option<HashMap<String, SqsMessageAttribute>>>(value).is_none()
        }
        "body"
        | "receiptHandle"
        | "eventSourceARN"
        | "eventSource"
        | "awsRegion"
        | "md5OfBody"
        | "md5OfMessageAttributes" => parsed::<Option<String>>(value).is_none(),
        _ => false,
    };
    InvalidMessage(match members.iter().find(is_odd) {
        Some((Name(name), _)) => format!(
            "the record of the event can't be read: its member `{name}` is not as SQS sends it"
        ),
        None => "the record of the event can't be read: its members are not as SQS sends them"
            .to_owned(),
    })
}

/// Parses a string, or a whole number, because some senders write the receive count as a number.
fn text_or_digits(value: &RawValue) -> Option<String> {
    let digits = value.get();
    let is_number = digits.bytes().all(|byte| byte.is_ascii_digit());
    parsed(value).or_else(|| is_number.then(|| digits.to_owned()))
}

fn parsed<'a, T: Deserialize<'a>>(value: &'a RawValue) -> Option<T> {
    serde_json::from_str(value.get()).ok()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::sqs::key_source::NoKey;

    fn message(message: &Value) -> Message {
        let event = json!({ "Records": [message] }).to_string();
        read(&event).unwrap().remove(0)
    }

    /// Returns why a message can't be read.
    fn refused(message: &Message) -> &str {
        match &message.identity {
            Some(Err(NoKey::Invalid(InvalidMessage(why)))) => why,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn odd_message_keeps_what_can_be_read() {
        let odd = message(&json!({
            "messageId": "m-1", "receiptHandle": "r-1", "body": "b", "eventSourceARN": "arn:q.fifo",
            "attributes": {"ApproximateReceiveCount": "7", "MessageGroupId": "g", "SenderId": 5},
            "messageAttributes": {
                "a": {"dataType": "Number", "stringValue": "1", "binaryValue": "no base64?"},
                "b": {"dataType": "Binary.x", "binaryValue": "AAE=", "binaryListValues": null},
            },
        }));
        assert!(refused(&odd).contains("`attributes`"), "{odd:?}");
        let receipt = odd.receipt().unwrap();
        let texts = [odd.id.as_str(), receipt.handle, receipt.queue_arn];
        assert_eq!(texts, ["m-1", "r-1", "arn:q.fifo"]);
        assert_eq!(odd.sent_body.as_deref(), Some("b"));
        let facts = odd.delivery.facts();
        assert_eq!(facts.attribute("a"), Some("1"));
        assert_eq!(facts.binary_attribute("b"), Some(&[0, 1][..]));
        assert_eq!(facts.receive_count, 7);
        assert_eq!(facts.group_id.as_deref(), Some("g"));
        assert_eq!(facts.sender_id.as_deref(), Some("5"));
    }

    #[test]
    fn id_and_receive_count_survive_odd_members() {
        let event = r#"[{"messageId":"m-1","body":"b","\ud83d":1,
            "attributes":{"ApproximateReceiveCount":57,"\ud83d":"x"}}]"#;
        let odd = read(event).unwrap().remove(0);
        refused(&odd);
        assert_eq!((odd.id.as_str(), odd.receive_count()), ("m-1", 57));
    }

    #[test]
    fn odd_message_without_all_attributes_has_no_body() {
        for attributes in [
            json!({"a": {"dataType": "Binary", "binaryValue": "no base64?"}}),
            json!({"a": {"dataType": "String", "stringValue": 7}}),
            json!({"a": "SECRET"}),
            json!("SECRET"),
        ] {
            let odd =
                message(&json!({"messageId": "m-1", "body": "b", "messageAttributes": attributes}));
            let fault = refused(&odd);
            assert!(fault.contains("`messageAttributes`"), "{fault}");
            assert!(!fault.contains("SECRET"), "{fault}");
            assert_eq!(odd.sent_body, None, "{attributes}");
        }
    }

    #[test]
    fn member_that_occurs_twice_is_a_fault() {
        let event = r#" [{"messageId": "m-1", "body": "a", "body": "b"}]"#;
        refused(&read(event).unwrap()[0]);
    }

    #[test]
    fn message_without_id_fails_the_event() {
        for unnamed in [
            json!({"body": "SECRET"}),
            json!({"messageId": null, "body": "SECRET"}),
            json!({"messageId": "", "body": "SECRET"}),
            json!({"messageId": 7, "body": "SECRET"}),
            json!(["m-2", "receipt", "2"]),
            json!("SECRET"),
            json!(null),
            json!([]),
        ] {
            let good = json!({"messageId": "m-1", "body": "1"});
            for event in [json!({"Records": [good, unnamed]}), json!([good, unnamed])] {
                let error = read(&event.to_string()).unwrap_err();
                assert_eq!(error, BatchError::NoMessageId { index: 1 }, "{unnamed}");
            }
        }
    }
}

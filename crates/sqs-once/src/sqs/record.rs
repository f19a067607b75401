//! [`Record`]: one record of an event, which may have a shape that SQS does not send.

use std::{
    borrow::Borrow,
    collections::{BTreeMap, HashMap},
    fmt,
};

use aws_lambda_events::sqs::{SqsMessage, SqsMessageAttribute};
use serde::{Deserialize, Deserializer, de::Visitor};
use serde_json::value::RawValue;

use crate::handler::InvalidMessage;

/// One record of an event.
///
/// `SqsEvent` refuses the whole event for one odd record. Then all its messages would come back until they
/// are in the dead-letter queue.
#[derive(Debug, Default)]
pub(crate) struct Record {
    pub(super) message: SqsMessage,
    /// Why the record can't be read. `message` then has what can be read of it.
    pub(super) fault: Option<InvalidMessage>,
}

/// The event of an event source mapping.
#[derive(Deserialize)]
struct Event<'a> {
    #[serde(rename = "Records", borrow)]
    records: Vec<&'a RawValue>,
}

/// Members of an object, each as its text. If a name occurs twice, the last one counts.
type Members<'a> = BTreeMap<Name, &'a RawValue>;

/// The name of a member. Empty if it is no Unicode, as half of a surrogate pair: nobody asks for that member.
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

impl From<SqsMessage> for Record {
    fn from(message: SqsMessage) -> Self {
        Self {
            message,
            fault: None,
        }
    }
}

impl Record {
    /// Parses the event of an event source mapping, or the list of records that an EventBridge pipe sends.
    pub(super) fn parse_all(event: &str) -> serde_json::Result<Vec<Self>> {
        let records: Vec<&RawValue> = if event.trim_start().starts_with('[') {
            serde_json::from_str(event)?
        } else {
            serde_json::from_str::<Event<'_>>(event)?.records
        };
        Ok(records.into_iter().map(Self::parse).collect())
    }

    fn parse(record: &RawValue) -> Self {
        // serde would take the elements of a list for the members of a struct.
        if !record.get().starts_with('{') {
            return Self::default();
        }
        let message = serde_json::from_str::<SqsMessage>(record.get());
        message.map_or_else(|_| Self::of_readable(record), Self::from)
    }

    /// Takes what the response, the visibility timeout and a copy of the message need.
    fn of_readable(record: &RawValue) -> Self {
        let members: Members<'_> = parsed(record).unwrap_or_default();
        let text = |name| parsed::<String>(members.get(name)?);
        let mut message = SqsMessage::default();
        message.message_id = text("messageId");
        message.receipt_handle = text("receiptHandle");
        message.event_source_arn = text("eventSourceARN");
        let system = members.get("attributes").copied().and_then(parsed);
        let system: Members<'_> = system.unwrap_or_default();
        message.attributes = system
            .into_iter()
            .filter_map(|(Name(name), value)| Some((name, text_or_digits(value)?)))
            .collect();
        let attributes = match members.get("messageAttributes") {
            Some(attributes) => all_attributes(attributes),
            None => Some(HashMap::new()),
        };
        // A copy that lacks an attribute would be a different message. Without a body there is no copy.
        if let Some(attributes) = attributes {
            message.message_attributes = attributes;
            message.body = text("body");
        }
        Self {
            message,
            fault: Some(fault(&members)),
        }
    }
}

/// Parses message attributes by what SQS uses of them. `None` if the value of one can't be read.
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

/// Names the first member that is not of the type that SQS sends. serde's own error may quote payload.
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

/// Parses a text. A whole number counts as one, so that its message keeps its receive count.
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

    fn record(record: &Value) -> Record {
        let event = json!({ "Records": [record] }).to_string();
        Record::parse_all(&event).unwrap().remove(0)
    }

    #[test]
    fn odd_record_keeps_what_can_be_read() {
        let odd = record(&json!({
            "messageId": "m-1", "receiptHandle": "r-1", "body": "b", "eventSourceARN": "arn:q.fifo",
            "attributes": {"ApproximateReceiveCount": "7", "MessageGroupId": "g", "SenderId": 5},
            "messageAttributes": {
                "a": {"dataType": "Number", "stringValue": "1", "binaryValue": "no base64?"},
                "b": {"dataType": "Binary.x", "binaryValue": "AAE=", "binaryListValues": null},
            },
        }));
        let InvalidMessage(fault) = odd.fault.unwrap();
        assert!(fault.contains("`attributes`"), "{fault}");
        let message = odd.message;
        let texts = [
            message.message_id,
            message.receipt_handle,
            message.body,
            message.event_source_arn,
            message.message_attributes["a"].string_value.clone(),
        ];
        let texts = texts.map(Option::unwrap);
        assert_eq!(texts, ["m-1", "r-1", "b", "arn:q.fifo", "1"]);
        let binary = message.message_attributes["b"].binary_value.as_ref();
        assert_eq!(binary.unwrap().0, [0, 1]);
        assert_eq!(message.attributes["ApproximateReceiveCount"], "7");
        assert_eq!(message.attributes["MessageGroupId"], "g");
        assert_eq!(message.attributes["SenderId"], "5");
    }

    #[test]
    fn record_keeps_id_and_receive_count_of_odd_members() {
        let event = r#"[{"messageId":"m-1","body":"b","\ud83d":1,
            "attributes":{"ApproximateReceiveCount":57,"\ud83d":"x"}}]"#;
        let odd = Record::parse_all(event).unwrap().remove(0);
        assert!(odd.fault.is_some());
        assert_eq!(odd.message.message_id.as_deref(), Some("m-1"));
        assert_eq!(odd.message.attributes["ApproximateReceiveCount"], "57");
    }

    #[test]
    fn odd_record_without_all_attributes_has_no_body() {
        for attributes in [
            json!({"a": {"dataType": "Binary", "binaryValue": "no base64?"}}),
            json!({"a": {"dataType": "String", "stringValue": 7}}),
            json!({"a": "SECRET"}),
            json!("SECRET"),
        ] {
            let odd =
                record(&json!({"messageId": "m-1", "body": "b", "messageAttributes": attributes}));
            let InvalidMessage(fault) = odd.fault.unwrap();
            assert!(fault.contains("`messageAttributes`"), "{fault}");
            assert!(!fault.contains("SECRET"), "{fault}");
            assert_eq!(odd.message.body, None, "{attributes}");
        }
    }

    #[test]
    fn member_that_occurs_twice_is_a_fault() {
        let event = r#" [{"messageId": "m-1", "body": "a", "body": "b"}]"#;
        let odd = Record::parse_all(event).unwrap().remove(0);
        assert_eq!(odd.message.message_id.as_deref(), Some("m-1"));
        assert!(odd.fault.is_some());
    }
}

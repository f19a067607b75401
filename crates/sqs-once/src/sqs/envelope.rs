//! [`Envelope`]: removes the JSON that SNS, EventBridge and S3 put around the producer's message.

use std::{
    collections::{BTreeMap, HashMap},
    str::FromStr,
};

use aws_lambda_events::encodings::Base64Data;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::{
    content::{Content, Raw, object, text},
    document::one_at_a_time,
    s3_notification,
};
use crate::{
    InvalidValue,
    handler::{Attribute, AttributeValue, EnvelopeMetadata, InvalidMessage, without_bom},
};

/// How many envelopes a message may have around it. One from S3 through EventBridge and SNS has two.
const MAX_DEPTH: usize = 8;
/// How many attributes an SNS notification may have.
const MAX_ATTRIBUTES: usize = 100;

/// Decides whether the consumer removes the JSON that a service put around a message.
///
/// With [`Auto`](Self::Auto), the consumer removes the envelopes of SNS, EventBridge and S3 before anything else, even one
/// inside another (S3 → SNS → SQS). A body without an envelope stays as it is, so a queue can hold both kinds. Key,
/// fingerprint and handler see the innermost message, and JSON pointers start there. So if the key comes from the body, an
/// order that a producer published twice is one operation.
/// [`DeliveryMetadata::envelope`](crate::DeliveryMetadata::envelope) holds what the innermost envelope said.
///
/// | envelope | the body is a JSON object with | the message inside |
/// | --- | --- | --- |
/// | SNS notification (*Amazon SNS Developer Guide*, "Fanout to Amazon SQS queues") | `Type` = `Notification`, and the texts `TopicArn`, `MessageId` and `Message` | `Message`, with `MessageAttributes` as message attributes |
/// | EventBridge event (*Amazon EventBridge User Guide*, "Event structure") | the texts `id`, `source`, `detail-type` and `time`, and the object `detail` (with a text there, the event stays as it is) | `detail` |
/// | S3 event notification (*Amazon S3 User Guide*, "Event message structure") | `Records`, a list that is not empty, each an object with `eventSource` = `aws:s3` and an object `s3` | the list `Records`, with object keys URL-decoded |
///
/// Two kinds of messages never reach a handler, not even with [`None`](Self::None):
///
/// - The test event that S3 sends when you set up notifications (`Service` = `Amazon S3`, `Event` =
///   `s3:TestEvent`, and a text `Bucket`) is acknowledged.
/// - SNS's request to confirm a subscription or its end (`Type` = `SubscriptionConfirmation` or
///   `UnsubscribeConfirmation`, and a text `TopicArn`) is a permanent failure that says what to do.
///
/// With `None`, the handler gets a body with its envelope, and pointers start at the envelope. A fingerprint of
/// the whole body then covers only the innermost message, because the envelope differs each time a message is
/// published.
///
/// ```
/// use sqs_once::sqs::Envelope;
///
/// assert_eq!("auto".parse(), Ok(Envelope::Auto));
/// assert!("sns".parse::<Envelope>().is_err());
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Envelope {
    /// The handler gets each body as it is.
    #[default]
    None,
    /// The handler gets the message inside the envelopes, if there are any.
    Auto,
}

/// Why a body has no message for a handler.
#[derive(Debug)]
pub(super) enum NoMessage {
    /// S3 sent the message to test its notifications.
    S3Test,
    /// SNS asks to confirm a subscription or its end.
    Confirmation(InvalidMessage),
    /// The envelope can't be removed.
    Invalid(InvalidMessage),
}

/// The members of an envelope, each as its text. We don't use the types of `aws_lambda_events`: they require
/// members that emulators omit, reject the whole event for one odd member, and lose members of an S3 record
/// that they don't know.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "PascalCase", bound(deserialize = "'de: 'a"))]
struct EnvelopeMembers<'a> {
    // SNS
    r#type: Raw<'a>,
    topic_arn: Raw<'a>,
    message_id: Raw<'a>,
    subject: Raw<'a>,
    message: Raw<'a>,
    timestamp: Raw<'a>,
    message_attributes: Raw<'a>,
    // EventBridge
    #[serde(rename = "id")]
    id: Raw<'a>,
    #[serde(rename = "source")]
    source: Raw<'a>,
    #[serde(rename = "detail-type")]
    detail_type: Raw<'a>,
    #[serde(rename = "time")]
    time: Raw<'a>,
    #[serde(rename = "detail")]
    detail: Raw<'a>,
    // S3
    records: Raw<'a>,
    service: Raw<'a>,
    event: Raw<'a>,
    bucket: Raw<'a>,
}

#[derive(Deserialize)]
struct SnsAttribute<'a> {
    #[serde(rename = "Type")]
    data_type: String,
    #[serde(rename = "Value", borrow)]
    value: &'a RawValue,
}

impl FromStr for Envelope {
    type Err = InvalidValue;

    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        match text {
            "none" => Ok(Self::None),
            "auto" => Ok(Self::Auto),
            _ => Err(InvalidValue::new("must be `none` or `auto`")),
        }
    }
}

/// Removes the envelopes around the innermost message. Returns `None` if there are none.
pub(super) fn open(body: &str) -> Result<Option<Content>, NoMessage> {
    let _turn = one_at_a_time();
    let mut opened: Option<Content> = None;
    for _ in 0..=MAX_DEPTH {
        let outer = opened.as_ref().map_or(body, |content| &content.body);
        let Some(mut inner) = remove_one(outer)? else {
            return Ok(opened);
        };
        // The outer envelope's attributes win, just as the queue's do.
        inner
            .attributes
            .extend(opened.into_iter().flat_map(|it| it.attributes));
        opened = Some(inner);
    }
    Err(NoMessage::Invalid(InvalidMessage(format!(
        "the message is in more than {MAX_DEPTH} envelopes of SNS, EventBridge or S3"
    ))))
}

/// Returns whether a body is an EventBridge event whose `detail` is a text. We don't treat such an event as an envelope.
pub(super) fn has_text_as_detail(body: &str) -> bool {
    let members = object::<EnvelopeMembers<'_>>(without_bom(body).trim_start());
    let event = members.as_ref().and_then(EnvelopeMembers::event_bridge);
    event.is_some_and(|(_, detail)| detail.starts_with('"'))
}

fn remove_one(body: &str) -> Result<Option<Content>, NoMessage> {
    let Some(members) = object::<EnvelopeMembers<'_>>(without_bom(body).trim_start()) else {
        return Ok(None);
    };
    if let Some(why) = members.confirmation() {
        return Err(NoMessage::Confirmation(why));
    }
    if members.is_s3_test() {
        return Err(NoMessage::S3Test);
    }
    let of_event_bridge = || {
        let (facts, detail) = members.event_bridge()?;
        detail.starts_with('{').then(|| {
            Ok(Content {
                body: detail.to_owned(),
                attributes: HashMap::new(),
                facts,
            })
        })
    };
    (members.sns())
        .or_else(of_event_bridge)
        .or_else(|| s3_notification::content(members.records?))
        .transpose()
        .map_err(NoMessage::Invalid)
}

impl EnvelopeMembers<'_> {
    fn confirmation(&self) -> Option<InvalidMessage> {
        text(self.topic_arn)?;
        let asks = match text(self.r#type)?.as_str() {
            "SubscriptionConfirmation" => {
                "SNS asks to confirm the subscription of this queue (SubscriptionConfirmation) and sends no \
                 message before that: confirm it"
            }
            "UnsubscribeConfirmation" => {
                "SNS ended the subscription of this queue (UnsubscribeConfirmation): if that was wrong, \
                 confirm it again"
            }
            _ => return None,
        };
        Some(InvalidMessage(format!(
            "{asks} with `aws sns confirm-subscription`, with the TopicArn and the Token of this body, or \
             visit its SubscribeURL"
        )))
    }

    fn is_s3_test(&self) -> bool {
        let is = |member, value| text(member).is_some_and(|text| text == value);
        is(self.service, "Amazon S3")
            && is(self.event, "s3:TestEvent")
            && text(self.bucket).is_some()
    }

    fn sns(&self) -> Option<Result<Content, InvalidMessage>> {
        if text(self.r#type)? != "Notification" {
            return None;
        }
        let facts = EnvelopeMetadata {
            id: Some(text(self.message_id)?),
            source: Some(text(self.topic_arn)?),
            detail_type: text(self.subject),
            time: text(self.timestamp),
        };
        let body = text(self.message)?;
        Some(
            sns_attributes(self.message_attributes).map(|attributes| Content {
                body,
                attributes,
                facts,
            }),
        )
    }

    /// Returns an EventBridge event's metadata and its `detail` as JSON.
    fn event_bridge(&self) -> Option<(EnvelopeMetadata, &str)> {
        let facts = EnvelopeMetadata {
            id: Some(text(self.id)?),
            source: Some(text(self.source)?),
            detail_type: Some(text(self.detail_type)?),
            time: Some(text(self.time)?),
        };
        Some((facts, self.detail?.get()))
    }
}

/// Converts attributes to the form that SQS uses. Leaves out attributes that can't be read.
fn sns_attributes(attributes: Raw<'_>) -> Result<HashMap<String, Attribute>, InvalidMessage> {
    let attributes: BTreeMap<String, &RawValue> = attributes
        .and_then(|all| serde_json::from_str(all.get()).ok())
        .unwrap_or_default();
    if attributes.len() > MAX_ATTRIBUTES {
        return Err(InvalidMessage(format!(
            "the SNS notification has more than {MAX_ATTRIBUTES} message attributes"
        )));
    }
    let attribute = |text: &RawValue| {
        let SnsAttribute { data_type, value } = serde_json::from_str(text.get()).ok()?;
        let value = if data_type == "Binary" {
            let bytes: Base64Data = serde_json::from_str(value.get()).ok()?;
            AttributeValue::Binary(bytes.0)
        } else {
            AttributeValue::Text(serde_json::from_str(value.get()).ok()?)
        };
        Some(Attribute { data_type, value })
    };
    Ok(attributes
        .into_iter()
        .filter_map(|(name, text)| Some((name, attribute(text)?)))
        .collect())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn opened(body: &Value) -> Option<Content> {
        open(&body.to_string()).unwrap()
    }

    fn sns(message: &Value) -> Value {
        json!({
            "Type": "Notification", "MessageId": "s-1", "TopicArn": "arn:topic",
            "Message": message.to_string(), "Timestamp": "2026-11-22T08:00:00.000Z",
        })
    }

    fn event_bridge(detail: &Value) -> Value {
        json!({
            "version": "0", "id": "e-1", "detail-type": "OrderPlaced", "source": "shop",
            "account": "123456789012", "time": "2026-11-22T08:00:00Z", "region": "us-east-1",
            "resources": [], "detail": detail,
        })
    }

    fn s3(key: &str) -> Value {
        json!({"Records": [{
            "eventVersion": "2.1", "eventSource": "aws:s3", "eventName": "ObjectCreated:Put",
            "eventTime": "2026-11-22T08:00:00.000Z",
            "s3": {"bucket": {"name": "b", "arn": "arn:aws:s3:::b"}, "object": {"key": key, "size": 1}},
        }]})
    }

    fn s3_test() -> Value {
        json!({"Service": "Amazon S3", "Event": "s3:TestEvent", "Bucket": "b", "RequestId": "r"})
    }

    #[test]
    fn setting_names_its_two_values() {
        assert_eq!("none".parse(), Ok(Envelope::None));
        for old in ["sns", "eventbridge", "s3", "AUTO", ""] {
            let error = old.parse::<Envelope>().unwrap_err();
            assert_eq!(error.to_string(), "must be `none` or `auto`");
        }
    }

    #[test]
    fn innermost_message_and_its_envelope_are_found() {
        let order = json!({"orderId": "o-1"});
        let list = s3("a b")["Records"].clone();
        for (body, inner, source) in [
            (sns(&order), &order, "arn:topic"),
            (event_bridge(&order), &order, "shop"),
            (s3("a+b"), &list, "arn:aws:s3:::b"),
            (sns(&s3("a+b")), &list, "arn:aws:s3:::b"),
            (sns(&event_bridge(&order)), &order, "shop"),
            (event_bridge(&sns(&order)), &order, "arn:topic"),
            (
                sns(&event_bridge(&sns(&sns(&s3("a+b"))))),
                &list,
                "arn:aws:s3:::b",
            ),
            // EventBridge does not encode keys.
            (
                sns(&event_bridge(&json!({"object": {"key": "a+b"}}))),
                &json!({"object": {"key": "a+b"}}),
                "shop",
            ),
        ] {
            let content = opened(&body).unwrap();
            assert_eq!(
                serde_json::from_str::<Value>(&content.body).unwrap(),
                *inner
            );
            assert_eq!(content.facts.source.as_deref(), Some(source), "{body}");
            let marked = format!("\u{feff} {body}");
            assert_eq!(open(&marked).unwrap().unwrap().body, content.body);
        }
    }

    #[test]
    fn body_that_lacks_a_mark_stays_as_it_is() {
        let without = |mut body: Value, name: &str| {
            body.as_object_mut().unwrap().remove(name);
            body
        };
        let with = |mut body: Value, pointer: &str, value: Value| {
            *body.pointer_mut(pointer).unwrap() = value;
            body
        };
        let order = json!({"orderId": "o-1"});
        let (sns, event_bridge, s3) = (sns(&order), event_bridge(&order), s3("%GG"));
        let mut bodies = vec![
            order,
            json!("text"),
            json!(["Notification", "arn:topic", "s-1", null, "{}"]),
            json!({"Records": []}),
            json!({"Records": [1, 2]}),
            json!({"Records": {"eventSource": "aws:s3", "s3": {}}}),
            with(sns.clone(), "/Type", json!("notification")),
            with(sns.clone(), "/Message", json!({"orderId": "o-1"})),
            with(sns.clone(), "/TopicArn", json!(7)),
            with(event_bridge.clone(), "/detail", json!("{}")),
            with(event_bridge.clone(), "/detail-type", json!(null)),
            with(s3.clone(), "/Records/0/eventSource", json!("aws:sqs")),
            with(s3, "/Records/0/s3", json!("key")),
            with(s3_test(), "/Event", json!("s3:ObjectCreated:Put")),
        ];
        let names = ["Type", "TopicArn", "MessageId", "Message"];
        bodies.extend(names.map(|name| without(sns.clone(), name)));
        let names = ["id", "source", "detail-type", "time", "detail"];
        bodies.extend(names.map(|name| without(event_bridge.clone(), name)));
        bodies.extend(["Service", "Event", "Bucket"].map(|name| without(s3_test(), name)));
        for body in bodies {
            assert!(opened(&body).is_none(), "{body}");
        }
        for text in [
            "",
            "{",
            "text",
            "\u{feff}",
            r#"{"Type":"Notification","Type":1}"#,
        ] {
            assert!(open(text).unwrap().is_none(), "{text}");
        }
    }

    #[test]
    fn control_messages_are_found_at_every_depth() {
        let mut confirmation = sns(&json!("You have chosen to subscribe"));
        for kind in ["SubscriptionConfirmation", "UnsubscribeConfirmation"] {
            confirmation["Type"] = json!(kind);
            for body in [
                &confirmation,
                &sns(&confirmation),
                &event_bridge(&confirmation),
            ] {
                let Err(NoMessage::Confirmation(InvalidMessage(why))) = open(&body.to_string())
                else {
                    panic!("{body}");
                };
                for part in [kind, "aws sns confirm-subscription", "SubscribeURL"] {
                    assert!(why.contains(part), "{why}");
                }
                assert!(!why.contains("arn:topic"), "{why}");
            }
        }
        for body in [s3_test(), sns(&s3_test()), sns(&event_bridge(&s3_test()))] {
            let opened = open(&body.to_string());
            assert!(matches!(opened, Err(NoMessage::S3Test)), "{body}");
        }
    }

    #[test]
    fn nesting_has_a_bound() {
        let nested = |depth| (0..depth).fold(json!({}), |inner, _| event_bridge(&inner));
        assert_eq!(opened(&nested(MAX_DEPTH)).unwrap().body, "{}");
        let beyond = open(&nested(MAX_DEPTH + 1).to_string());
        assert!(matches!(beyond, Err(NoMessage::Invalid(_))), "{beyond:?}");
    }

    #[test]
    fn attributes_of_sns_are_converted() {
        let mut inner = sns(&json!({}));
        inner["MessageAttributes"] = json!({
            "blob": {"Type": "Binary", "Value": "AAE="},
            "broken": {"Type": "Binary", "Value": "?"},
            "odd": 7,
            "count": {"Type": "Number", "Value": "7"},
        });
        let mut outer = sns(&inner);
        outer["MessageAttributes"] = json!({"count": {"Type": "Number", "Value": "8"}});
        let attributes = opened(&outer).unwrap().attributes;
        let value = |name: &str| &attributes[name].value;
        assert_eq!(*value("blob"), AttributeValue::Binary(vec![0, 1]));
        assert_eq!(*value("count"), AttributeValue::Text("8".into()));
        assert_eq!(attributes.len(), 2);
        for odd in [json!(null), json!([]), json!("x")] {
            inner["MessageAttributes"] = odd;
            assert!(opened(&inner).unwrap().attributes.is_empty());
        }
        let many = (0..=MAX_ATTRIBUTES).map(|n| (format!("a{n}"), json!(0)));
        inner["MessageAttributes"] = Value::Object(many.collect());
        assert!(matches!(
            open(&inner.to_string()),
            Err(NoMessage::Invalid(_))
        ));
    }
}

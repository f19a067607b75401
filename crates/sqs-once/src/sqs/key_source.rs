//! [`KeySource`]: decides which messages are the same operation.

use std::{fmt, str::FromStr, sync::Arc};

use serde::de::DeserializeOwned;
use serde_json::Number;

use super::{
    callback::Callback,
    canonical::Canonical,
    document::{Document, one_at_a_time},
    pointer::Pointers,
};
use crate::{
    InvalidValue,
    flawed::flawed,
    handler::{DeliveryMetadata, InvalidMessage, without_bom},
    protocol::{Key, KeyBuilder, KeyPart, Namespace},
};

/// Message attribute in which a copy in a dead-letter queue carries the original message's deduplication id.
pub(super) const ORIGINAL_DEDUPLICATION_ID: &str = "SqsOnceDeduplicationId";

const AMBIGUOUS: &str =
    "has a number that may equal another number after rounding; send it as text";

/// Makes the parts of a key. The error says why a message has no key.
type MakeKey =
    dyn Fn(&str, &DeliveryMetadata) -> Result<Vec<KeyPart<'static>>, String> + Send + Sync;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NoKey {
    /// The message is invalid, so it won't have a key at a later receive either.
    Invalid(InvalidMessage),
    /// The key function panicked.
    Panicked,
}

impl From<InvalidMessage> for NoKey {
    fn from(invalid: InvalidMessage) -> Self {
        Self::Invalid(invalid)
    }
}

/// Where a message's idempotency key comes from.
///
/// | setting | key |
/// | --- | --- |
/// | `message-id` | the message id: two deliveries by SQS have the same key, two sends by a producer have different keys |
/// | `deduplication-id` | `MessageGroupId` and `MessageDeduplicationId`, on FIFO queues only |
/// | `attribute:NAME` | the message attribute `NAME` |
/// | `body:/orderId` | the value at a JSON pointer (RFC 6901) into the body |
/// | `body:/tenant,/orderId` | the values at several pointers, in that order |
/// | [`by`](Self::by), in code only | the texts that a function makes from a struct, which is decoded from the body |
/// | [`from_fn`](Self::from_fn), in code only | the texts that a function makes from the message |
///
/// # Deduplication ids
///
/// The key also contains the message group, because a queue's `DeduplicationScope` can be the message group. With this
/// setting, messages of a standard queue fail permanently, because they have no deduplication id.
///
/// - Within its deduplication interval, SQS drops a message whose deduplication id it has already accepted.
///   After that interval, the record deduplicates. So a producer must send the same id when it repeats an
///   operation, and a new id for a new operation. With content-based deduplication, the id is the SHA-256 of
///   the body, so two orders with the same text are one operation while the record is kept.
/// - When SQS moves a message to a dead-letter queue, it replaces the deduplication id with the message id, so
///   a redriven message is a new operation. A copy that the consumer sent to the dead-letter queue keeps the
///   producer's id in the message attribute `SqsOnceDeduplicationId`, and its key comes from that id. Keys from
///   the body or from a message attribute stay the same either way.
///
/// # Pointers
///
/// A pointer can lead through JSON inside a string. With [`Envelope::Auto`](super::Envelope::Auto), pointers start
/// at the message inside the envelope. With `Envelope::None` they can lead through it: `body:/Message/orderId` for a
/// message from SNS, `body:/detail/orderId` for an EventBridge event.
///
/// A string is used as it is. Every other JSON value becomes `\json:` and its canonical form. So the number 7 and
/// the string `"7"` are two keys, and `0` and `false` are keys.
///
/// A message without a key fails permanently. It has no key if a pointer finds:
///
/// - no value, `null`, or an empty string;
/// - a list or object with nothing but these, such as `{}`, `[]`, `[null]` and `{"id":""}`;
/// - a list or object of more than 64 KiB, or with more than 127 levels;
/// - a number that could collide with another one when rounded to a double: a fraction, or a number beyond 2^53
///   in a list or object. Send such numbers as strings.
///
/// White space around a pointer is not part of it, and a pointer cannot name a member whose name ends with a comma.
///
/// A message whose whole body is a JSON string that contains JSON (encoded twice) fails permanently.
///
/// # Bodies that are not JSON
///
/// Pointers need a JSON body, with or without a byte-order mark. Every other source works with bodies of any
/// kind. Members that no pointer names are not read, so they may have any depth, numbers beyond a double, and
/// halves of surrogate pairs.
///
/// ```
/// use sqs_once::sqs::KeySource;
///
/// assert_eq!("message-id".parse(), Ok(KeySource::MessageId));
/// assert!("body:/tenant,/orderId".parse::<KeySource>().is_ok());
/// assert!("orderId".parse::<KeySource>().is_err());
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum KeySource {
    /// The message id.
    #[default]
    MessageId,
    /// The message's `MessageGroupId` and `MessageDeduplicationId`.
    DeduplicationId,
    /// A message attribute of type String or Number.
    Attribute(String),
    /// The values at these pointers into the body.
    Body(Pointers),
    /// The texts that a function makes from the message.
    Function(Callback<MakeKey>),
}

impl KeySource {
    /// Makes the key in code. The function returns the parts of the key in their order: texts, or whole numbers of 64 bits. A part
    /// makes the same key as the same string or number in the body. A number and its text make two different keys.
    ///
    /// The function runs before the handler, and again for each delivery. It must return the same parts each
    /// time, so it must not use the receive count or a receive time. It must also be quick, because the
    /// messages of a batch wait for it.
    ///
    /// If the function returns an error, no part or an empty part, the message fails permanently. The error's
    /// text is logged, so keep payload out of it. If the function panics, only its message fails, with the
    /// outcome `panicked`, and goes back to the queue.
    ///
    /// ```
    /// use sqs_once::sqs::KeySource;
    ///
    /// // A body such as `o-1;129.50;EUR`, of the tenant in an attribute.
    /// let key = KeySource::from_fn(|body, delivery| {
    ///     let tenant = delivery.attribute("tenant").ok_or("no attribute `tenant`")?;
    ///     let order = body.split(';').next().unwrap_or_default();
    ///     Ok::<_, &str>([tenant, order].map(str::to_owned))
    /// });
    /// ```
    pub fn from_fn<P, E>(
        function: impl Fn(&str, &DeliveryMetadata) -> Result<P, E> + Send + Sync + 'static,
    ) -> Self
    where
        P: IntoIterator<Item: Into<KeyPart<'static>>>,
        E: fmt::Display,
    {
        Self::Function(Callback(Arc::new(move |body, delivery| {
            let parts = function(body, delivery).map_err(|error| error.to_string())?;
            Ok(parts.into_iter().map(Into::into).collect())
        })))
    }

    /// Makes the key in code, from your own struct. The consumer decodes the JSON body into it before the claim. Give the struct
    /// only the members that name the operation: other members are skipped, and take no memory. Don't use `serde_json::Value`,
    /// `#[serde(flatten)]` or tagged enums here, because they keep everything that they read. Only one body is decoded at a time.
    /// The function returns the parts of the key in order, by the rules of [`from_fn`](Self::from_fn).
    ///
    /// A message fails permanently if its body doesn't decode to that type or has a member twice, or if a part of the key
    /// is empty. If you change the key or its source, every message in the queue becomes a new operation. If `key.order_id`
    /// is a `String` or `u64`, it makes the same key as `body:/orderId`. A number that you turn into text does not.
    ///
    /// ```
    /// use serde::Deserialize;
    /// use sqs_once::sqs::KeySource;
    ///
    /// #[derive(Deserialize)]
    /// struct OrderKey { order_id: String }
    ///
    /// let key = KeySource::by(|key: OrderKey| [key.order_id]);
    /// ```
    pub fn by<K, P>(parts: impl Fn(K) -> P + Send + Sync + 'static) -> Self
    where
        K: DeserializeOwned,
        P: IntoIterator<Item: Into<KeyPart<'static>>>,
    {
        Self::from_fn(move |body, _| {
            let _turn = one_at_a_time();
            let key = serde_json::from_str(without_bom(body));
            let key = key.map_err(|error| InvalidMessage::body(body, &error))?;
            Ok::<_, InvalidMessage>(parts(key))
        })
    }

    /// Returns the name of this source if it gives a redriven message another key.
    pub(super) fn changes_on_redrive(&self) -> Option<&'static str> {
        match self {
            Self::MessageId => Some("message-id"),
            Self::DeduplicationId => Some("deduplication-id"),
            Self::Attribute(_) | Self::Body(_) | Self::Function(_) => None,
        }
    }

    /// Returns whether making the key needs the body.
    pub(super) const fn needs_body(&self) -> bool {
        matches!(self, Self::Body(_) | Self::Function(_))
    }

    /// Makes the key of a message.
    pub(super) fn key(
        &self,
        namespace: &Namespace,
        body: &str,
        delivery: &DeliveryMetadata,
    ) -> Result<Key, NoKey> {
        let mut key = KeyBuilder::new(namespace);
        let mut push = |part: &KeyPart<'_>| {
            let pushed = key.push(part);
            pushed.map_err(|error| self.not_found(&error.to_string()))
        };
        match self {
            Self::MessageId => push(&KeyPart::from(&*delivery.message_id))?,
            Self::DeduplicationId => {
                push(&self.text(delivery.group_id.as_deref())?)?;
                push(&self.text(deduplication_id(delivery))?)?;
            }
            Self::Attribute(name) => push(&self.text(delivery.attribute(name))?)?,
            Self::Body(pointers) => {
                let _turn = one_at_a_time();
                let json = Document::parse(body);
                let json = json.map_err(|error| InvalidMessage::body(body, &error))?;
                // Pointers would lead into the inner JSON, but the handler would get a string.
                if let Some(twice) = InvalidMessage::encoded_twice(body) {
                    return Err(twice.into());
                }
                for pointer in pointers.iter() {
                    push(&self.part(json, pointer)?)?;
                }
            }
            Self::Function(function) => {
                let parts = function.call(|function| function(body, delivery));
                let mut parts = parts.ok_or(NoKey::Panicked)?.map_err(|why| {
                    InvalidMessage(format!("no idempotency key by the key function: {why}"))
                })?;
                if flawed("only the first part of a key function counts") {
                    parts.truncate(1);
                }
                for part in &parts {
                    push(part)?;
                }
            }
        }
        let key = key.finish();
        Ok(key.map_err(|error| self.not_found(&error.to_string()))?)
    }

    fn text<'t>(&self, found: Option<&'t str>) -> Result<KeyPart<'t>, InvalidMessage> {
        let text = found.ok_or_else(|| self.not_found("missing"))?;
        Ok(KeyPart::from(text))
    }

    /// Turns the value at a pointer into a part of the key. No other value makes the same part.
    fn part(&self, json: Document<'_>, pointer: &str) -> Result<KeyPart<'static>, InvalidMessage> {
        let refused = |why: &str| Err(self.not_found(&format!("the value at `{pointer}` {why}")));
        let Some(value) = json.find(pointer).filter(|value| value != "null") else {
            return Err(self.not_found(&format!("`{pointer}` is missing or null")));
        };
        if value.starts_with('"') {
            return match serde_json::from_str::<String>(&value) {
                Ok(text) => Ok(KeyPart::Text(text.into())),
                Err(_) => refused("is not valid JSON: it has half of a surrogate pair"),
            };
        }
        if value.starts_with(|c: char| c == '-' || c.is_ascii_digit()) {
            // We parse it as a `Number`, not an `f64`, so that a 64-bit integer keeps all its digits. The next line rejects
            // anything else.
            let number = serde_json::from_str::<Number>(&value).ok();
            return match number.filter(|number| number.is_i64() || number.is_u64()) {
                Some(number) => Ok(KeyPart::Json(number.to_string())),
                None => refused(AMBIGUOUS),
            };
        }
        match Canonical::of(&value) {
            None => refused(
                "has no canonical form of at most 64 KiB: make the key of texts and whole numbers inside it",
            ),
            Some(Canonical { content, .. }) if content.is_empty => {
                refused("is empty: it has no text, number or boolean")
            }
            Some(Canonical { content, .. }) if !content.is_exact => refused(AMBIGUOUS),
            Some(Canonical { text, .. }) => Ok(KeyPart::Json(text)),
        }
    }

    pub(super) fn not_found(&self, why: &str) -> InvalidMessage {
        let place = match self {
            Self::MessageId => "the message id".to_owned(),
            Self::DeduplicationId => {
                "MessageGroupId and MessageDeduplicationId, which only FIFO queues have".to_owned()
            }
            Self::Attribute(name) => format!("the message attribute `{name}`"),
            Self::Body(pointers) => format!("`{pointers}` of the body"),
            Self::Function(_) => {
                return InvalidMessage(format!("no idempotency key by the key function: {why}"));
            }
        };
        InvalidMessage(format!("no idempotency key at {place}: {why}"))
    }
}

/// Returns the producer's deduplication id, or `None` for messages of standard queues.
///
/// In a dead-letter queue, the message itself has a different deduplication id, whether SQS moved it or the consumer copied
/// it.
fn deduplication_id(delivery: &DeliveryMetadata) -> Option<&str> {
    let current = delivery.deduplication_id.as_deref()?;
    let original = delivery.attribute(ORIGINAL_DEDUPLICATION_ID);
    Some(original.unwrap_or(current))
}

impl FromStr for KeySource {
    type Err = InvalidValue;

    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        let fault = InvalidValue::new(
            "must be `message-id`, `deduplication-id`, `attribute:NAME`, or `body:` and JSON \
             pointers such as `body:/orderId` or `body:/tenant,/orderId`",
        );
        match (text.trim(), text.trim().split_once(':')) {
            ("message-id", _) => Ok(Self::MessageId),
            ("deduplication-id", _) => Ok(Self::DeduplicationId),
            (_, Some(("attribute", name))) if !name.trim().is_empty() => {
                Ok(Self::Attribute(name.trim().into()))
            }
            (_, Some(("body", pointers))) => Pointers::new(pointers).map(Self::Body).ok_or(fault),
            _ => Err(fault),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{
        super::identity::tests::{facts, identity, identity_by, key},
        *,
    };
    use crate::handler::{Attribute, AttributeValue};

    #[test]
    fn key_marks_json_other_than_text() {
        for (value, text) in [
            (r#""o-1""#, "o-1"),
            (r#"" ""#, " "),
            ("0", r"\json:0"),
            ("-7", r"\json:-7"),
            ("18446744073709551615", r"\json:18446744073709551615"),
            ("false", r"\json:false"),
            ("[0]", r"\json:[0]"),
            (r#"[null,""," "]"#, r#"\json:[null,""," "]"#),
            (r#""7""#, "7"),
            ("7", r"\json:7"),
            (r#""\\json:7""#, r"\\json:7"),
            (
                r##"{"b": "#", "a": [2, null]}"##,
                r##"\json:{"a":[2,null],"b":"\#"}"##,
            ),
        ] {
            let body = format!(r#"{{"order": {{"id": {value}}}}}"#);
            assert_eq!(
                key(&body, "body:/order/id").unwrap(),
                format!("ns#{text}"),
                "{value}"
            );
        }
    }

    #[test]
    fn missing_key_error_names_its_source() {
        for body in [
            "{}",
            r#"{"order":{"id":""}}"#,
            r#"{"order":{"id":null}}"#,
            "[]",
            "7",
        ] {
            let why = key(body, "body:/order/id").unwrap_err();
            assert!(
                why.contains("no idempotency key at `/order/id` of the body"),
                "{why}"
            );
        }
        assert!(
            key("not JSON", "body:/id")
                .unwrap_err()
                .contains("not valid JSON")
        );
        let why = key("{}", "attribute:order").unwrap_err();
        assert!(why.contains("the message attribute `order`"), "{why}");
        let why = key("{}", "deduplication-id").unwrap_err();
        assert!(why.contains("MessageDeduplicationId"), "{why}");
    }

    #[test]
    fn ambiguous_numbers_are_refused_as_keys() {
        for number in [
            "100000000000000000001",
            "0.30000000000000001",
            "1.0",
            "[9007199254740992]",
            "[9007199254740993]",
        ] {
            let why = key(&format!(r#"{{"id": {number}}}"#), "body:/id").unwrap_err();
            assert!(why.contains("send it as text"), "{why}");
        }
    }

    #[test]
    fn list_or_object_of_nothing_is_no_key() {
        for value in [
            "{}",
            "[]",
            "[null]",
            " [ ] ",
            r#"[""]"#,
            r#"{"id":null}"#,
            r#"[[],{},[{"a":{"b":[null,""]}}]]"#,
            r#"{"a":"o-1","a":null}"#,
        ] {
            let why = key(&format!(r#"{{"id": {value}}}"#), "body:/id").unwrap_err();
            assert!(why.contains("`/id` is empty"), "{value}: {why}");
        }
    }

    #[test]
    fn value_too_large_for_a_key_is_refused() {
        let list = |elements: usize| format!(r#"{{"id":[7{}]}}"#, ",7".repeat(elements));
        let key_of = |body: &str| key(body, "body:/id");
        assert!(key_of(&list(32 * 1024 - 2)).unwrap().contains("sha256"));
        let deep = ["[".repeat(128), "7".into(), "]".repeat(128)].concat();
        for body in [list(32 * 1024 - 1), format!(r#"{{"id":{deep}}}"#)] {
            let why = key_of(&body).unwrap_err();
            assert!(why.contains("no canonical form"), "{why}");
        }
        // A text of any length is a key.
        let text = format!(r#"{{"id":"{}"}}"#, r"\n".repeat(100_000));
        assert!(key_of(&text).unwrap().contains("sha256"));
    }

    #[test]
    fn value_that_is_not_text_is_refused() {
        for value in [r#""\ud83d""#, r#"["\ud83d"]"#, "1e999", "[1e999]"] {
            let why = key(&format!(r#"{{"id": {value}}}"#), "body:/id").unwrap_err();
            assert!(
                why.contains("the value at `/id` has") || why.contains("not valid JSON"),
                "{why}"
            );
        }
    }

    #[test]
    fn members_that_are_no_key_are_not_read() {
        let deep = ["[".repeat(1_000), "]".repeat(1_000)].concat();
        for member in [
            r#""x":"\ud83d""#,
            r#""\ud83d":1"#,
            r#""x":1e999"#,
            &format!(r#""x":{deep}"#),
        ] {
            for mark in ["", "\u{feff}"] {
                let body = format!(r#"{mark}{{{member},"id":"o-1"}}"#);
                for fingerprint in ["body", "body:/id,/x", "off"] {
                    let source = "body:/id".parse().unwrap();
                    let identity = identity_by(&facts(), &body, &source, fingerprint).unwrap();
                    assert_eq!(identity.key.as_str(), "ns#o-1", "{member:.20}");
                }
            }
        }
    }

    #[test]
    fn several_parts_are_joined_unambiguously() {
        let source = "body:/a,/b";
        let keys = [
            key(r#"{"a": "x#y", "b": "z"}"#, source).unwrap(),
            key(r#"{"a": "x", "b": "y#z"}"#, source).unwrap(),
        ];
        assert_eq!(keys, ["ns#x\\#y#z", "ns#x#y\\#z"]);
        assert!(key(r#"{"a": "x"}"#, source).is_err());
    }

    #[test]
    fn pointer_reads_through_service_envelopes() {
        let order = json!({"orderId": "o-1", "lines": [{"sku": "a/b"}]});
        // Amazon SNS Developer Guide, "Fanout to Amazon SQS queues".
        let sns = json!({
            "Type": "Notification",
            "MessageId": "63a3f6b6-d533-4a47-aef9-fcf5cf758c76",
            "TopicArn": "arn:aws:sns:us-west-2:123456789012:MyTopic",
            "Subject": "Testing publish to subscribed queues",
            "Message": order.to_string(),
            "Timestamp": "2012-03-29T05:12:16.901Z",
            "SignatureVersion": "1",
        });
        assert_eq!(
            key(&sns.to_string(), "body:/Message/orderId").unwrap(),
            "ns#o-1"
        );
        assert_eq!(
            key(&sns.to_string(), "body:/Message/lines/0/sku").unwrap(),
            "ns#a/b"
        );
        // Amazon EventBridge User Guide, "Events in Amazon EventBridge".
        let event = json!({
            "version": "0",
            "id": "6a7e8feb-b491-4cf7-a9f1-bf3703467718",
            "detail-type": "Order Placed",
            "source": "shop",
            "account": "123456789012",
            "time": "2017-12-22T18:43:48Z",
            "region": "us-west-1",
            "resources": [],
            "detail": order,
        });
        assert_eq!(
            key(&event.to_string(), "body:/detail/orderId").unwrap(),
            "ns#o-1"
        );
        // An event that came through SNS.
        let both = json!({"Message": event.to_string()}).to_string();
        assert_eq!(
            key(&both, "body:/Message/detail/orderId").unwrap(),
            "ns#o-1"
        );
        assert!(key(r#"{"Message": "plain text"}"#, "body:/Message/orderId").is_err());
    }

    #[test]
    fn pointer_escapes_are_decoded() {
        let body = r#"{"a/b": {"m~n": "found", "~1": "also"}}"#;
        assert_eq!(key(body, "body:/a~1b/m~0n").unwrap(), "ns#found");
        assert_eq!(key(body, "body:/a~1b/~01").unwrap(), "ns#also");
    }

    fn text(value: &str) -> Attribute {
        Attribute {
            data_type: "String".into(),
            value: AttributeValue::Text(value.into()),
        }
    }

    fn fifo(group: &str, deduplication_id: &str) -> DeliveryMetadata {
        DeliveryMetadata {
            group_id: Some(group.into()),
            deduplication_id: Some(deduplication_id.into()),
            ..facts()
        }
    }

    #[test]
    fn attributes_and_message_ids_are_keys() {
        let mut facts = facts();
        facts.attributes.insert("order".into(), text("o-1"));
        for (source, id) in [("attribute:order", "ns#o-1"), ("message-id", "ns#m-1")] {
            let source: KeySource = source.parse().unwrap();
            for body in ["{}", "plain text"] {
                let identity = identity_by(&facts, body, &source, "body").unwrap();
                assert_eq!(identity.key.as_str(), id);
            }
        }
        let why = identity(&facts, "plain text", "body:/id").unwrap_err();
        assert!(why.contains("not valid JSON"), "{why}");
    }

    #[test]
    fn key_function_makes_the_parts() {
        let by = |function: fn(&str, &DeliveryMetadata) -> Result<Vec<String>, String>| {
            let source = KeySource::from_fn(function);
            let key = identity_by(&fifo("g-1", "d"), "o-1;7", &source, "off");
            key.map(|identity| identity.key.to_string())
        };
        let of_body = by(|body, delivery| {
            Ok(vec![
                delivery.group_id.clone().unwrap(),
                body.split(';').next().unwrap().to_owned(),
            ])
        });
        assert_eq!(of_body.unwrap(), "ns#g-1#o-1");
        let why = "no idempotency key by the key function";
        assert_eq!(
            by(|_, _| Err("no order".into())).unwrap_err(),
            format!("{why}: no order")
        );
        let error = by(|_, _| Ok(vec![])).unwrap_err();
        assert!(
            error.starts_with(why) && error.contains("no parts"),
            "{error}"
        );
        let error = by(|_, _| Ok(vec!["a".into(), String::new()])).unwrap_err();
        assert!(
            error.contains("part 1 of the idempotency key is empty"),
            "{error}"
        );
        assert_eq!(by(|_, _| panic!("a bug")).unwrap_err(), "panicked");
    }

    #[test]
    fn clones_of_key_function_are_equal() {
        let source = || KeySource::from_fn(|_, _| Ok::<_, String>([String::new()]));
        let one = source();
        assert_eq!(one, one.clone());
        assert_ne!(one, source());
        assert_eq!(format!("{one:?}"), "Function(Callback)");
    }

    #[test]
    fn deduplication_id_keys_contain_the_group() {
        let key = |facts: DeliveryMetadata| {
            identity(&facts, "{}", "deduplication-id").map(|it| it.key.to_string())
        };
        assert_eq!(key(fifo("g-1", "d-1")).unwrap(), "ns#g-1#d-1");
        assert_eq!(key(fifo("g-2", "d-1")).unwrap(), "ns#g-2#d-1");
        assert_eq!(key(fifo("g#1", "d")).unwrap(), r"ns#g\#1#d");
        let mut ungrouped = fifo("", "d-1");
        assert!(
            key(ungrouped.clone())
                .unwrap_err()
                .contains("MessageGroupId")
        );
        ungrouped.group_id = None;
        assert!(key(ungrouped).unwrap_err().contains("MessageGroupId"));
    }

    #[test]
    fn dead_letter_copy_keeps_deduplication_id() {
        let key = |facts: &DeliveryMetadata| {
            identity(facts, "{}", "deduplication-id").map(|it| it.key.to_string())
        };
        // The copy's deduplication id is the message id, just as if SQS had moved the message.
        let mut copy = fifo("g-1", "m-1");
        let original = (ORIGINAL_DEDUPLICATION_ID.to_owned(), text("d-1"));
        copy.attributes.extend([original.clone()]);
        assert_eq!(key(&copy), key(&fifo("g-1", "d-1")));
        copy.attributes.insert(original.0.clone(), text(""));
        assert!(key(&copy).is_err(), "an empty id is no key");

        let mut standard = facts();
        standard.attributes.extend([original]);
        let why = key(&standard).unwrap_err();
        assert!(why.contains("which only FIFO queues have"), "{why}");
    }

    #[test]
    fn invalid_source_is_refused() {
        for text in [
            "",
            "Message-Id",
            "attribute:",
            "attribute: ",
            "body",
            "body:",
            "body:id",
            "body:/a~",
            "body:/a,b~2,/c",
        ] {
            assert!(text.parse::<KeySource>().is_err(), "{text}");
        }
    }
}

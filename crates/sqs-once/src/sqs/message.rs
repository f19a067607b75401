//! [`Message`]: one record of an SQS event: its ids, its body and its delivery.

use std::{collections::HashMap, sync::Arc};

use aws_lambda_events::sqs::SqsMessageAttribute;
use tracing::{Span, field};

use super::{
    callback::{Callback, MakeSpan},
    envelope::{self, Envelope, NoMessage},
    fingerprint_source::FingerprintSource,
    identity::{Identity, IdentitySources, NoIdentity},
    options::MEMORY_OF_OUTPUT,
    record::Record,
    s3_pointer::S3Pointer,
};
use crate::{
    flawed::flawed,
    handler::{Attribute, AttributeValue, Delivery, DeliveryMetadata, FromMessage, InvalidMessage},
    modes::Outcome,
    protocol::{Key, Timestamp},
    system::Held,
};

/// A message of a batch. It always has an id, because the response could not name a record without one.
#[derive(Debug)]
pub(crate) struct Message {
    id: MessageId,
    /// `None` if it is made when the message runs: its body is in S3, or the time was short.
    identity: Option<Result<Identity, NoIdentity>>,
    /// Body without its envelope.
    body: Option<String>,
    /// The innermost message, if the body is in an envelope that the handler gets too.
    inside: Option<String>,
    /// Whether S3 sent the message to test its notifications.
    is_s3_test: bool,
    /// Where in S3 the body is, if the consumer reads it there.
    s3_pointer: Option<S3Pointer>,
    receipt_handle: Option<String>,
    delivery: Delivery,
    /// Body and attributes in the queue, if an envelope was removed.
    sent: Option<(Option<String>, HashMap<String, Attribute>)>,
    _held: Held,
}

/// The id that names a message in the response: never empty.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct MessageId(String);

/// The queue and the receipt handle of one receive of a message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Receipt<'a> {
    pub(crate) queue_arn: &'a str,
    pub(crate) handle: &'a str,
}

impl MessageId {
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

impl Message {
    /// Creates a message from a record. `None` if the record has no id. With `reads_s3`, a body that is a
    /// pointer to S3 is to be read there.
    pub(crate) fn new(
        record: impl Into<Record>,
        request_id: Option<&Arc<str>>,
        envelope: Envelope,
        reads_s3: bool,
    ) -> Option<Self> {
        let Record {
            message: record,
            mut fault,
        } = record.into();
        let id = record.message_id.filter(|id| !id.is_empty())?;
        let body = record.body.as_deref().filter(|_| fault.is_none());
        let (mut opened, mut is_s3_test) = (None, false);
        match body.map_or(Ok(None), envelope::open) {
            Ok(content) => opened = content,
            Err(NoMessage::S3Test) => is_s3_test = true,
            Err(NoMessage::Confirmation(why)) => fault = Some(why),
            Err(NoMessage::Invalid(why)) => {
                fault = Some(why).filter(|_| envelope == Envelope::Auto)
            }
        }
        let mut all_attributes = attributes(record.message_attributes);
        let (mut body, mut inside, mut sent, mut facts_of_envelope) =
            (record.body, None, None, None);
        match (envelope, opened) {
            (_, None) => {}
            (Envelope::None, Some(content)) => inside = Some(content.body),
            (Envelope::Auto, Some(content)) => {
                // Attributes of the queue win, because a copy in a dead-letter queue has attributes that the
                // consumer added.
                let mut attributes = content.attributes;
                if flawed("an envelope has no attributes") {
                    attributes.clear();
                }
                attributes.extend(all_attributes.clone());
                sent = Some((body, all_attributes));
                (body, all_attributes) = (Some(content.body), attributes);
                facts_of_envelope = Some(content.facts);
            }
        }
        let mut system = record.attributes;
        let mut text = |name| system.remove(name);
        let time = |text: Option<String>| Some(Timestamp::from_millis(text?.parse().ok()?));
        let receive_count = text("ApproximateReceiveCount");
        let facts = DeliveryMetadata {
            message_id: id.clone(),
            receive_count: receive_count
                .and_then(|count| count.parse().ok())
                .unwrap_or(1),
            attributes: all_attributes,
            queue_arn: record.event_source_arn,
            group_id: text("MessageGroupId"),
            deduplication_id: text("MessageDeduplicationId"),
            sequence_number: text("SequenceNumber"),
            sent_at: time(text("SentTimestamp")),
            first_received_at: time(text("ApproximateFirstReceiveTimestamp")),
            sender_id: text("SenderId"),
            trace_header: text("AWSTraceHeader"),
            dead_letter_source_arn: text("DeadLetterQueueSourceArn"),
            envelope: facts_of_envelope,
            request_id: request_id.cloned(),
        };
        let found = body.as_deref().filter(|_| fault.is_none());
        let s3_pointer = found
            .and_then(|body| S3Pointer::find(body, &facts.attributes))
            .map(|pointer| {
                if reads_s3 {
                    pointer
                } else {
                    Err(S3Pointer::not_read())
                }
            })
            .transpose()
            .unwrap_or_else(|why| {
                fault = Some(why);
                None
            });
        let held = Held::bytes(body.as_ref().map_or(0, String::len));
        Some(Self {
            id: MessageId(id),
            identity: fault.map(|fault| Err(fault.into())),
            body,
            inside,
            is_s3_test,
            s3_pointer,
            receipt_handle: record.receipt_handle,
            delivery: facts.into(),
            sent,
            _held: held,
        })
    }

    /// Makes key and fingerprint from the body in the queue, unless the body is in S3 or needs neither.
    pub(crate) fn identify_body(&mut self, sources: &IdentitySources<'_>) {
        if self.identity.is_none() && self.s3_pointer.is_none() && !self.is_s3_test {
            self.identity = Some(self.identify(self.body(), sources));
        }
    }

    pub(crate) fn id(&self) -> &MessageId {
        &self.id
    }

    /// Returns the message group on a FIFO queue, where the messages of a group run in order, one at a time.
    /// A standard queue has message groups for fairness, but they order nothing.
    pub(crate) fn fifo_group(&self) -> Option<&str> {
        let facts = self.delivery.facts();
        let queue = facts.queue_arn.as_deref()?;
        facts
            .group_id
            .as_deref()
            .filter(|_| queue.ends_with(".fifo"))
    }

    /// Returns queue and receipt handle. `None` if the record lacks one of them.
    pub(crate) fn receipt(&self) -> Option<Receipt<'_>> {
        Some(Receipt {
            queue_arn: self.delivery.facts().queue_arn.as_deref()?,
            handle: self.receipt_handle.as_deref()?,
        })
    }

    pub(crate) fn receive_count(&self) -> u32 {
        self.delivery.facts().receive_count
    }

    pub(crate) fn sent_at(&self) -> Option<Timestamp> {
        self.delivery.facts().sent_at
    }

    /// Returns key and fingerprint, or why there are none. `None` if they are made when the message runs.
    pub(crate) fn identity(&self) -> Option<&Result<Identity, NoIdentity>> {
        self.identity.as_ref()
    }

    /// Makes key and fingerprint from the body, which may be from S3.
    pub(crate) fn identify(
        &self,
        body: Option<&str>,
        sources: &IdentitySources<'_>,
    ) -> Result<Identity, NoIdentity> {
        let body = body.ok_or_else(InvalidMessage::no_body)?;
        // An envelope has an id and a time of its own each time that the message is published.
        let whole = self.inside.as_deref().unwrap_or(body);
        sources.identity(body, whole, self.delivery.facts())
    }

    /// Makes the key of a message whose body is gone. `None` if the key needs it.
    pub(super) fn identify_without_body(
        &self,
        sources: &IdentitySources<'_>,
    ) -> Option<Result<Identity, NoIdentity>> {
        let sources = IdentitySources {
            fingerprint: &FingerprintSource::Off,
            ..*sources
        };
        let needs_body = sources.key.needs_body();
        (!needs_body).then(|| sources.identity("", "", self.delivery.facts()))
    }

    /// Returns the outcome of a message without a key.
    pub(crate) fn without_key(&self, why: NoIdentity) -> Outcome {
        match why {
            NoIdentity::Invalid(InvalidMessage(why)) => self.invalid(&why),
            NoIdentity::KeyPanicked => Outcome::Panicked,
        }
    }

    /// Returns the outcome of a message that can never be processed.
    pub(crate) fn invalid(&self, why: &str) -> Outcome {
        let innermost = self.inside.as_deref().or(self.body());
        Outcome::Invalid(if innermost.is_some_and(envelope::has_text_as_detail) {
            format!(
                "{why}; `detail` of this EventBridge event is a text, and CONSUMER_ENVELOPE=auto removes an event \
                 only from around an object: send an object as its `Detail`, or let pointers begin with `/detail`"
            )
        } else if self.delivery.facts().envelope.is_some() {
            format!("{why}; JSON pointers start at the message inside its envelope")
        } else if self.inside.is_some() {
            format!(
                "{why}; the message is in an envelope of SNS, EventBridge or S3, which \
                 CONSUMER_ENVELOPE=auto removes"
            )
        } else {
            why.to_owned()
        })
    }

    /// Returns the memory that this message may need while it runs, in bytes: its body, its handler's message, and an
    /// output. A body in S3 may have `largest_in_s3` bytes.
    pub(crate) fn memory(&self, largest_in_s3: usize) -> usize {
        let body = match self.s3_pointer {
            Some(_) => largest_in_s3,
            None => self.body.as_ref().map_or(0, String::len),
        };
        MEMORY_OF_OUTPUT.saturating_add(body.saturating_mul(5) / 2)
    }

    /// Creates the span of the message's run, whose fields are on the handler's log lines too. Ours is open
    /// at every log level, and names the request id as the Lambda runtime's span does.
    pub(crate) fn span(&self, make_span: Option<&Callback<MakeSpan>>) -> Span {
        let made = make_span.and_then(|span| span.call(|make| make(self.delivery.facts())));
        if let Some(span) = made {
            if let Some(key) = self.key() {
                Self::add_key_to(&span, key);
            }
            return span;
        }
        tracing::error_span!(
            "message",
            message_id = self.id.as_str(),
            key = self.key().map(Key::as_str),
            receive_count = self.receive_count(),
            requestId = self.delivery.facts().request_id.as_deref(),
            outcome = field::Empty,
        )
    }

    /// Records the key in a span that has a field for it and began before the key was known.
    pub(crate) fn add_key_to(span: &Span, key: &Key) {
        span.record("key", key.as_str());
    }

    /// Returns the key, if it was made when the event was read.
    pub(crate) fn key(&self) -> Option<&Key> {
        Some(&self.identity.as_ref()?.as_ref().ok()?.key)
    }

    /// Returns the body in the queue, without its envelope.
    pub(crate) fn body(&self) -> Option<&str> {
        self.body.as_deref()
    }

    /// Returns where in S3 the body is, if the consumer reads it there.
    pub(super) fn s3_pointer(&self) -> Option<&S3Pointer> {
        self.s3_pointer.as_ref()
    }

    /// Returns the body in the queue, with its envelope. A copy must carry it unchanged.
    pub(crate) fn sent_body(&self) -> Option<&str> {
        let body = self.sent.as_ref().map_or(&self.body, |(body, _)| body);
        body.as_deref()
    }

    /// Returns the message attributes in the queue.
    pub(crate) fn sent_attributes(&self) -> &HashMap<String, Attribute> {
        let own = &self.delivery.facts().attributes;
        self.sent.as_ref().map_or(own, |(_, attributes)| attributes)
    }

    /// Returns whether S3 sent the message to test its notifications.
    pub(crate) fn is_s3_test(&self) -> bool {
        self.is_s3_test
    }

    /// Makes the handler's message from this body, which may be from S3.
    pub(crate) fn parse<T: FromMessage>(&self, body: Option<&str>) -> Result<T, InvalidMessage> {
        let body = body.ok_or_else(InvalidMessage::no_body)?;
        T::from_message(body, self.delivery.facts())
    }

    /// Returns the delivery for the handler.
    pub(crate) fn delivery(&self) -> &Delivery {
        &self.delivery
    }
}

fn attributes(sent: HashMap<String, SqsMessageAttribute>) -> HashMap<String, Attribute> {
    sent.into_iter()
        .filter_map(|(name, value)| Some((name, attribute(value)?)))
        .collect()
}

/// Converts an attribute, with the value of its declared type. `None` if that value is missing.
fn attribute(attribute: SqsMessageAttribute) -> Option<Attribute> {
    let data_type = attribute.data_type.unwrap_or_default();
    let value = match data_type.split('.').next() {
        Some("Binary") => AttributeValue::Binary(attribute.binary_value?.0),
        _ => AttributeValue::Text(attribute.string_value?),
    };
    Some(Attribute { data_type, value })
}

#[cfg(test)]
mod tests {
    use aws_lambda_events::sqs::SqsMessage;
    use serde::Deserialize;

    use super::{
        super::{fingerprint_source::FingerprintSource, key_source::KeySource},
        *,
    };
    use crate::protocol::Namespace;

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
        let mut message = Message::new(record, None, Envelope::None, false)?;
        message.identify_body(&IdentitySources {
            namespace: &Namespace::new("ns").unwrap(),
            key: &KeySource::default(),
            fingerprint: &FingerprintSource::default(),
            warned: &std::sync::Once::new(),
        });
        Some(message)
    }

    fn parse(record: SqsMessage) -> Result<Order, InvalidMessage> {
        let message = message(record).unwrap();
        message.parse(message.body())
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
                "not of the expected type, at line 1",
            ),
            (r#"{"orderId":"4242-SECRET"}"#, "missing field `card`"),
            (r#"{"orderId":"4242-SECRET"#, "not valid JSON"),
            (r#"{"orderId":"o-1","card":1} SECRET"#, "not valid JSON"),
            (r#""4242-SECRET""#, "not of the expected type, at line 1"),
        ] {
            let InvalidMessage(text) = parse(record(body)).unwrap_err();
            assert!(text.contains(told), "{text}");
            assert!(!text.contains("SECRET"), "{text}");
        }
        assert!(parse(record(r#"{"orderId":"o-1","card":1}"#)).is_ok());
    }

    #[test]
    fn message_without_body_has_no_identity() {
        let mut bodiless = record("");
        bodiless.body = None;
        let no_body = InvalidMessage::no_body();
        let identity = message(bodiless.clone()).unwrap().identity;
        assert_eq!(identity, Some(Err(NoIdentity::Invalid(no_body.clone()))));
        assert_eq!(parse(bodiless).unwrap_err(), no_body);
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

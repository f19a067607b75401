//! [`Message`]: one message of an SQS event, with its ids, its body and its delivery.

use std::{collections::HashMap, mem, sync::Arc};

use aws_lambda_events::sqs::{SqsMessage, SqsMessageAttribute};
use tracing::Span;

use super::{
    callback::Callback,
    content::Content,
    envelope::{self, Envelope, NoMessage},
    fingerprint_source::FingerprintSource,
    identity::{Identity, IdentitySources},
    key_source::NoKey,
    s3_pointer::S3Pointer,
};
use crate::{
    flawed::flawed,
    handler::{Attribute, AttributeValue, Delivery, DeliveryMetadata, FromMessage, InvalidMessage},
    modes::Outcome,
    protocol::{Key, Timestamp},
    system::HeldBytes,
};

/// A function that makes the span of a message.
pub(super) type MakeSpan = dyn Fn(&DeliveryMetadata) -> Span + Send + Sync;

/// A message of a batch. A message always has an id, because the response could not name it without one.
#[derive(Debug)]
pub(crate) struct Message {
    pub(super) id: MessageId,
    /// Key and fingerprint, or why there are none. `None` if we make them only when the message runs, because its body
    /// is in S3 or time was short.
    pub(super) identity: Option<Result<Identity, NoKey>>,
    /// The body as it is in the queue. A copy must carry it unchanged.
    pub(super) sent_body: Option<String>,
    opened: Opened,
    /// True if S3 sent the message to test its notifications.
    pub(super) is_s3_test: bool,
    /// Where in S3 the body is, if the consumer reads it there.
    pub(super) s3_pointer: Option<S3Pointer>,
    receipt_handle: Option<String>,
    pub(super) delivery: Delivery,
    _held: HeldBytes,
}

/// The kind of body that the message has in the queue.
#[derive(Debug)]
enum Opened {
    /// The message itself.
    Bare,
    /// An envelope that the handler gets as it is. The field is the innermost message.
    Envelope(String),
    /// An envelope that was removed. The delivery has the attributes from inside the envelope and those that were sent to
    /// the queue.
    Removed {
        inside: String,
        sent_attributes: HashMap<String, Attribute>,
    },
}

/// The id by which the response names a message. It is never empty.
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
    /// Creates a message as SQS delivered it, or returns `None` if it has no id.
    pub(crate) fn new(sqs: SqsMessage) -> Option<Self> {
        let id = sqs.message_id.filter(|id| !id.is_empty())?;
        let mut system = sqs.attributes;
        let mut text = |name| system.remove(name);
        let time = |text: Option<String>| Some(Timestamp::from_millis(text?.parse().ok()?));
        let receive_count = text("ApproximateReceiveCount");
        let facts = DeliveryMetadata {
            message_id: id.clone(),
            receive_count: receive_count
                .and_then(|count| count.parse().ok())
                .unwrap_or(1),
            attributes: attributes(sqs.message_attributes),
            queue_arn: sqs.event_source_arn,
            group_id: text("MessageGroupId"),
            deduplication_id: text("MessageDeduplicationId"),
            sequence_number: text("SequenceNumber"),
            sent_at: time(text("SentTimestamp")),
            first_received_at: time(text("ApproximateFirstReceiveTimestamp")),
            sender_id: text("SenderId"),
            trace_header: text("AWSTraceHeader"),
            dead_letter_source_arn: text("DeadLetterQueueSourceArn"),
            envelope: None,
            request_id: None,
        };
        Some(Self {
            id: MessageId(id),
            identity: None,
            _held: HeldBytes::bytes(0),
            sent_body: sqs.body,
            opened: Opened::Bare,
            is_s3_test: false,
            s3_pointer: None,
            receipt_handle: sqs.receipt_handle,
            delivery: facts.into(),
        })
    }

    /// Makes sure that no handler gets the message. Its outcome is [`Outcome::Invalid`].
    pub(super) fn refused(self, why: InvalidMessage) -> Self {
        Self {
            identity: Some(Err(why.into())),
            ..self
        }
    }

    /// Notes which invocation delivered the message, for its handler.
    pub(super) fn in_invocation(&mut self, request_id: Option<&Arc<str>>) {
        self.delivery.facts_mut().request_id = request_id.cloned();
    }

    /// Finds out what the body is, and with [`Envelope::Auto`] removes its envelopes. With `reads_s3`, keeps a pointer to S3 for
    /// later. Without it, such a pointer is an error.
    pub(super) fn open(&mut self, envelope: Envelope, reads_s3: bool) {
        if self.identity.is_none()
            && let Err(why) = self.look_inside(envelope, reads_s3)
        {
            self.identity = Some(Err(why.into()));
        }
        self._held = HeldBytes::bytes(self.body().map_or(0, str::len));
    }

    fn look_inside(&mut self, envelope: Envelope, reads_s3: bool) -> Result<(), InvalidMessage> {
        let Some(body) = &self.sent_body else {
            return Ok(());
        };
        match (envelope, envelope::open(body)) {
            (_, Ok(None)) => {}
            (Envelope::None, Ok(Some(content))) => self.opened = Opened::Envelope(content.body),
            (Envelope::Auto, Ok(Some(content))) => self.remove_envelope(content),
            (_, Err(NoMessage::S3Test)) => self.is_s3_test = true,
            (_, Err(NoMessage::Confirmation(why))) => return Err(why),
            (Envelope::None, Err(NoMessage::Invalid(_))) => {}
            (Envelope::Auto, Err(NoMessage::Invalid(why))) => return Err(why),
        }
        let body = self.body().unwrap_or_default();
        let pointer = S3Pointer::find(body, &self.delivery.facts().attributes);
        if pointer.is_some() && !reads_s3 {
            return Err(S3Pointer::not_read());
        }
        self.s3_pointer = pointer.transpose()?;
        Ok(())
    }

    fn remove_envelope(&mut self, content: Content) {
        let facts = self.delivery.facts_mut();
        facts.envelope = Some(content.facts);
        let sent_attributes = mem::replace(&mut facts.attributes, content.attributes);
        if flawed("an envelope has no attributes") {
            facts.attributes.clear();
        }
        // The queue's attributes win, because the consumer adds attributes to a copy in a dead-letter queue.
        facts.attributes.extend(sent_attributes.clone());
        self.opened = Opened::Removed {
            inside: content.body,
            sent_attributes,
        };
    }

    /// Makes key and fingerprint from the body in the queue, unless the body is in S3 or the message needs neither.
    pub(crate) fn identify_body(&mut self, sources: &IdentitySources<'_>) {
        if self.identity.is_none() && self.s3_pointer.is_none() && !self.is_s3_test {
            self.identity = Some(self.identify(self.body(), sources));
        }
    }

    /// Returns the message group on a FIFO queue, where the messages of a group run in order, one at a time. On
    /// a standard queue, message groups only make the queue fair, and say nothing about order.
    pub(crate) fn fifo_group(&self) -> Option<&str> {
        let facts = self.delivery.facts();
        let queue = facts.queue_arn.as_deref()?;
        facts
            .group_id
            .as_deref()
            .filter(|_| queue.ends_with(".fifo"))
    }

    /// Returns the queue and the receipt handle, or `None` if the event lacks one of them.
    pub(crate) fn receipt(&self) -> Option<Receipt<'_>> {
        Some(Receipt {
            queue_arn: self.delivery.facts().queue_arn.as_deref()?,
            handle: self.receipt_handle.as_deref()?,
        })
    }

    pub(crate) fn receive_count(&self) -> u32 {
        self.delivery.facts().receive_count
    }

    /// Makes key and fingerprint from the body, which may come from S3.
    pub(crate) fn identify(
        &self,
        body: Option<&str>,
        sources: &IdentitySources<'_>,
    ) -> Result<Identity, NoKey> {
        let body = body.ok_or_else(InvalidMessage::no_body)?;
        // An envelope gets a new id and time whenever the message is published, so the envelope isn't part of the fingerprint.
        let whole = match &self.opened {
            Opened::Envelope(inside) => inside,
            Opened::Bare | Opened::Removed { .. } => body,
        };
        sources.identity(body, whole, self.delivery.facts())
    }

    /// Makes the key of a message whose body is gone. Returns `None` if the key needs the body.
    pub(super) fn identify_without_body(
        &self,
        sources: &IdentitySources<'_>,
    ) -> Option<Result<Identity, NoKey>> {
        let sources = IdentitySources {
            fingerprint: &FingerprintSource::Off,
            ..*sources
        };
        let needs_body = sources.key.needs_body();
        (!needs_body).then(|| sources.identity("", "", self.delivery.facts()))
    }

    pub(crate) fn without_key(&self, why: NoKey) -> Outcome {
        match why {
            NoKey::Invalid(InvalidMessage(why)) => self.invalid(&why),
            NoKey::Panicked => Outcome::Panicked,
        }
    }

    /// Returns the outcome of a message that can never be processed.
    pub(crate) fn invalid(&self, why: &str) -> Outcome {
        let innermost = match &self.opened {
            Opened::Envelope(inside) => Some(inside.as_str()),
            Opened::Bare | Opened::Removed { .. } => self.body(),
        };
        Outcome::Invalid(if innermost.is_some_and(envelope::has_text_as_detail) {
            format!(
                "{why}; `detail` of this EventBridge event is a text, and CONSUMER_ENVELOPE=auto removes an event \
                 only from around an object: send an object as its `Detail`, or let pointers begin with `/detail`"
            )
        } else {
            let advice = match self.opened {
                Opened::Bare => "",
                Opened::Envelope(_) => {
                    "; the message is in an envelope of SNS, EventBridge or S3, which CONSUMER_ENVELOPE=auto removes"
                }
                Opened::Removed { .. } => {
                    "; JSON pointers start at the message inside its envelope"
                }
            };
            format!("{why}{advice}")
        })
    }

    /// Creates the span in which the message runs. The handler's log lines also have the span's fields. Our default span is
    /// enabled at every log level, and names the request id as the Lambda runtime's span does.
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
        )
    }

    /// Records the key in a span that was created before the key was known, if the span has a field for it.
    pub(crate) fn add_key_to(span: &Span, key: &Key) {
        span.record("key", key.as_str());
    }

    /// Returns the key, if it was made when the event was read.
    pub(crate) fn key(&self) -> Option<&Key> {
        Some(&self.identity.as_ref()?.as_ref().ok()?.key)
    }

    /// Returns the body of the SQS message itself, or what was inside its envelope if that was removed.
    pub(crate) fn body(&self) -> Option<&str> {
        match &self.opened {
            Opened::Removed { inside, .. } => Some(inside),
            Opened::Bare | Opened::Envelope(_) => self.sent_body.as_deref(),
        }
    }

    /// Returns the attributes of the SQS message itself, without those from inside an envelope.
    pub(crate) fn sent_attributes(&self) -> &HashMap<String, Attribute> {
        match &self.opened {
            Opened::Removed {
                sent_attributes, ..
            } => sent_attributes,
            Opened::Bare | Opened::Envelope(_) => &self.delivery.facts().attributes,
        }
    }

    /// Makes the handler's message from this body, which may come from S3.
    pub(crate) fn parse<T: FromMessage>(&self, body: Option<&str>) -> Result<T, InvalidMessage> {
        let body = body.ok_or_else(InvalidMessage::no_body)?;
        T::from_message(body, self.delivery.facts())
    }
}

fn attributes(sent: HashMap<String, SqsMessageAttribute>) -> HashMap<String, Attribute> {
    sent.into_iter()
        .filter_map(|(name, value)| Some((name, attribute(value)?)))
        .collect()
}

/// Converts an attribute, with the value of its declared type. Returns `None` if that value is missing.
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

    fn sqs(body: &str) -> SqsMessage {
        let mut sqs = SqsMessage::default();
        sqs.message_id = Some("m-1".into());
        sqs.body = Some(body.into());
        sqs
    }

    fn message(sqs: SqsMessage) -> Option<Message> {
        let mut message = Message::new(sqs)?;
        message.open(Envelope::None, false);
        message.identify_body(&IdentitySources {
            namespace: &Namespace::new("ns").unwrap(),
            key: &KeySource::default(),
            fingerprint: &FingerprintSource::default(),
            warned: &std::sync::Once::new(),
        });
        Some(message)
    }

    fn parse(sqs: SqsMessage) -> Result<Order, InvalidMessage> {
        let message = message(sqs).unwrap();
        message.parse(message.body())
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
            let InvalidMessage(text) = parse(sqs(body)).unwrap_err();
            assert!(text.contains(told), "{text}");
            assert!(!text.contains("SECRET"), "{text}");
        }
        assert!(parse(sqs(r#"{"orderId":"o-1","card":1}"#)).is_ok());
    }

    #[test]
    fn message_without_body_has_no_identity() {
        let mut bodiless = sqs("");
        bodiless.body = None;
        let no_body = InvalidMessage::no_body();
        let identity = message(bodiless.clone()).unwrap().identity;
        assert_eq!(identity, Some(Err(NoKey::Invalid(no_body.clone()))));
        assert_eq!(parse(bodiless).unwrap_err(), no_body);
    }

    #[test]
    fn message_group_counts_only_on_fifo_queues() {
        let group = |arn: &str| {
            let mut sqs = sqs("{}");
            sqs.event_source_arn = Some(arn.into());
            sqs.attributes = HashMap::from([("MessageGroupId".into(), "g".into())]);
            message(sqs).unwrap().fifo_group().map(str::to_owned)
        };
        assert_eq!(
            group("arn:aws:sqs:eu-west-1:123456789012:q.fifo").as_deref(),
            Some("g")
        );
        assert_eq!(group("arn:aws:sqs:eu-west-1:123456789012:q"), None);
    }
}

//! Direct dead-lettering: copies messages that failed permanently, and waits for SQS to confirm the copies.

use std::{
    borrow::Cow,
    collections::{BTreeMap, HashMap, HashSet, VecDeque},
};

use aws_sdk_sqs::{
    primitives::Blob,
    types::{
        MessageAttributeValue, MessageSystemAttributeNameForSends, MessageSystemAttributeValue,
        SendMessageBatchRequestEntry as Entry,
        builders::SendMessageBatchRequestEntryBuilder as EntryBuilder,
    },
};

use super::{
    attributes::{Attributes, Warning},
    entries::{PER_CALL, entries, of_entry, warn_of_rejected},
    queues::{Bound, CallError, Queue},
};
use crate::{
    flawed::flawed,
    handler::{Attribute, AttributeValue},
    modes::Outcome,
    protocol::{Fingerprint, Key},
    sqs::{
        key_source::ORIGINAL_DEDUPLICATION_ID, message::MessageId, message_outcome::MessageOutcome,
    },
    system::Instant,
};

const REASON: &str = "SqsOnceReason";
const ERROR: &str = "SqsOnceError";
const KEY: &str = "SqsOnceKey";
/// Data type of the attributes that we add.
const TEXT: &str = "String";

/// How many bytes of the error a copy carries.
const MAX_ERROR_BYTES: usize = 1024;
/// How many attributes SQS allows a message.
const MAX_ATTRIBUTES: usize = 10;
/// Largest message that SQS allows, with its attributes (*API Reference*, `SendMessageBatch`).
const MAX_BYTES: usize = 1024 * 1024;
/// Largest call with more than one entry. This was the limit of SQS before 2025, so every endpoint accepts it.
const MAX_CALL_BYTES: usize = 256 * 1024;

/// Sends messages to their queues' dead-letter queues.
pub(super) struct DeadLetters<'a> {
    pub(super) attributes: &'a Attributes,
    /// True if keys of FIFO messages are made from deduplication ids.
    pub(super) needs_deduplication_id: bool,
    pub(super) until: Instant,
}

struct MessageCopy<'a> {
    id: &'a MessageId,
    entry: EntryBuilder,
    bytes: usize,
}

/// Why a message cannot be copied.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
enum NoCopy {
    #[error("it has no body, or its body or an attribute can't be read")]
    NoBody,
    #[error(
        "its key is its deduplication id, and there is no room for the attribute {ORIGINAL_DEDUPLICATION_ID}: SQS takes {MAX_ATTRIBUTES} attributes and {0} bytes"
    )]
    NoRoom(usize),
}

/// The attributes of a copy, within the limits of SQS.
struct Room {
    attributes: HashMap<String, Attribute>,
    /// Size of the copy so far.
    bytes: usize,
    max_bytes: usize,
}

impl DeadLetters<'_> {
    /// Copies each message to its queue's dead-letter queue, once per id. Returns the ids whose copies SQS
    /// confirmed. Only these messages may be deleted.
    pub(super) async fn send<'a>(&self, failed: &[&MessageOutcome<'a>]) -> HashSet<&'a MessageId> {
        let mut seen = HashSet::new();
        let mut of_queue: BTreeMap<&str, Vec<_>> = BTreeMap::new();
        for &of in failed {
            if let Some(receipt) = of.message.receipt()
                && seen.insert(of.message_id)
            {
                of_queue.entry(receipt.queue_arn).or_default().push(of);
            }
        }
        let mut confirmed = HashSet::new();
        for (arn, failed) in of_queue {
            let sent = self.send_of(arn, &failed, &mut confirmed).await;
            let Err(error) = sent else { continue };
            let is_news = match error {
                // A permission or queue that is missing stays missing, so one warning and the metric are enough.
                CallError::Denied(_) => self.attributes.is_news(arn, Warning::DeniedCopies),
                // The first call without a response was already logged.
                CallError::Paused => false,
                _ => true,
            };
            if is_news {
                tracing::warn!(
                    queue = arn,
                    messages = failed.len(),
                    %error,
                    "messages could not be sent to the dead-letter queue directly: those without a confirmed copy are reported as failed"
                );
            }
        }
        confirmed
    }

    async fn send_of<'a>(
        &self,
        arn: &str,
        failed: &[&MessageOutcome<'a>],
        confirmed: &mut HashSet<&'a MessageId>,
    ) -> Result<(), CallError> {
        // If SQS rejected the read, or if there is no dead-letter queue, the read has already logged a warning.
        let Some(facts) = self.attributes.wait(arn, self.until).await? else {
            return Ok(());
        };
        let Some(dead_letter_queue) = &facts.dead_letter_queue else {
            return Ok(());
        };
        let bound = Bound::Until(self.until);
        let queue = self
            .attributes
            .queues
            .queue(dead_letter_queue, bound)
            .await?;
        let mut copies = Vec::new();
        let max_bytes = facts.max_bytes.map_or(MAX_BYTES, |of| of.min(MAX_BYTES));
        for of in failed {
            let says = if flawed("a copy names another's reason") {
                failed[0]
            } else {
                of
            };
            let needs_id = self.needs_deduplication_id;
            let copy = MessageCopy::of(of, says.outcome, max_bytes, needs_id);
            match copy {
                Ok(copy) => copies.push(copy),
                Err(why) => tracing::warn!(
                    message_id = of.message_id,
                    %why,
                    "the message is reported as failed: no copy of it can be sent to the dead-letter queue"
                ),
            }
        }
        // We send the calls one after the other, so that a message group keeps its order.
        let mut calls = VecDeque::from(calls(copies));
        while let Some(call) = calls.pop_front() {
            match (self.call(&queue, &call, confirmed).await, &*call) {
                (Ok(()), _) => {}
                (Err(CallError::Refused(error)), [copy]) => tracing::warn!(
                    message_id = copy.id.as_str(),
                    error,
                    "the message is reported as failed: the dead-letter queue did not take its copy"
                ),
                // A single copy may be the reason, and must not hold up the others, so we send each alone.
                (Err(CallError::Refused(_)), _) => {
                    let alone = call.into_iter().rev().map(|copy| vec![copy]);
                    alone.for_each(|call| calls.push_front(call));
                }
                (Err(error), _) => return Err(error),
            }
        }
        Ok(())
    }

    async fn call<'a>(
        &self,
        queue: &Queue,
        copies: &[MessageCopy<'a>],
        confirmed: &mut HashSet<&'a MessageId>,
    ) -> Result<(), CallError> {
        let call = queue
            .client
            .send_message_batch()
            .queue_url(&queue.url)
            .set_entries(Some(entries(copies, |copy, id| {
                copy.entry.clone().id(id).build()
            })?));
        let bound = Bound::Until(self.until);
        let answer = (self.attributes.queues)
            .call(&queue.region, "sqs:SendMessage", bound, || {
                call.clone().send()
            })
            .await?;
        let successful = answer.successful().iter();
        confirmed.extend(successful.filter_map(|entry| Some(of_entry(copies, entry.id())?.id)));
        warn_of_rejected(
            copies,
            answer.failed(),
            |copy| copy.id,
            "the message is reported as failed: the dead-letter queue did not take its copy",
        );
        Ok(())
    }
}

impl<'a> MessageCopy<'a> {
    /// Creates the copy. If the message has no room for our own attributes, we shorten the error, then drop it, then the key, then
    /// the reason.
    fn of(
        of: &MessageOutcome<'a>,
        outcome: &Outcome,
        max_bytes: usize,
        needs_deduplication_id: bool,
    ) -> Result<Self, NoCopy> {
        let message = of.message;
        let body = message.sent_body.as_deref().ok_or(NoCopy::NoBody)?;
        let sent = message.delivery.facts();
        let mut attributes = message.sent_attributes().clone();
        for ours in [REASON, ERROR, KEY] {
            attributes.remove(ours);
        }
        if flawed("a copy leaves out what a redrive added") {
            attributes.remove("SqsOnceRedriveOf");
        }
        let mut room = Room {
            bytes: body.len() + attributes.iter().map(size).sum::<usize>(),
            attributes,
            max_bytes,
        };
        // The id that the producer chose, unless an earlier copy already carries it.
        if let Some(id) = &sent.deduplication_id
            && message.fifo_group().is_some()
            && (!room.attributes.contains_key(ORIGINAL_DEDUPLICATION_ID)
                || flawed("a second copy has the first one's id"))
            && !room.add(ORIGINAL_DEDUPLICATION_ID, id)
            && needs_deduplication_id
        {
            return Err(NoCopy::NoRoom(max_bytes));
        }
        let key = of.key.map_or(Cow::Borrowed(""), printable);
        if room.add(REASON, outcome.name()) && room.add(KEY, &key) {
            let mut error = error(outcome);
            error.truncate(error.floor_char_boundary(room.left(ERROR)));
            room.add(ERROR, &error);
        }
        let Room {
            attributes, bytes, ..
        } = room;
        let values = attributes
            .into_iter()
            .filter_map(|(name, attribute)| Some((name, value(attribute)?)))
            .collect();
        let mut entry = Entry::builder()
            .message_body(body)
            .set_message_attributes(Some(values));
        // SQS does the same when it moves a message. A standard queue also has message groups, for fairness.
        entry = entry.set_message_group_id(sent.group_id.clone());
        if message.fifo_group().is_some() {
            entry = entry.message_deduplication_id(message.id.as_str());
        }
        if let Some(trace) = &sent.trace_header {
            let header = MessageSystemAttributeValue::builder()
                .data_type("String")
                .string_value(trace)
                .build();
            let name = MessageSystemAttributeNameForSends::AwsTraceHeader;
            entry = entry.set_message_system_attributes(header.ok().map(|it| [(name, it)].into()));
        }
        Ok(Self {
            id: &message.id,
            entry,
            bytes,
        })
    }
}

impl Room {
    /// Returns how many bytes the value of one more attribute may have.
    fn left(&self, name: &str) -> usize {
        if self.attributes.len() >= MAX_ATTRIBUTES {
            return 0;
        }
        let used = self.bytes + name.len() + TEXT.len();
        self.max_bytes.saturating_sub(used)
    }

    /// Adds an attribute, unless its value is empty, which SQS rejects. Returns false if there is no room.
    fn add(&mut self, name: &str, value: &str) -> bool {
        if value.is_empty() {
            return true;
        }
        if value.len() > self.left(name) {
            return false;
        }
        let attribute = Attribute {
            data_type: TEXT.to_owned(),
            value: AttributeValue::Text(value.to_owned()),
        };
        let name = name.to_owned();
        self.bytes += size((&name, &attribute));
        self.attributes.insert(name, attribute);
        true
    }
}

/// Divides copies into calls within the limits of SQS.
fn calls(copies: Vec<MessageCopy<'_>>) -> Vec<Vec<MessageCopy<'_>>> {
    let (mut calls, mut bytes): (Vec<Vec<_>>, _) = (Vec::new(), 0);
    for copy in copies {
        bytes += copy.bytes;
        match calls.last_mut() {
            Some(call) if call.len() < PER_CALL && bytes <= MAX_CALL_BYTES => call.push(copy),
            _ => {
                bytes = copy.bytes;
                calls.push(vec![copy]);
            }
        }
    }
    calls
}

/// Returns the stored error if there is one, with only characters that SQS accepts.
fn error(outcome: &Outcome) -> String {
    let text = match outcome {
        Outcome::PermanentFailure(error)
        | Outcome::FailedBefore(error)
        | Outcome::Crashed(error) => error.clone(),
        outcome => outcome.to_string(),
    };
    let allowed = |char| if is_allowed(char) { char } else { '\u{fffd}' };
    let mut error: String = text.chars().map(allowed).collect();
    error.truncate(error.floor_char_boundary(MAX_ERROR_BYTES));
    error
}

/// Returns the key, or its SHA-256 if SQS rejects its characters.
fn printable(key: &Key) -> Cow<'_, str> {
    if key.as_str().chars().all(is_allowed) {
        Cow::Borrowed(key.as_str())
    } else {
        let hash = Fingerprint::of(key.as_str().as_bytes());
        Cow::Owned(hash.as_str().to_owned())
    }
}

/// Returns whether SQS accepts a character in a body or an attribute. SQS accepts only the characters of XML 1.0.
fn is_allowed(char: char) -> bool {
    matches!(char, '\t' | '\n' | '\r' | ' '..='\u{fffd}' | '\u{10000}'..)
}

/// Builds the SDK's attribute, with the value and the type that the producer sent.
fn value(Attribute { data_type, value }: Attribute) -> Option<MessageAttributeValue> {
    let builder = MessageAttributeValue::builder().data_type(data_type);
    let builder = match value {
        AttributeValue::Text(text) => builder.string_value(text),
        AttributeValue::Binary(bytes) => builder.binary_value(Blob::new(bytes)),
    };
    builder.build().ok()
}

/// Returns the size of an attribute: name, type and value (*Amazon SQS Developer Guide*, "Amazon SQS message
/// metadata").
fn size((name, attribute): (&String, &Attribute)) -> usize {
    let value = match &attribute.value {
        AttributeValue::Text(text) => text.len(),
        AttributeValue::Binary(bytes) => bytes.len(),
    };
    name.len() + attribute.data_type.len() + value
}

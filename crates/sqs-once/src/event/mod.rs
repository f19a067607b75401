//! [`Event`]: a message that a handler publishes when its operation is recorded.

use std::borrow::Cow;

use serde::Serialize;

use crate::protocol::{Fingerprint, Key};

/// Longest id and longest group that SQS and SNS accept, in characters (*Amazon SQS API Reference*,
/// "SendMessage").
pub(crate) const MAX_ID: usize = 128;

/// Longest name, in characters. EventBridge has this limit for a detail type.
const MAX_NAME: usize = 128;

/// Longest body, in bytes. An SNS message has at most 256 KB unless its topic allows more, and we leave 1 KB
/// of that for the attributes.
pub(crate) const MAX_BODY_BYTES: usize = 255 * 1024;

/// Maximum number of events that one handler may publish. A DynamoDB transaction has room for fewer.
const MAX_EVENTS: usize = 1000;

/// An event that a handler publishes with its writes (`Done::publish`, and `InTransaction::publish` from
/// `sqs-once-postgres`).
///
/// The transaction that records the operation also writes the event, as one more item or row. So the event is
/// published if and only if the operation is recorded. The relay then sends it at least once, to the target
/// that the relay's settings name for this event (`docs/outbox.md`).
///
/// ```
/// use sqs_once::{Done, Event};
///
/// let order = serde_json::json!({ "orderId": "o-1", "amount": 99.99 });
/// let done = Done::new("placed").publish(Event::new("order-placed", &order).group("customer-7"));
/// ```
///
/// # Id
///
/// The id is the key of the operation followed by the position of the event, as in `orders#o-1#00`. If that
/// text is longer than 128 characters, or SQS would reject one of its characters, the id is its SHA-256.
/// Every attempt gives an event the same id, so a consumer that uses the id as its key processes the event
/// once.
///
/// # Limits
///
/// | part | limit |
/// | --- | --- |
/// | name | 1 to 128 ASCII letters, digits and `.-_/:` |
/// | body | JSON of at most 255 KB; an object or any other value |
/// | group | not empty; hashed if longer than 128 characters, like an id |
///
/// If an event exceeds one of these limits, the operation fails permanently and nothing is written.
#[derive(Clone, Debug)]
pub struct Event {
    name: String,
    body: Result<String, &'static str>,
    group: Option<String>,
}

impl Event {
    /// Returns the length of name and body, in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.name.len() + self.body.as_ref().map_or(0, String::len)
    }

    /// Returns the group as the handler gave it, before it is shortened, or `None` if the event has no group.
    #[must_use]
    pub fn group_name(&self) -> Option<&str> {
        self.group.as_deref()
    }

    /// Creates an event with this name, and with `body` as JSON.
    #[must_use]
    pub fn new(name: impl Into<String>, body: &impl Serialize) -> Self {
        let body = serde_json::to_string(body);
        Self {
            name: name.into(),
            // serde's error may quote the value, and the value is payload.
            body: body
                .map(|json| escaped(&json))
                .map_err(|_| "the body can't be written as JSON"),
            group: None,
        }
    }

    /// Sets the group, such as the customer or the account. The relay sends the events of one group in the
    /// order of their commits. Events without a group have no order.
    ///
    /// On queues and topics, the group becomes the `MessageGroupId`. A standard queue with fair queues treats it as the
    /// tenant. On a FIFO queue or topic, an event without a group gets one of its own.
    #[must_use]
    pub fn group(self, group: impl Into<String>) -> Self {
        Self {
            group: Some(group.into()),
            ..self
        }
    }

    /// Returns the limit that the event exceeds, if any.
    pub(crate) fn fault(&self) -> Option<Cow<'static, str>> {
        if !is_name(&self.name) {
            let limits = "the name must have 1 to 128 ASCII letters, digits and `.-_/:`";
            return Some(limits.into());
        }
        if self.group.as_ref().is_some_and(String::is_empty) {
            return Some("the group is empty".into());
        }
        match &self.body {
            Err(why) => Some((*why).into()),
            Ok(body) if body.len() > MAX_BODY_BYTES => {
                let bytes = body.len();
                Some(format!("the body has {bytes} bytes, at most {MAX_BODY_BYTES} fit").into())
            }
            Ok(_) => None,
        }
    }
}

/// An event of an operation, together with its id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Published {
    /// The id: at most 128 visible ASCII characters.
    pub id: String,
    /// The group: at most 128 visible ASCII characters. If the event has no group, its id.
    pub group: String,
    /// The event's name.
    pub name: String,
    /// The body, as JSON.
    pub body: String,
}

impl Published {
    /// Creates the event at this position among the events of an operation.
    pub fn new(key: &Key, index: usize, event: Event) -> Self {
        let id = sendable(format!("{key}#{index:02}"));
        Self {
            group: event.group.map_or_else(|| id.clone(), sendable),
            id,
            name: event.name,
            // `Event::fault` has already rejected an event without a body.
            body: event.body.unwrap_or_default(),
        }
    }
}

/// Returns the first limit that the events of an operation exceed.
pub fn first_fault(events: &[Event]) -> Option<String> {
    let count = events.len();
    if count > MAX_EVENTS {
        return Some(format!(
            "the answer has {count} events, at most {MAX_EVENTS} fit; nothing was written"
        ));
    }
    let mut faults = events.iter().map(Event::fault).enumerate();
    faults
        .find_map(|(index, fault)| Some(format!("event {index}: {}; nothing was written", fault?)))
}

/// Returns whether `name` can be the name of an event.
pub fn is_name(name: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || ".-_/:".contains(c);
    (1..=MAX_NAME).contains(&name.len()) && name.chars().all(allowed)
}

/// Returns the text if SQS accepts it as an id or a group, otherwise its SHA-256 in hex.
fn sendable(text: String) -> String {
    if text.len() <= MAX_ID && text.bytes().all(|c| c.is_ascii_graphic()) {
        text
    } else {
        Fingerprint::of(text.as_bytes()).as_str().to_owned()
    }
}

/// Escapes the two characters that serde_json writes as they are and SQS rejects. In JSON they occur only
/// inside strings.
fn escaped(json: &str) -> String {
    json.replace('\u{fffe}', "\\ufffe")
        .replace('\u{ffff}', "\\uffff")
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;
    use crate::protocol::Namespace;

    fn published(key: &str, event: Event) -> Published {
        let key = Key::new(&Namespace::new("orders").unwrap(), [key]).unwrap();
        Published::new(&key, 7, event)
    }

    #[test]
    fn id_is_key_and_position() {
        let event = published("o-1", Event::new("placed", &1));
        assert_eq!(
            (&*event.id, &*event.group),
            ("orders#o-1#07", "orders#o-1#07")
        );
        let event = published("o-1", Event::new("placed", &1).group("c-1"));
        assert_eq!((&*event.id, &*event.group), ("orders#o-1#07", "c-1"));
    }

    #[test]
    fn id_that_sqs_rejects_is_hashed() {
        for (key, hashed) in [
            ("x".repeat(118), false), // `orders#` and `#07` take 10
            ("x".repeat(119), true),
            ("o 1".to_owned(), true),
            ("Bestellung für Ada".to_owned(), true),
        ] {
            let event = published(&key, Event::new("placed", &1).group(&key));
            assert_eq!(event.id.len() == 64, hashed, "{key}");
            assert!(event.id.bytes().all(|c| c.is_ascii_graphic()));
            assert!(event.group.len() <= 128 && event.group.bytes().all(|c| c.is_ascii_graphic()));
        }
        let groups = ["a b", "a c"].map(|group| {
            let event = Event::new("placed", &1).group(group);
            published("o-1", event).group
        });
        assert_ne!(groups[0], groups[1]);
    }

    #[test]
    fn fault_names_the_limit() {
        let body = "x".repeat(MAX_BODY_BYTES - 2);
        assert_eq!(Event::new("a.b-c_d/e:1", &body).group("g").fault(), None);
        let faults = [
            Event::new("", &1),
            Event::new("a,b", &1),
            Event::new("x".repeat(129), &1),
            Event::new("a", &1).group(""),
            Event::new("a", &HashMap::from([((), 1)])),
            Event::new("a", &format!("{body}x")),
        ];
        for (event, part) in faults
            .iter()
            .zip(["name", "name", "name", "group", "JSON", "bytes"])
        {
            let fault = event.fault().unwrap();
            assert!(fault.contains(part), "{fault}");
        }
    }

    #[test]
    fn body_has_only_characters_of_sqs() {
        let text = "\u{0}\u{b}\u{fffe}\u{ffff}\u{1f600}";
        let event = published("o-1", Event::new("placed", &text));
        assert!(
            event
                .body
                .chars()
                .all(|c| !matches!(c, '\u{fffe}' | '\u{ffff}') && c >= ' ')
        );
        assert_eq!(serde_json::from_str::<String>(&event.body).unwrap(), text);
    }
}

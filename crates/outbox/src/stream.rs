//! Turns stream records into groups of events.

use std::collections::{BTreeMap, VecDeque};

use aws_lambda_events::dynamodb::EventRecord;
use serde::Deserialize;

use sqs_once::{internal::Published, protocol::Timestamp};

/// One event to be sent.
#[derive(Debug)]
pub(crate) struct Pending {
    /// The record's position in its batch, or the row's number in PostgreSQL.
    pub(crate) position: i64,
    pub(crate) event: Published,
    pub(crate) published_at: Option<Timestamp>,
    /// Why the item is not an event.
    pub(crate) fault: Option<&'static str>,
}

/// Events of one group, in sending order.
pub(crate) type Group = VecDeque<Pending>;

/// Attribute that the template's schedule changes to make the stream invoke the relay every minute.
const HEARTBEAT: &str = "heartbeat";

/// An item of the outbox table (`event::item`), with one event or several.
#[derive(Deserialize)]
struct Image {
    group: String,
    published_at: u64,
    id: Option<String>,
    name: Option<String>,
    body: Option<String>,
    events: Option<Vec<Member>>,
}

#[derive(Deserialize)]
struct Member {
    id: String,
    name: String,
    body: String,
}

impl Image {
    /// Returns the events in order, or `None` if the item is incomplete.
    fn into_members(self) -> Option<Vec<Member>> {
        match self.events {
            Some(events) => (!events.is_empty()).then_some(events),
            None => Some(vec![Member {
                id: self.id?,
                name: self.name?,
                body: self.body?,
            }]),
        }
    }
}

/// Divides the records of a batch into groups.
///
/// A group's events are in the order of the stream, which is the order of the commits. All events that one
/// commit adds to a group are in one item.
///
/// Leaves out deleted items (TTL deletes them, for example) and the heartbeat.
pub(crate) fn groups(records: Vec<EventRecord>) -> Vec<Group> {
    let mut groups: BTreeMap<String, Group> = BTreeMap::new();
    for (position, record) in (0..).zip(records) {
        let image = &record.change.new_image;
        let is_heartbeat = image.contains_key(HEARTBEAT) && !image.contains_key("published_at");
        if record.event_name == "REMOVE" || is_heartbeat {
            continue;
        }
        for pending in pending(position, record) {
            let group = groups.entry(pending.event.group.clone()).or_default();
            group.push_back(pending);
        }
    }
    groups.into_values().collect()
}

fn pending(position: i64, record: EventRecord) -> Vec<Pending> {
    let change = record.change;
    let image = serde_dynamo::from_item::<_, Image>(change.new_image).ok();
    let members = image.and_then(|image| {
        let (group, published_at) = (image.group.clone(), image.published_at);
        Some((group, published_at, image.into_members()?))
    });
    let Some((group, published_at, members)) = members else {
        // The item's key is enough to find the item. We don't know its other attributes.
        let event = Published {
            id: record.event_id.clone(),
            group: record.event_id,
            name: "not-an-event".to_owned(),
            body: serde_json::to_string(&change.keys).unwrap_or_default(),
        };
        return vec![Pending {
            position,
            event,
            published_at: None,
            fault: Some("NotAnEvent"),
        }];
    };
    let pending = |Member { id, name, body }| Pending {
        position,
        event: Published {
            id,
            group: group.clone(),
            name,
            body,
        },
        published_at: Some(Timestamp::from_millis(published_at)),
        fault: None,
    };
    members.into_iter().map(pending).collect()
}

//! Records of the stream into groups of events.

use std::collections::{BTreeMap, VecDeque};

use aws_lambda_events::dynamodb::EventRecord;
use serde::Deserialize;

use crate::{
    event::{Published, item::commit_of},
    protocol::Timestamp,
};

/// One event to be sent.
#[derive(Debug)]
pub(super) struct Pending {
    /// Position in the batch of a stream; number of the row in PostgreSQL.
    pub(super) position: i64,
    pub(super) event: Published,
    pub(super) published_at: Option<Timestamp>,
    /// Why the item is no event.
    pub(super) fault: Option<&'static str>,
}

/// Events of one group, in the order in which they are sent.
pub(super) type Group = VecDeque<Pending>;

/// Attribute of the item that the template's schedule changes, so that the relay is invoked each minute.
const HEARTBEAT: &str = "heartbeat";

/// An item of the outbox table (`event::item`).
#[derive(Deserialize)]
struct Image {
    group: String,
    sequence: String,
    id: String,
    name: String,
    body: String,
    published_at: u64,
}

/// Divides the records of a batch into groups.
///
/// A group has the order of the stream, which is that of the commits. The stream may have the items of
/// one transaction in any order, so the events of one commit have the order of the answer.
///
/// Leaves out deleted items, such as those whose time to live has ended, and the heartbeat.
pub(super) fn groups(records: Vec<EventRecord>) -> Vec<Group> {
    let mut groups: BTreeMap<String, Vec<(String, Pending)>> = BTreeMap::new();
    for (position, record) in (0..).zip(records) {
        let image = &record.change.new_image;
        let is_heartbeat = image.contains_key(HEARTBEAT) && !image.contains_key("id");
        if record.event_name == "REMOVE" || is_heartbeat {
            continue;
        }
        let (sequence, pending) = pending(position, record);
        let group = groups.entry(pending.event.group.clone()).or_default();
        group.push((sequence, pending));
    }
    let in_order = |mut group: Vec<(String, Pending)>| -> Group {
        for commit in group.chunk_by_mut(|(a, _), (b, _)| commit_of(a) == commit_of(b)) {
            commit.sort_by(|(a, _), (b, _)| a.cmp(b));
        }
        group.into_iter().map(|(_, pending)| pending).collect()
    };
    groups.into_values().map(in_order).collect()
}

/// The event of a record, and the sort key of its item.
fn pending(position: i64, record: EventRecord) -> (String, Pending) {
    let change = record.change;
    match serde_dynamo::from_item::<_, Image>(change.new_image) {
        Ok(image) => {
            let event = Published {
                id: image.id,
                group: image.group,
                name: image.name,
                body: image.body,
            };
            let pending = Pending {
                position,
                event,
                published_at: Some(Timestamp::from_millis(image.published_at)),
                fault: None,
            };
            (image.sequence, pending)
        }
        // Its key is enough to find the item, whose other attributes are unknown.
        Err(_) => {
            let event = Published {
                id: record.event_id.clone(),
                group: record.event_id,
                name: "not-an-event".to_owned(),
                body: serde_json::to_string(&change.keys).unwrap_or_default(),
            };
            let pending = Pending {
                position,
                event,
                published_at: None,
                fault: Some("NotAnEvent"),
            };
            (String::new(), pending)
        }
    }
}

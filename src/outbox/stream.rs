//! Records of the stream into groups of events.

use std::collections::{BTreeMap, VecDeque};

use aws_lambda_events::dynamodb::EventRecord;
use serde::Deserialize;

use crate::{
    event::{Published, item::commit_of},
    protocol::Timestamp,
};

/// One record of the stream, to be sent.
#[derive(Debug)]
pub(super) struct Pending {
    /// Position in the batch.
    pub(super) position: usize,
    /// Sort key of the item.
    sequence: String,
    pub(super) event: Published,
    pub(super) published_at: Option<Timestamp>,
    /// Why the item is no event.
    pub(super) fault: Option<&'static str>,
}

/// Events of one group, in the order in which they are sent.
pub(super) type Group = VecDeque<Pending>;

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
/// Leaves out deleted items, such as those whose time to live has ended.
pub(super) fn groups(records: Vec<EventRecord>) -> Vec<Group> {
    let mut groups: BTreeMap<String, Group> = BTreeMap::new();
    for (position, record) in records.into_iter().enumerate() {
        if record.event_name == "REMOVE" {
            continue;
        }
        let pending = Pending::of(position, record);
        let group = groups.entry(pending.event.group.clone()).or_default();
        group.push_back(pending);
    }
    for group in groups.values_mut() {
        let same_commit =
            |a: &Pending, b: &Pending| commit_of(&a.sequence) == commit_of(&b.sequence);
        for commit in group.make_contiguous().chunk_by_mut(same_commit) {
            commit.sort_by(|a, b| a.sequence.cmp(&b.sequence));
        }
    }
    groups.into_values().collect()
}

impl Pending {
    fn of(position: usize, record: EventRecord) -> Self {
        let change = record.change;
        match serde_dynamo::from_item::<_, Image>(change.new_image) {
            Ok(image) => Self {
                position,
                sequence: image.sequence,
                event: Published {
                    id: image.id,
                    group: image.group,
                    name: image.name,
                    body: image.body,
                },
                published_at: Some(Timestamp::from_millis(image.published_at)),
                fault: None,
            },
            // Its key is enough to find the item, whose other attributes are unknown.
            Err(_) => Self {
                position,
                sequence: String::new(),
                event: Published {
                    id: record.event_id.clone(),
                    group: record.event_id,
                    name: "not-an-event".to_owned(),
                    body: serde_json::to_string(&change.keys).unwrap_or_default(),
                },
                published_at: None,
                fault: Some("NotAnEvent"),
            },
        }
    }
}

//! Items with events in the outbox table. All events of one group in one commit share an item, because a
//! stream may deliver the items of a transaction in any order.
//!
//! | attribute | type | meaning |
//! | --- | --- | --- |
//! | `group` | S | partition key: the group |
//! | `sequence` | S | sort key: time and id of the commit, position of the first event in the commit |
//! | `id` | S | the event's id, if there is only one event |
//! | `name` | S | its name |
//! | `body` | S | its JSON |
//! | `events` | L | in place of these three, if there are several events: maps with `id`, `name` and `body`, in order |
//! | `published_at` | N | epoch milliseconds |
//! | `expires_at` | N | epoch seconds; the table's TTL attribute |
//!
//! A relay from before `events` existed cannot read an item with several events, and sends the item's key to
//! the dead-letter queue. If the item had `id`, `name` and `body` as well, such a relay would send one event
//! and lose the others.

use std::{collections::HashMap, time::Duration};

use aws_sdk_dynamodb::types::{AttributeValue, Put};

use crate::{
    dynamo::{
        item::{Item, number, string},
        write::Write,
    },
    event::{Event, MAX_ID, Published},
    protocol::Timestamp,
};

/// How long the table keeps an event. A DynamoDB stream keeps its records for only 24 hours, so an event that no
/// relay could send in that time is still in the table.
const RETENTION: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// Maximum size of the ids, names and bodies in one item. DynamoDB accepts 400 KB, including all attribute names
/// and keys.
const MAX_BYTES: usize = 390 * 1024;

/// Builds the puts of an operation's events: one item for each group. `commit` is unique to the commit.
pub(crate) fn puts(
    table: &str,
    events: Vec<Published>,
    now: Timestamp,
    commit: &str,
) -> Vec<Write<Put>> {
    let mut groups: Vec<(usize, Vec<Published>)> = Vec::new();
    for (index, event) in events.into_iter().enumerate() {
        let known = groups
            .iter_mut()
            .find(|(_, group)| group[0].group == event.group);
        match known {
            Some((_, group)) => group.push(event),
            None => groups.push((index, vec![event])),
        }
    }
    let put = |(index, group)| put(table, group, now, commit, index);
    groups.into_iter().map(put).collect()
}

/// Builds the put of one group's events. `index` is the position of the first one among all events.
fn put(
    table: &str,
    mut events: Vec<Published>,
    now: Timestamp,
    commit: &str,
    index: usize,
) -> Write<Put> {
    let (millis, expires_at) = (now.as_millis(), (now + RETENTION).as_secs_ceil());
    let group = events[0].group.clone();
    let label = match events.len() {
        1 => format!("event {index} ({})", events[0].name),
        n => format!(
            "event {index} ({}) and {} of its group",
            events[0].name,
            n - 1
        ),
    };
    let attributes = |event: Published| {
        [("id", event.id), ("name", event.name), ("body", event.body)]
            .map(|(name, value)| (name.to_owned(), string(value)))
    };
    let mut item = Item::from(
        [
            ("group", string(group)),
            (
                "sequence",
                string(format!("{millis:015}#{commit}#{index:02}")),
            ),
            ("published_at", number(millis)),
            ("expires_at", number(expires_at)),
        ]
        .map(|(name, value)| (name.to_owned(), value)),
    );
    if events.len() == 1 {
        item.extend(events.drain(..).flat_map(attributes));
    } else {
        let map = |event| AttributeValue::M(attributes(event).into());
        let maps = events.into_iter().map(map).collect();
        item.insert("events".to_owned(), AttributeValue::L(maps));
    }
    Write::put_item(table, item).label(label)
}

/// Returns an error text if the events of a group don't fit into one item.
pub(crate) fn first_fault(events: &[Event]) -> Option<String> {
    let mut of_group = HashMap::new();
    for event in events {
        // An event without a group gets an item of its own, and `Event::fault` limits its size.
        if let Some(group) = event.group_name() {
            *of_group.entry(group).or_insert(0) += event.bytes() + MAX_ID;
        }
    }
    let bytes = of_group
        .into_values()
        .max()
        .filter(|bytes| *bytes > MAX_BYTES)?;
    Some(format!(
        "the events of one group have {bytes} bytes, at most {MAX_BYTES} fit into one item; nothing was written"
    ))
}

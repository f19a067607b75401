//! The item of events in the outbox table: those of one group in one answer, so that their order does not
//! depend on the stream, which may have the items of a transaction in any order.
//!
//! | attribute | type | meaning |
//! | --- | --- | --- |
//! | `group` | S | partition key: the group |
//! | `sequence` | S | sort key: time of the commit, commit, position in the commit of the first event |
//! | `id` | S | id of the only event |
//! | `name` | S | name of the only event |
//! | `body` | S | JSON of the only event |
//! | `events` | L | in place of these three, several events in their order: maps with `id`, `name` and `body` |
//! | `published_at` | N | epoch milliseconds |
//! | `expires_at` | N | epoch seconds; the table's TTL attribute |
//!
//! A relay that is older than `events` cannot read an item that has it, and dead-letters the item's key.
//! If the item had `id`, `name` and `body` too, such a relay would send one event and lose the others.

use std::{collections::HashMap, time::Duration};

use aws_sdk_dynamodb::types::{AttributeValue, Put};

use super::{
    item::{Item, number, string},
    write::Write,
};
use sqs_once_core::{
    event::{Event, MAX_ID, Published},
    protocol::Timestamp,
};

/// How long an event is kept. DynamoDB keeps the records of a stream for 24 hours, so an event that no
/// relay could send in that time is still in the table.
const RETENTION: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// Most bytes of the ids, names and bodies in one item. DynamoDB accepts 400 KB with all names and keys.
const MAX_BYTES: usize = 390 * 1024;

/// The puts of an answer's events: an item for each group. `commit` is unique to the commit.
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

/// The put of one group's events, of which the first has the answer's position `index`.
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

/// The limit of an item that the events of a group exceed.
pub(crate) fn first_fault(events: &[Event]) -> Option<String> {
    let mut of_group = HashMap::new();
    for event in events {
        // An event without a group has an item alone, which `Event::fault` bounds.
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

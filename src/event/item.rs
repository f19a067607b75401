//! The item of an event in the outbox table.
//!
//! | attribute | type | meaning |
//! | --- | --- | --- |
//! | `group` | S | partition key: the group |
//! | `sequence` | S | sort key: time of the commit, commit, position in the commit |
//! | `id` | S | id of the event |
//! | `name` | S | name of the event |
//! | `body` | S | JSON |
//! | `published_at` | N | epoch milliseconds |
//! | `expires_at` | N | epoch seconds; the table's TTL attribute |

use std::time::Duration;

use aws_sdk_dynamodb::types::Put;

use super::Published;
use crate::{
    dynamodb::{
        item::{Item, number, string},
        write::Write,
    },
    protocol::Timestamp,
};

/// Time that an event is kept. DynamoDB keeps the records of a stream for 24 hours, so that an event
/// that no relay could send is still in the table.
const RETENTION: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// The put of an event, of the answer's position `index`. `commit` is unique to the commit.
pub(crate) fn put(
    table: &str,
    event: Published,
    now: Timestamp,
    commit: &str,
    index: usize,
) -> Write<Put> {
    let (millis, expires_at) = (now.as_millis(), (now + RETENTION).as_secs_ceil());
    let label = format!("event {index} ({})", event.name);
    let item = Item::from(
        [
            ("group", string(event.group)),
            (
                "sequence",
                string(format!("{millis:015}#{commit}#{index:02}")),
            ),
            ("id", string(event.id)),
            ("name", string(event.name)),
            ("body", string(event.body)),
            ("published_at", number(millis)),
            ("expires_at", number(expires_at)),
        ]
        .map(|(name, value)| (name.to_owned(), value)),
    );
    Write::put_item(table, item).label(label)
}

/// Returns the part of a sort key that all events of one commit have in common.
#[cfg(feature = "outbox")]
pub(crate) fn commit_of(sequence: &str) -> &str {
    sequence
        .rsplit_once('#')
        .map_or(sequence, |(commit, _)| commit)
}

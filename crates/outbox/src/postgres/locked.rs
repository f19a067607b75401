//! Sends events of groups whose rows a transaction has locked, and names the rows to settle.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    Relay,
    report::RelayReport,
    rounds::{Rounds, Unsent},
    stream::{Group, Pending},
};
use sqs_once::Deadline;
use sqs_once_postgres::relay::{Limits, Row};

/// The rows whose events were sent or dead-lettered, and the rows that failed, each with its group.
pub(super) struct SettledRows {
    pub(super) done: Vec<i64>,
    pub(super) failed: Vec<(i64, String)>,
}

/// Sends the events of locked groups.
pub(super) async fn send_groups(
    relay: &Relay,
    groups: Vec<Group>,
    run: &mut Rounds,
    report: &mut RelayReport,
) -> SettledRows {
    let rows = groups.iter().flatten().map(|event| event.position);
    let mut done: BTreeSet<i64> = rows.collect();
    let mut failed = Vec::new();
    for Unsent { events, has_failed } in relay.send_groups(groups, run, report).await {
        for event in &events {
            done.remove(&event.position);
        }
        let Some(first) = events.front() else {
            continue;
        };
        if has_failed {
            report.failed(events.len());
            failed.push((first.position, first.event.group.clone()));
        }
    }
    SettledRows {
        done: Vec::from_iter(done),
        failed,
    }
}

/// Divides rows into groups, in the order of their first rows.
pub(super) fn groups(rows: Vec<Row>) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    let mut places = BTreeMap::new();
    for row in rows {
        let place = *places
            .entry(row.event.group.clone())
            .or_insert(groups.len());
        if place == groups.len() {
            groups.push(Group::new());
        }
        groups[place].push_back(Pending {
            position: row.sequence,
            event: row.event,
            published_at: Some(row.published_at),
            fault: None,
        });
    }
    groups
}

/// Returns the limits of the transaction. The transaction is `READ COMMITTED`, because with stricter isolation a row that
/// another relay has sent would be an error instead of being left out.
pub(super) fn limits(deadline: Deadline) -> Limits {
    Limits {
        is_read_committed: true,
        ..Limits::until(deadline, deadline.write_until())
    }
}

//! [`Progress`]: how many events of a record an earlier invocation has sent.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use sqs_once::internal::flawed;

use crate::stream::Group;

/// Maximum number of records to remember. When other processes take over the shards, their records stay here.
const MAX_RECORDS: usize = 1000;

/// How many events at the start of a record have been sent or dead-lettered, by the record's sequence number.
///
/// After a failure, Lambda resends the batch starting at one record, and a record can hold a thousand events. Without this
/// count, a record that takes longer than an invocation would start over each time. Another process doesn't know the
/// progress, and sends the events again.
#[derive(Debug, Default)]
pub(crate) struct Progress(Mutex<HashMap<String, usize>>);

impl Progress {
    /// Removes the events that were sent.
    pub(crate) fn skip(&self, groups: &mut [Group], numbers: &[Option<String>]) {
        let mut sent = self.sent();
        for group in groups {
            while let Some(first) = group.front()
                && let Some(left) = number(numbers, first.position).and_then(|n| sent.get_mut(n))
                && *left > 0
            {
                *left -= 1;
                group.pop_front();
            }
        }
        for number in numbers.iter().flatten() {
            sent.remove(number);
        }
    }

    /// Notes that this many events of a record were sent.
    pub(crate) fn note(&self, number: String, count: usize) {
        if number.is_empty() || count == 0 {
            return;
        }
        let mut sent = self.sent();
        if sent.len() >= MAX_RECORDS {
            sent.clear();
        }
        sent.insert(
            number,
            count + usize::from(flawed("the progress is one event ahead")),
        );
    }

    /// Locks the map. No panic can interrupt a change, so a poisoned lock is harmless.
    fn sent(&self) -> MutexGuard<'_, HashMap<String, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the sequence number of the record at this position.
pub(crate) fn number(numbers: &[Option<String>], position: i64) -> Option<&String> {
    numbers.get(usize::try_from(position).ok()?)?.as_ref()
}

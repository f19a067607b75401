//! Duplicates: one that is no first receive is answered by a read, and none by a record whose time to live is over.

use std::{collections::BTreeMap, time::Duration};

use super::Bench;
use crate::{
    ledger::{Event, Worker},
    plan::{Mode, QUARANTINE, RECORDS_KEPT},
};

#[derive(Default)]
pub(super) struct Costs {
    completed: BTreeMap<String, Duration>,
    /// Messages of each batch, and whether none is a first receive.
    messages: BTreeMap<usize, BTreeMap<String, bool>>,
}

impl Costs {
    pub(super) fn event(&mut self, at: Duration, event: &Event, bench: &mut Bench<'_>) {
        if let Some(batch) = event.ended_batch() {
            self.messages.remove(&batch);
        }
        match event {
            Event::Received {
                message,
                count,
                batch,
            } => {
                let attributes = &bench.messages[message].attributes;
                let is_later =
                    *count > 1 || attributes.keys().any(|name| name.starts_with("SqsOnce"));
                let of_batch = self.messages.entry(*batch).or_default();
                *of_batch.entry(message.clone()).or_insert(true) &= is_later;
            }
            Event::Settled {
                key,
                is: "COMPLETED",
                ..
            } => {
                self.completed.insert(key.clone(), at);
            }
            Event::Deleted { key } | Event::Forgotten { key } => {
                if let Some(completed) = self.completed.remove(key) {
                    self.removed(at, completed, key, bench);
                }
            }
            Event::Refused {
                key,
                message,
                worker,
                found: "COMPLETED",
            } => self.refused(key, message, *worker, bench),
            Event::Outcome {
                outcome: "duplicate",
                count,
                message,
                ..
            } => {
                if *count > 1 {
                    bench.check("a later duplicate costs a read", true, &[], String::new);
                }
                self.forgotten(at, message, bench);
            }
            _ => {}
        }
    }

    /// A change removes only keys from an item that are older than the item keeps them. The time of a key is that of its
    /// change, which may have arrived later.
    fn removed(&self, at: Duration, completed: Duration, key: &String, bench: &mut Bench<'_>) {
        if bench.plan.mode == Mode::Item {
            let kept = at.saturating_sub(completed) + QUARANTINE + 2 * bench.skew();
            let check = "an item keeps its keys";
            bench.check(check, kept >= bench.plan.records_kept, &[key], || {
                format!("{key} of {completed:?} is no longer on its item")
            });
        }
    }

    /// A record answers for a message as long as it is kept, and no longer.
    fn forgotten(&self, at: Duration, message: &String, bench: &mut Bench<'_>) {
        let key = bench.key(&bench.messages[message]);
        let Some(completed) = self.completed.get(&key) else {
            return;
        };
        if bench.plan.mode == Mode::Item || bench.plan.records_kept >= RECORDS_KEPT {
            return;
        }
        let end = *completed + bench.plan.records_kept + bench.plan.timeouts.function;
        bench.check(
            "a record is forgotten in its time",
            at <= end + bench.skew() + Duration::from_secs(1),
            &[&key, message],
            || format!("{message} is a duplicate of {key}, completed at {completed:?}"),
        );
    }

    /// A swap found that the operation is completed. If it was when the batch began, a read would have said so.
    fn refused(&self, key: &str, message: &String, worker: Worker, bench: &mut Bench<'_>) {
        let Some(completed) = self.completed.get(key) else {
            return;
        };
        // Each invocation of the process that may have sent it.
        let was_known = {
            let batches = bench.at_work.of(worker, message);
            let mut of_message = batches
                .filter_map(|(batch, began, _)| {
                    Some((self.messages.get(&batch)?.get(message)?, began))
                })
                .peekable();
            of_message.peek().is_some()
                && of_message.all(|(is_later, began)| *is_later && began > *completed)
        };
        bench.check(
            "a later duplicate costs a read",
            !was_known,
            &[key, message],
            || format!("{message} sent a write over {key}, which was completed before its batch"),
        );
    }
}

//! Promise 4: a write to the application's own items is applied once, together with the record of its operation.

use std::collections::BTreeMap;

use super::Bench;
use crate::{ledger::Event, plan::Mode};

#[derive(Default)]
pub(super) struct Effects {
    keys: BTreeMap<String, OfKey>,
}

#[derive(Default)]
struct OfKey {
    applied: usize,
    is_completed: bool,
}

impl Effects {
    pub(super) fn event(&mut self, event: &Event, bench: &mut Bench<'_>) {
        match event {
            Event::Applied { key } => {
                let of_key = self.keys.entry(key.clone()).or_default();
                of_key.applied += 1;
                let applied = of_key.applied;
                bench.check("P4 a write is applied once", applied == 1, &[key], || {
                    format!("the write of {key} was applied {applied} times")
                });
            }
            Event::Settled {
                key,
                is: "COMPLETED",
                ..
            } if bench.plan.mode != Mode::Claim => {
                let of_key = self.keys.entry(key.clone()).or_default();
                of_key.is_completed = true;
                let applied = of_key.applied;
                let check = "P4 a write commits with its record";
                bench.check(check, applied > 0, &[key], || {
                    format!("{key} is completed, and its write was not applied")
                });
            }
            // A new operation begins.
            Event::Deleted { key } | Event::Forgotten { key } => {
                self.keys.remove(key);
            }
            _ => {}
        }
    }

    pub(super) fn end(&self, bench: &mut Bench<'_>) {
        for (key, of_key) in &self.keys {
            let holds = of_key.applied == 0 || of_key.is_completed;
            let check = "P4 a write commits with its record";
            bench.check(check, holds, &[key], || {
                format!("the write of {key} was applied, and {key} is not completed")
            });
        }
    }
}

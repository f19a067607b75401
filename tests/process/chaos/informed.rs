//! Promise 3: a worker that charges over open attempts was informed of them, with the time of the
//! earliest. An attempt is open from its claim until the table applies a completion, or a restoration by
//! its own owner.

use std::{
    collections::{HashMap, HashSet},
    time::{Duration, UNIX_EPOCH},
};

use crate::chaos::{
    ledger::{Event, Settled, Worker},
    receives::operation_of,
};

type Pair<'a> = (Worker, &'a str);

#[derive(Default)]
struct Open<'a> {
    /// Owner and time of the earliest open attempt, by key.
    earliest: HashMap<&'a str, (&'a str, u64)>,
    /// That time at a worker's last claim of a key; `None` if no attempt was open.
    before: HashMap<Pair<'a>, Option<u64>>,
}

impl<'a> Open<'a> {
    fn event(&mut self, event: &'a Event) {
        match event {
            Event::Claimed {
                key,
                owner,
                worker,
                made_ms,
                over_expired,
                ..
            } => {
                if *over_expired {
                    self.earliest.remove(&**key);
                }
                let (first, since) = *self.earliest.entry(key).or_insert((owner, *made_ms));
                let before = (first != owner).then_some(since);
                self.before.insert((*worker, key), before);
            }
            Event::Settled {
                key,
                owner,
                as_what,
                ..
            } => {
                let own = (self.earliest.get(&**key)).is_some_and(|(first, _)| first == owner);
                let closed = match as_what {
                    Settled::Completed | Settled::Declined => true,
                    Settled::Restored => own,
                    // An order that failed may have had an effect before. An undecodable one is not run again.
                    Settled::Failed | Settled::LeaseEnded => false,
                };
                if closed {
                    self.earliest.remove(&**key);
                }
            }
            Event::Expired { key } => {
                self.earliest.remove(&**key);
            }
            _ => {}
        }
    }
}

/// Charges over open attempts without information, and wrong information.
pub(crate) fn misinformed(events: &[Event]) -> Vec<String> {
    let mut informed: HashMap<Pair<'_>, HashSet<&str>> = HashMap::new();
    for event in events {
        if let Event::Informed { worker, key, since } = event {
            informed.entry((*worker, key)).or_default().insert(since);
        }
    }
    let (mut found, mut open) = (Vec::new(), Open::default());
    let mut true_of: HashMap<Pair<'_>, HashSet<String>> = HashMap::new();
    for event in events {
        open.event(event);
        match event {
            Event::Claimed { worker, key, .. } => {
                let since = open.before[&(*worker, &**key)].map(rfc3339);
                true_of.entry((*worker, key)).or_default().extend(since);
            }
            Event::Charge { worker, key, .. } => {
                let pair = (*worker, &**key);
                let Some(since) = open.before.get(&pair).copied().flatten() else {
                    continue;
                };
                let since = rfc3339(since);
                let knew = (informed.get(&pair)).is_some_and(|told| told.contains(&*since));
                if !knew {
                    found.push(format!(
                        "{} was charged by worker {worker}, which was not informed of an attempt open since {since}",
                        operation_of(key)
                    ));
                }
            }
            _ => {}
        }
    }
    for ((worker, key), told) in informed {
        let known = true_of.get(&(worker, key));
        for since in told {
            if !known.is_some_and(|known| known.contains(since)) {
                found.push(format!(
                    "worker {worker} was informed of an attempt at {key} open since {since}, and no attempt was open"
                ));
            }
        }
    }
    found
}

/// In the format of the log line, to the second.
fn rfc3339(ms: u64) -> String {
    humantime::format_rfc3339_seconds(UNIX_EPOCH + Duration::from_millis(ms)).to_string()
}

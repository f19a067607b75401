//! A message has crashed only if it was counted as alone four times in a row, and each time an injected kill
//! ended its process, or an outage kept its worker from recording the end.

use std::collections::{HashMap, HashSet};

use crate::chaos::{
    DEATHS,
    account::CRASHED,
    ledger::{Death, End, Event, Settled, Worker},
    receives::operation_of,
};

/// An attempt alone without a recorded end.
struct Alone<'a> {
    owner: &'a str,
    worker: Worker,
    /// A later write of its worker failed: the repeated renewal, or the restore.
    faulted: bool,
    charged: bool,
}

impl Alone<'_> {
    /// The answer to the renewal was lost, so the handler did not run, or it made no charge. The restore was
    /// lost too.
    fn is_unconfirmed(&self) -> bool {
        self.faulted && !self.charged
    }
}

/// Crashed operations whose attempts alone did not all end as they may.
pub(super) fn without_deaths(events: &[Event]) -> Vec<String> {
    let (mut crashed, mut messages) = (HashSet::new(), HashMap::new());
    let (mut deaths, mut died_with) = (HashMap::new(), HashSet::new());
    for event in events {
        match event {
            Event::Sent(message) => {
                messages.insert(&message.id, &message.operation);
            }
            Event::DeliveryLog {
                delivery: (message, _),
                outcome,
                detail,
                ..
            } if outcome == "crashed" || detail.contains(CRASHED) => {
                crashed.insert(messages[message].as_str());
            }
            Event::Died { worker, death } => {
                deaths.insert(*worker, *death);
            }
            Event::Returned {
                delivery: (message, _),
                worker,
                end: End::WorkerDied,
                ..
            } => {
                died_with.insert((*worker, messages[message].as_str()));
            }
            _ => {}
        }
    }
    let died = |one: &Alone<'_>, operation: &str| {
        let death = deaths.get(&one.worker);
        death.is_some_and(|death| !matches!(death, Death::RunEnded | Death::Crashed))
            && died_with.contains(&(one.worker, operation))
    };
    let mut found = Vec::new();
    let mut alone: HashMap<&str, Vec<Alone<'_>>> = HashMap::new();
    for event in events {
        match event {
            Event::Alone {
                key, owner, worker, ..
            } => {
                let attempts = alone.entry(key).or_default();
                attempts.push(Alone {
                    owner,
                    worker: *worker,
                    faulted: false,
                    charged: false,
                });
            }
            Event::Faulted { key, worker, .. } => {
                if let Some(last) = last_of(&mut alone, key, *worker) {
                    last.faulted = true;
                }
            }
            Event::Charge { key, worker, .. } => {
                if let Some(last) = last_of(&mut alone, key, *worker) {
                    last.charged = true;
                }
            }
            Event::Expired { key }
            | Event::Claimed {
                key,
                over_expired: true,
                ..
            } => drop(alone.remove(&**key)),
            Event::Settled {
                key,
                owner,
                as_what,
                ..
            } => {
                let attempts = alone.entry(key).or_default();
                let is_own = attempts.last().is_some_and(|last| last.owner == owner);
                match as_what {
                    // Of an attempt that did not begin, or had no effect: only the claim is undone.
                    Settled::Restored if is_own => drop(attempts.pop()),
                    _ if is_own => attempts.clear(),
                    Settled::Failed if crashed.contains(operation_of(key)) => {
                        let operation = operation_of(key);
                        let as_they_may = attempts
                            .iter()
                            .filter(|one| died(one, operation) || one.is_unconfirmed())
                            .count();
                        if as_they_may != attempts.len() || as_they_may < DEATHS {
                            found.push(format!(
                                "{operation} has crashed after {} attempts alone, and {as_they_may} of these workers died or could not record the end",
                                attempts.len()
                            ));
                        }
                    }
                    _ => {}
                }
            }
            _ => {}
        }
    }
    found
}

/// The last attempt alone under `key`, if `worker` made it.
fn last_of<'a, 'b>(
    alone: &'a mut HashMap<&str, Vec<Alone<'b>>>,
    key: &str,
    worker: Worker,
) -> Option<&'a mut Alone<'b>> {
    let last = alone.get_mut(key)?.last_mut()?;
    (last.worker == worker).then_some(last)
}

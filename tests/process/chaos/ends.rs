//! Rules for the end of a run: what became of each message, its record and its charge.

use std::collections::{HashMap, HashSet};

use crate::chaos::{
    account::{Account, USED_UP},
    ledger::Event,
    plan::Kind,
};

/// Returns what is wrong. `statuses` is the final table, by key.
pub(crate) fn violations(
    accounts: &[Account],
    events: &[Event],
    statuses: &HashMap<String, String>,
) -> Vec<String> {
    let (mut keys, mut charged): (HashMap<&str, HashSet<&str>>, HashSet<&str>) = Default::default();
    let mut expired = HashSet::new();
    let mut found = Vec::new();
    for event in events {
        match event {
            Event::Charge {
                order, key, taken, ..
            } => {
                keys.entry(order).or_default().insert(key);
                if *taken {
                    charged.insert(order);
                }
            }
            Event::Expired { key }
            | Event::Claimed {
                key,
                over_expired: true,
                ..
            } => {
                expired.insert(&**key);
            }
            _ => {}
        }
    }
    for (order, keys) in keys.iter().filter(|(_, keys)| keys.len() > 1) {
        found.push(format!("{order} was charged under {keys:?}"));
    }
    for account in accounts {
        let (id, kind) = (&account.message.id, account.message.kind);
        let order = &*account.message.order;
        let key = keys.get(order).and_then(|keys| keys.iter().next());
        let told = account.reason();
        if account.acknowledged() {
            let status = key.and_then(|key| statuses.get(*key));
            let has_expired = key.is_some_and(|key| expired.contains(key));
            if status.is_none_or(|status| status != "COMPLETED") && !has_expired {
                found.push(format!(
                    "{id} was acknowledged, and its record is {status:?}"
                ));
            }
            if !charged.contains(order) {
                found.push(format!("{id} was acknowledged, and never charged"));
            }
            if kind.always_kills() {
                found.push(format!("{id} ends its process, and was acknowledged"));
            }
        } else if !account.dead_lettered {
            found.push(format!("{id} is lost, or left in the queue"));
        } else if told.is_none() {
            found.push(format!(
                "{id} is in the dead-letter queue for no known reason"
            ));
        } else if !kind.may_fail() && !account.has_crashed() {
            found.push(format!("{id} was given up: {told:?}"));
        } else if kind.always_kills() && !account.has_crashed() {
            let told = told.filter(|told| !told.contains(USED_UP));
            found.extend(told.map(|told| format!("{id} was given up as {told}")));
        }
        if kind == Kind::Undecodable && key.is_some() {
            found.push(format!("{id} is no order, and was charged"));
        }
    }
    found
}

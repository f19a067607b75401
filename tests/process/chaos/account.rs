//! The end of each message.

use std::collections::{BTreeMap, HashMap};

use crate::chaos::{
    ledger::{End, Event},
    plan::Message,
};

/// Reason given for a message that was valid.
pub(crate) const USED_UP: &str = "receives used up";

/// Part of the recorded error of a crashed message.
pub(crate) const CRASHED: &str = "while the handler of this message ran alone";

/// Outcomes of a message that never runs again.
pub(crate) const PERMANENT: [&str; 5] = [
    "crashed",
    "permanent_failure",
    "failed_before",
    "invalid",
    "key_reused",
];

/// Facts about one message.
pub(crate) struct Account {
    pub(crate) message: Message,
    /// The end of each receive, by its number.
    pub(crate) ends: BTreeMap<u32, End>,
    pub(crate) outcomes: Vec<String>,
    pub(crate) dead_lettered: bool,
    /// True if a worker sent a copy to the dead-letter queue.
    pub(crate) copied: bool,
}

impl Account {
    /// True if its success was acknowledged, not its copy.
    pub(crate) fn acknowledged(&self) -> bool {
        !self.copied && self.ends.values().any(|end| *end == End::Acknowledged)
    }

    /// True if a worker gave it up because it ended its process whenever it ran alone.
    pub(crate) fn has_crashed(&self) -> bool {
        self.outcomes.iter().any(|outcome| outcome == "crashed")
    }

    /// Reason for the dead-letter queue; `None` if unknown.
    pub(crate) fn reason(&self) -> Option<String> {
        let mut told = self.outcomes.iter().rev();
        if let Some(told) = told.find(|outcome| PERMANENT.contains(&outcome.as_str())) {
            let recorded = if self.has_crashed() {
                "crashed"
            } else {
                "permanent_failure"
            };
            let told = told.replace("failed_before", recorded);
            return Some(format!("{:?}: {told}", self.message.kind));
        }
        let ended = !self.ends.is_empty() && !self.acknowledged();
        ended.then(|| {
            let died = self.ends.values().filter(|end| **end == End::WorkerDied);
            let (kind, receives, died) = (self.message.kind, self.ends.len(), died.count());
            format!("{kind:?}: {receives} {USED_UP}, {died} by workers that died")
        })
    }
}

/// Each message and its end, in the order of sending.
pub(crate) fn accounts(events: &[Event]) -> Vec<Account> {
    let (mut accounts, mut places) = (Vec::new(), HashMap::new());
    for event in events {
        match event {
            Event::Sent(message) => {
                places.insert(message.id.clone(), accounts.len());
                accounts.push(Account {
                    message: message.clone(),
                    ends: BTreeMap::new(),
                    outcomes: Vec::new(),
                    dead_lettered: false,
                    copied: false,
                });
            }
            Event::Returned { delivery, end, .. } => {
                let (message, receive) = delivery;
                accounts[places[message]].ends.insert(*receive, *end);
            }
            Event::DeliveryLog {
                delivery,
                outcome,
                detail,
                ..
            } => {
                let account: &mut Account = &mut accounts[places[&delivery.0]];
                account.outcomes.push(outcome.clone());
                // The worker may have died between the record and its own line.
                if detail.contains(CRASHED) {
                    account.outcomes.push("crashed".into());
                }
            }
            Event::DeadLettered { message } => accounts[places[message]].dead_lettered = true,
            Event::Copied { message, .. } => {
                let account: &mut Account = &mut accounts[places[message]];
                (account.dead_lettered, account.copied) = (true, true);
            }
            _ => {}
        }
    }
    accounts
}

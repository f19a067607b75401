//! Rules for the end of each message.

use std::collections::HashMap;

use super::Audit;
use crate::chaos::{
    account::{Account, USED_UP},
    plan::{Kind, Message},
    receives::Cause,
};

impl Audit {
    /// Promise 5: each receive that a message uses up has its cause, and a valid message is given up
    /// only if each of its receives has one.
    pub(super) fn receives(&mut self, accounts: &[Account]) {
        for ((message, receive), cause) in &self.causes {
            if let Cause::False(said) = cause {
                self.found
                    .push(format!("{message}, receive {receive}: {said}"));
            }
        }
        let good = |account: &&Account| !account.message.kind.may_fail() && !account.has_crashed();
        for account in accounts.iter().filter(good) {
            if !account.dead_lettered || account.acknowledged() {
                continue;
            }
            let id = &account.message.id;
            for receive in account.ends.keys() {
                if !self.causes.contains_key(&(id.clone(), *receive)) {
                    self.found.push(format!(
                        "{id} was given up, and nothing came between at receive {receive}"
                    ));
                }
            }
        }
    }

    /// Good messages that used up their receives on a machine that was fast enough. One that is too slow for the
    /// function's timeout is an outage like any other.
    pub(super) fn given_up(&self, accounts: &[Account]) -> Vec<String> {
        let is_delayed = |id: &String, receive: &u32| {
            let cause = self.causes.get(&(id.clone(), *receive));
            matches!(cause, Some(Cause::Delayed(_)))
        };
        let given_up = accounts.iter().filter(|account| {
            let Message { id, kind, .. } = &account.message;
            let receives = account.ends.keys();
            let delayed = receives.filter(|receive| is_delayed(id, receive)).count();
            let is_good = !kind.may_fail() && !account.has_crashed();
            account.dead_lettered && is_good && delayed < account.ends.len() / 2
        });
        given_up.map(|account| account.message.id.clone()).collect()
    }

    pub(super) fn ends(&mut self, accounts: &[Account], statuses: &HashMap<String, String>) {
        for account in accounts {
            let Message { id, kind, .. } = &account.message;
            let told = account.reason();
            if account.acknowledged() {
                let operation = self.operations.get(&account.message.operation);
                let key = operation.and_then(|operation| operation.key.as_ref());
                let status = key.and_then(|key| statuses.get(key));
                let expired = operation.is_some_and(|operation| operation.expired);
                if status.is_none_or(|status| status != "COMPLETED") && !expired {
                    self.found.push(format!(
                        "{id} was acknowledged, and its record is {status:?}"
                    ));
                }
                if operation.is_none_or(|operation| operation.taken == 0) {
                    self.found
                        .push(format!("{id} was acknowledged, and never charged"));
                }
            } else if !account.dead_lettered {
                self.found
                    .push(format!("{id} is lost, or left in the queue"));
            } else if told.is_none() {
                self.found.push(format!(
                    "{id} is in the dead-letter queue for no known reason"
                ));
            }
            if kind.always_kills() && account.acknowledged() {
                self.found
                    .push(format!("{id} ends its process, and was acknowledged"));
            }
            let told = told.filter(|told| !told.contains(USED_UP));
            if let Some(told) = told.as_ref().filter(|_| kind.always_kills())
                && !account.has_crashed()
            {
                self.found
                    .push(format!("{id} ends its process, and was given up as {told}"));
            }
            // `crashes.rs` has the rules for crashes.
            let told = told.filter(|_| !account.has_crashed());
            if let Some(told) = told.filter(|_| !kind.may_fail()) {
                self.found.push(format!(
                    "{id} was given up though nothing is wrong with it, {told}"
                ));
            }
            let operation = self.operations.get(&account.message.operation);
            let charged = operation.is_some_and(|operation| operation.key.is_some());
            if *kind == Kind::Undecodable && charged {
                self.found
                    .push(format!("{id} is no order, and was charged"));
            }
        }
    }
}

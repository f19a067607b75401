//! Rules for the end of each message.

use std::collections::{HashMap, HashSet};

use super::Audit;
use crate::{
    account::{Account, USED_UP},
    ledger::Delivery,
    plan::{Kind, Message},
    receives::Cause,
};

/// Good messages allowed to use up their receives in a run of any size, plus one of a hundred.
const FEW: usize = 2;

impl Audit {
    /// Promise 5: a valid message is processed, unless an injected fault hits its every receive.
    pub(super) fn receives(&mut self, causes: &[(Delivery, Cause)], accounts: &[Account]) {
        let mut injected: HashSet<&str> = HashSet::new();
        for ((message, receive), cause) in causes {
            match cause {
                Cause::Injected(_) => {
                    injected.insert(message);
                }
                // A conflict is not an injected fault, so it does not justify giving up.
                Cause::NoTime => {}
                Cause::Uninjected(said) => {
                    let told = format!("{message}, receive {receive}: {said}");
                    self.unexplained.push(told);
                }
                Cause::False(said) => {
                    self.found
                        .push(format!("{message}, receive {receive}: {said}"));
                }
            }
        }
        let good = |account: &&Account| !account.message.kind.is_permanent();
        let given_up = |account: &&Account| account.dead_lettered && !account.acknowledged();
        let given_up = accounts.iter().filter(good).filter(given_up);
        let ids: Vec<_> = given_up.map(|account| &*account.message.id).collect();
        for id in ids.iter().filter(|id| !injected.contains(**id)) {
            self.found
                .push(format!("{id} was given up, and nothing ever came between"));
        }
        if ids.len() > accounts.len() / 100 + FEW {
            self.found
                .push(format!("good messages were given up, too many: {ids:?}"));
        }
    }

    pub(super) fn ends(&mut self, accounts: &[Account], statuses: &HashMap<String, String>) {
        for account in accounts {
            let Message { id, kind, .. } = &account.message;
            let told = account.reason();
            if account.acknowledged() {
                let operation = self.operations.get(&account.message.operation);
                let key = operation.and_then(|operation| operation.key.as_ref());
                let status = key.and_then(|key| statuses.get(key));
                if status.is_none_or(|status| status != "COMPLETED") {
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
            let told = told.filter(|told| !told.contains(USED_UP));
            if let Some(told) = told.filter(|_| !kind.is_permanent()) {
                self.found.push(format!(
                    "{id} was given up though nothing is wrong with it, {told}"
                ));
            }
            if *kind == Kind::Undecodable
                && self.operations.contains_key(&account.message.operation)
            {
                self.found
                    .push(format!("{id} is no order, and got as far as the table"));
            }
        }
    }
}

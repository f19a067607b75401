//! Conditions on the status of a record, and the update that sets FAILED.

use super::builder::Expression;
use crate::dynamo::{
    item::string,
    store::{
        field::Field,
        item::{FAILED, IN_PROGRESS},
    },
};

impl Expression<'_> {
    /// Sets the status FAILED, and removes the lease.
    pub(super) fn set_failed(&mut self) {
        self.set(Field::Status, string(FAILED));
        self.remove(Field::LeaseUntil);
    }

    /// Returns the placeholder of the status IN_PROGRESS.
    pub(super) fn in_progress_word(&mut self) -> &'static str {
        const PLACEHOLDER: &str = ":in_progress";
        self.value(PLACEHOLDER, string(IN_PROGRESS));
        PLACEHOLDER
    }

    pub(super) fn in_progress(&mut self) -> String {
        let word = self.in_progress_word();
        format!("{} = {word}", self.name(Field::Status))
    }

    pub(super) fn failed(&mut self) -> String {
        self.value(":failed", string(FAILED));
        format!("{} = :failed", self.name(Field::Status))
    }
}

//! Conditions on the status of a record, and the update that sets FAILED.

use super::builder::Expression;
use crate::{
    item::{number, string},
    store::field::Field,
};

/// Placeholder of the status word IN_PROGRESS.
const IN_PROGRESS: &str = ":in_progress";

impl Expression<'_> {
    /// Sets the status FAILED, and removes the lease. If FAILED and IN_PROGRESS have the same word,
    /// sets `lease_until` to 0 instead.
    pub(super) fn set_failed(&mut self) {
        let words = &self.layout.words;
        self.set(Field::Status, string(&*words.failed));
        let shared = words.failed_is_in_progress();
        self.set_or_remove(Field::LeaseUntil, shared.then(|| number(0)));
    }

    /// Returns the placeholder of the status word IN_PROGRESS.
    pub(super) fn in_progress_word(&mut self) -> &'static str {
        let word = string(&*self.layout.words.in_progress);
        self.value(IN_PROGRESS, word);
        IN_PROGRESS
    }

    pub(super) fn in_progress(&mut self) -> String {
        let word = self.in_progress_word();
        self.status(word, ">")
    }

    pub(super) fn failed(&mut self) -> String {
        let word = string(&*self.layout.words.failed);
        self.value(":failed", word);
        self.status(":failed", "=")
    }

    /// Returns the condition that the record has this status.
    ///
    /// If FAILED and IN_PROGRESS have the same word, the condition compares `lease_until` with 0.
    fn status(&mut self, placeholder: &str, lease: &str) -> String {
        self.name(Field::Status);
        if !self.layout.words.failed_is_in_progress() {
            return format!("#status = {placeholder}");
        }
        self.name(Field::LeaseUntil);
        self.value(":zero", number(0));
        format!("#status = {placeholder} AND #lease_until {lease} :zero")
    }
}

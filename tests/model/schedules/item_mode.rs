//! The mode whose effect is one change of one item, through the real SDK: `ItemMode`.

use std::collections::BTreeSet;

use crate::schedules::{
    changer::ChangeKind, finds, flaw::Flaw, keeps_every_promise, scenario::Scenario,
};

/// Possible outcomes of a change, and the further ones of a change that reads first.
fn keeps(way: ChangeKind, others: &[&'static str]) {
    let mut outcomes = BTreeSet::from([
        "commit_unknown",
        "completed",
        "duplicate",
        "no_effect",
        "panicked",
        "permanent_failure",
        "retryable_failure",
    ]);
    outcomes.extend(others);
    let found = keeps_every_promise(&Scenario::item_mode(way));
    assert_eq!(*found.seen.outcomes(), outcomes);
}

#[test]
fn created_item_keeps_every_promise() {
    keeps(ChangeKind::Create, &[]);
}

/// Promise 4.
#[test]
fn updated_item_keeps_every_promise() {
    keeps(ChangeKind::Update, &[]);
}

#[test]
fn outdated_item_keeps_every_promise() {
    keeps(ChangeKind::Outdated, &[]);
}

#[test]
fn modified_item_keeps_every_promise() {
    keeps(ChangeKind::Modify, &["store_unavailable"]);
}

#[test]
fn explorer_finds_change_without_condition() {
    for way in [
        ChangeKind::Create,
        ChangeKind::Update,
        ChangeKind::Outdated,
        ChangeKind::Modify,
    ] {
        let flawed = Scenario::item_mode(way).with(Flaw::ChangeWithoutCondition);
        finds(&flawed, "P4");
    }
}

#[test]
fn explorer_finds_refused_change_without_item() {
    for way in [ChangeKind::Create, ChangeKind::Update] {
        let flawed = Scenario::item_mode(way).with(Flaw::RefusalWithoutItem);
        finds(&flawed, "P4");
    }
}

//! The mode whose effect is one change of one item, through the real SDK: `OnItem`.

use std::collections::BTreeSet;

use crate::{changer::Way, finds, flaw::Flaw, keeps_every_promise, scenario::Scenario};

/// What may come of a change; and of one that reads first, the others.
fn keeps(way: Way, others: &[&'static str]) {
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
    let found = keeps_every_promise(&Scenario::on_item(way));
    assert_eq!(*found.seen.outcomes(), outcomes);
}

#[test]
fn an_item_that_is_made_keeps_every_promise() {
    keeps(Way::Create, &[]);
}

#[test]
fn an_item_that_is_updated_keeps_every_promise() {
    keeps(Way::Update, &[]);
}

#[test]
fn an_item_that_remembers_an_update_for_a_time_keeps_every_promise() {
    keeps(Way::Retain, &["store_unavailable"]);
}

#[test]
fn an_item_that_is_modified_keeps_every_promise() {
    keeps(Way::Modify, &["store_unavailable"]);
}

#[test]
fn the_explorer_finds_a_change_without_its_condition() {
    for way in [Way::Create, Way::Update, Way::Retain, Way::Modify] {
        let flawed = Scenario::on_item(way).with(Flaw::ChangeWithoutCondition);
        finds(&flawed, "P4");
    }
}

#[test]
fn the_explorer_finds_a_refused_change_that_does_not_return_the_item() {
    for way in [Way::Create, Way::Update, Way::Retain] {
        let flawed = Scenario::on_item(way).with(Flaw::RefusalWithoutItem);
        finds(&flawed, "P4");
    }
}

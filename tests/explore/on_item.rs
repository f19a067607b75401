//! The mode whose effect is one change of one item, through the real SDK: `OnItem`.

use std::collections::BTreeSet;

use crate::{changer::Way, finds, flaw::Flaw, keeps_every_promise, scenario::Scenario};

fn keeps(way: Way, outcomes: &[&'static str]) {
    let found = keeps_every_promise(&Scenario::on_item(way));
    assert_eq!(
        *found.seen.outcomes(),
        outcomes.iter().copied().collect::<BTreeSet<_>>()
    );
}

#[test]
fn an_item_that_is_made_keeps_every_promise() {
    keeps(
        Way::Create,
        &[
            "commit_unknown",
            "done",
            "duplicate",
            "panicked",
            "permanent_failure",
            "transient_failure",
        ],
    );
}

#[test]
fn an_item_that_is_updated_keeps_every_promise() {
    keeps(
        Way::Update,
        &[
            "commit_unknown",
            "done",
            "duplicate",
            "panicked",
            "permanent_failure",
            "transient_failure",
        ],
    );
}

#[test]
fn an_item_that_remembers_an_update_for_a_time_keeps_every_promise() {
    keeps(
        Way::Retain,
        &[
            "commit_unknown",
            "done",
            "duplicate",
            "panicked",
            "permanent_failure",
            "store_unavailable",
            "transient_failure",
        ],
    );
}

#[test]
fn an_item_that_is_modified_keeps_every_promise() {
    keeps(
        Way::Modify,
        &[
            "commit_unknown",
            "done",
            "duplicate",
            "panicked",
            "permanent_failure",
            "store_unavailable",
            "transient_failure",
        ],
    );
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

//! The modes whose effect commits with the record: `Once` with `Done`, and `Inbox`.

use std::collections::BTreeSet;

use crate::{finds, flaw::Flaw, keeps_every_promise, scenario::Scenario};

#[test]
fn what_commits_with_its_claim_keeps_every_promise() {
    let found = keeps_every_promise(&Scenario::commit());
    let outcomes = [
        "commit_unknown",
        "completion_unrecorded",
        "conflict",
        "completed",
        "duplicate",
        "failed_before",
        "failure_unrecorded",
        "lease_lost",
        "no_effect",
        "not_started",
        "panicked",
        "permanent_failure",
        "store_unavailable",
        "retryable_failure",
    ];
    assert_eq!(*found.seen.outcomes(), BTreeSet::from(outcomes));
}

#[test]
fn what_commits_after_it_was_frozen_keeps_every_promise() {
    keeps_every_promise(&Scenario::commit_untimed());
}

#[test]
fn an_inbox_keeps_every_promise() {
    let found = keeps_every_promise(&Scenario::inbox());
    let outcomes = [
        "commit_unknown",
        "completed",
        "duplicate",
        "failed_before",
        "failure_unrecorded",
        "no_effect",
        "panicked",
        "permanent_failure",
        "retryable_failure",
    ];
    assert_eq!(*found.seen.outcomes(), BTreeSet::from(outcomes));
}

#[test]
fn an_inbox_that_looks_first_keeps_every_promise() {
    let found = keeps_every_promise(&Scenario::first_look());
    let outcomes = [
        "commit_unknown",
        "completed",
        "duplicate",
        "failed_before",
        "failure_unrecorded",
        "no_effect",
        "not_started",
        "panicked",
        "permanent_failure",
        "store_unavailable",
        "retryable_failure",
    ];
    assert_eq!(*found.seen.outcomes(), BTreeSet::from(outcomes));
}

#[test]
fn the_explorer_finds_a_commit_without_its_owner() {
    finds(&Scenario::commit().with(Flaw::CompletionWithoutOwner), "P1");
}

#[test]
fn the_explorer_finds_a_commit_without_its_condition() {
    let flawed = Scenario::commit().with(Flaw::CompletionWithoutCondition);
    finds(&flawed, "P5");
}

#[test]
fn the_explorer_finds_an_ended_lease_without_condition() {
    let flawed = Scenario::commit().with(Flaw::EndLeaseWithoutCondition);
    finds(&flawed, "P4");
}

#[test]
fn the_explorer_finds_writes_that_are_not_one_transaction_with_the_record() {
    finds(&Scenario::commit().with(Flaw::WritesGoFirst), "P4");
    finds(&Scenario::inbox().with(Flaw::WritesGoFirst), "P4");
}

#[test]
fn the_explorer_finds_an_insert_over_what_is_completed() {
    finds(&Scenario::inbox().with(Flaw::ClaimIgnoresCompleted), "P4");
}

#[test]
fn the_explorer_finds_a_refused_insert_that_does_not_return_the_record() {
    let flawed = Scenario::inbox().with(Flaw::RefusedClaimWithoutRecord);
    finds(&flawed, "ends");
}

#[test]
fn the_explorer_finds_a_token_that_is_the_same_for_every_attempt() {
    finds(&Scenario::inbox().with(Flaw::TokenOfTheKey), "ends");
}

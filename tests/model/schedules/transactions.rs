//! The modes whose effect commits with the record: `Once` with `Done`, and `Inbox`.

use std::collections::BTreeSet;

use crate::schedules::{bound, finds, flaw::Flaw, keeps_every_promise, scenario::Scenario};

#[test]
fn commit_with_claim_keeps_every_promise() {
    let found = keeps_every_promise(&Scenario::commit());
    let outcomes = [
        "commit_unknown",
        "completion_unrecorded",
        "conflict",
        "completed",
        "duplicate",
        "failed_before",
        "failure_unrecorded",
        "no_effect",
        "not_started",
        "out_of_time",
        "panicked",
        "permanent_failure",
        "store_unavailable",
        "retryable_failure",
    ];
    let mut outcomes = BTreeSet::from(outcomes);
    // One deviation more than usual reaches it.
    outcomes.extend((bound() > 3).then_some("lease_lost"));
    assert_eq!(*found.seen.outcomes(), outcomes);
}

#[test]
fn frozen_commit_keeps_every_promise() {
    keeps_every_promise(&Scenario {
        fewer: 0,
        ..Scenario::commit().frozen()
    });
}

#[test]
fn inbox_keeps_every_promise() {
    let found = keeps_every_promise(&Scenario::inbox());
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
        "retryable_failure",
        "store_unavailable",
    ];
    let mut seen = found.seen.outcomes().clone();
    seen.remove("out_of_time"); // only a schedule with four deviations has it
    assert_eq!(seen, BTreeSet::from(outcomes));
}

#[test]
fn explorer_finds_commit_without_owner() {
    finds(&Scenario::commit().with(Flaw::OwnerNotCompared), "P");
}

#[test]
fn explorer_finds_commit_without_version() {
    finds(&Scenario::commit().with(Flaw::VersionNotCompared), "P");
}

#[test]
fn explorer_finds_writes_apart_from_record() {
    finds(&Scenario::commit().with(Flaw::WritesGoFirst), "P4");
    finds(&Scenario::inbox().with(Flaw::WritesGoFirst), "P4");
}

#[test]
fn explorer_finds_insert_over_completed() {
    finds(&Scenario::inbox().with(Flaw::InsertOverRecord), "P4");
}

#[test]
fn explorer_finds_repeated_request_token() {
    finds(&Scenario::inbox().with(Flaw::TokenOfTheKey), "P5");
}

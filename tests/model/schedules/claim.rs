//! `Once::run` for an effect outside DynamoDB: claim, handler, complete.

use crate::schedules::{finds, flaw::Flaw, keeps_every_promise, scenario::Scenario};

#[test]
fn three_workers_keep_every_promise() {
    let found = keeps_every_promise(&Scenario::claim());
    let outcomes = [
        "completion_unrecorded",
        "conflict",
        "completed",
        "duplicate",
        "failed_before",
        "failure_unrecorded",
        "lease_lost",
        "no_effect",
        "not_started",
        "out_of_time",
        "panicked",
        "permanent_failure",
        "store_unavailable",
        "retryable_failure",
    ];
    let missed = |outcome: &&&str| !found.seen.outcomes().contains(**outcome);
    assert_eq!(outcomes.iter().filter(missed).collect::<Vec<_>>(), [&""; 0]);
}

#[test]
fn frozen_workers_keep_every_promise() {
    keeps_every_promise(&Scenario::claim().frozen());
}

#[test]
fn skewed_workers_keep_every_promise() {
    keeps_every_promise(&Scenario::claim().skew());
}

#[test]
fn workers_after_crash_keep_every_promise() {
    keeps_every_promise(&Scenario::claim().after_crash());
}

#[test]
fn workers_with_an_operator_keep_every_promise() {
    keeps_every_promise(&Scenario::claim().operator());
}

#[test]
fn frozen_skewed_workers_keep_every_promise() {
    keeps_every_promise(&Scenario::claim().skew().frozen());
}

/// A worker whose record is gone writes nothing over the next one.
#[test]
fn workers_whose_record_is_deleted_keep_every_promise() {
    keeps_every_promise(&Scenario::claim().deletion());
}

/// A claim over nothing is an `INSERT`, whose refusal has no item: a read follows.
#[test]
fn workers_with_batched_writes_keep_every_promise() {
    keeps_every_promise(&Scenario::grouped());
}

/// A corrected order behind a declined one, a producer's mistake, an open attempt with another payload.
#[test]
fn workers_with_two_payloads_keep_every_promise() {
    let found = keeps_every_promise(&Scenario::claim().payloads());
    for outcome in ["conflict", "failed_before", "key_reused", "completed"] {
        assert!(found.seen.outcomes().contains(outcome), "{outcome}");
    }
}

/// The group must not stand for ever: [A, B], A failed, the process of B died, and A comes back because no copy can be
/// made.
#[test]
fn workers_with_two_payloads_on_fifo_keep_every_promise() {
    keeps_every_promise(&Scenario::claim().payloads().fifo());
}

#[test]
fn workers_with_two_payloads_after_crash_keep_every_promise() {
    keeps_every_promise(&Scenario::claim().payloads().after_crash());
}

/// The promise that each flaw of the table breaks.
#[test]
fn explorer_finds_each_flaw() {
    let claim = Scenario::claim;
    for (scenario, flaw, promise) in [
        (claim(), Flaw::LeaseNotSeen, "P1"),
        (claim(), Flaw::CompletionNotSeen, "P5"),
        (claim(), Flaw::FailureNotSeen, "P2"),
        (claim(), Flaw::OpenAttemptNotSeen, "P3"),
        (claim(), Flaw::ClaimForgetsOpenAttempts, "P3"),
        (claim(), Flaw::ClaimForgetsFailures, "P2"),
        (claim(), Flaw::ReleaseClosesAttempt, "P3"),
        (claim(), Flaw::FailureClosesAttempts, "P3"),
        (claim(), Flaw::FailureAtZero, "P5"),
        (claim(), Flaw::UndoClosesAttempts, "P3"),
        (claim(), Flaw::VersionReused, "P"),
        (claim(), Flaw::OwnerNotCompared, "P"),
        (claim(), Flaw::VersionNotCompared, "P"),
        (claim(), Flaw::InsertOverRecord, "P"),
        (claim().operator(), Flaw::ReleaseTakesVersion, "P"),
        (claim().payloads(), Flaw::FailureAnswersAll, "P2"),
        (claim().payloads(), Flaw::FailureReplacesOthers, "P2"),
        (claim().payloads(), Flaw::PayloadNotSeen, "P"),
    ] {
        println!("{flaw:?}");
        finds(&scenario.with(flaw), promise);
    }
}

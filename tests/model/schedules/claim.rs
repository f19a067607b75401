//! `Once::run` for an effect outside DynamoDB: claim, handler, complete.

use std::{collections::BTreeSet, time::Duration};

use futures_util::FutureExt as _;
use sqs_once::{
    protocol::{ClaimRequest, Settlement},
    store::{ClaimResponse, MemoryStore, Store as _},
};

use support::CONTEXT;

use crate::schedules::{
    clock, finds,
    flaw::Flaw,
    handler::{BUDGET, MARGIN},
    keeps_every_promise,
    scenario::Scenario,
    world::claim_of_the_first_message,
};

/// Promises 1, 2, 3 and 5.
#[test]
fn three_workers_keep_every_promise() {
    let found = keeps_every_promise(&Scenario::claim());
    // The search met every outcome of one key with one payload.
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
    assert_eq!(*found.seen.outcomes(), BTreeSet::from(outcomes));
}

/// Each claim is an INSERT first, each completion and permanent failure an UPDATE. Either may arrive
/// late, also after its worker has released the claim.
#[test]
fn workers_with_groups_keep_every_promise() {
    keeps_every_promise(&Scenario::grouped());
}

#[test]
fn explorer_finds_insert_over_record() {
    finds(&Scenario::grouped().with(Flaw::InsertOverRecord), "P5");
}

#[test]
fn explorer_finds_grouped_update_without_owner() {
    finds(
        &Scenario::grouped().with(Flaw::CompletionWithoutOwner),
        "P2",
    );
}

/// Promises 1, 2, 3 and 5.
#[test]
fn frozen_workers_keep_every_promise() {
    keeps_every_promise(&Scenario::untimed());
}

#[test]
fn skewed_clocks_keep_every_promise() {
    keeps_every_promise(&Scenario::skewed());
}

#[test]
fn frozen_skewed_workers_keep_every_promise() {
    keeps_every_promise(&Scenario::skewed_untimed());
}

#[test]
fn workers_after_crash_keep_every_promise() {
    keeps_every_promise(&Scenario::reopened());
}

#[test]
fn explorer_finds_claim_forgetting_failures() {
    finds(&flawed(Flaw::ClaimForgetsFailures), "P2");
}

#[test]
fn explorer_finds_claim_forgetting_attempts() {
    finds(&flawed(Flaw::ClaimForgetsOpenAttempts), "P3");
}

/// Found with four deviations, when an abandoned lease ended at zero instead of now. Worker w1 had
/// abandoned its attempt. Then two requests of worker w0 arrived: the first try of its claim, whose
/// retry was answered long ago, and its release. The record then lost the attempt of w1.
/// `SCHEDULE=claim:0.8.0.0.1.4.0.0.0.0.0.0.0.0.0.0.1.0.0.1.1`.
#[test]
fn late_claim_does_not_replace_later_one() {
    let store = MemoryStore::default();
    let claim = |request: &ClaimRequest| {
        store
            .claim(request, &CONTEXT)
            .now_or_never()
            .unwrap()
            .unwrap()
    };
    let early = request(0);
    let lease = BUDGET + MARGIN + Duration::from_millis(1);
    let later = request(u64::try_from(lease.as_millis()).unwrap());
    assert!(matches!(claim(&early), ClaimResponse::Applied { .. }));
    assert!(matches!(claim(&later), ClaimResponse::Applied { .. }));
    let fence = later.fence();
    let release = Settlement::Release { last_end: None };
    let ended = store.settle(&fence, &release, later.now, &CONTEXT);
    let _ = ended.now_or_never().unwrap().unwrap();
    assert!(matches!(claim(&early), ClaimResponse::ConditionFailed(_)));
}

/// A claim made so many milliseconds after the start.
fn request(after: u64) -> ClaimRequest {
    let now = clock::wall() + Duration::from_millis(after);
    claim_of_the_first_message(now, now + BUDGET + MARGIN)
}

fn flawed(flaw: Flaw) -> Scenario {
    Scenario::claim().with(flaw)
}

#[test]
fn explorer_finds_claim_ignoring_lease() {
    finds(&flawed(Flaw::ClaimIgnoresLease), "P1");
}

#[test]
fn explorer_finds_claim_over_completed() {
    finds(&flawed(Flaw::ClaimIgnoresCompleted), "P5");
}

#[test]
fn explorer_finds_takeover_without_old_record() {
    finds(&flawed(Flaw::TakeoverNotReturned), "P3");
}

#[test]
fn explorer_finds_refused_claim_without_record() {
    finds(&flawed(Flaw::RefusedClaimWithoutRecord), "ends");
}

#[test]
fn explorer_finds_completion_without_owner() {
    finds(&flawed(Flaw::CompletionWithoutOwner), "P2");
}

#[test]
fn explorer_finds_completion_without_condition() {
    finds(&flawed(Flaw::CompletionWithoutCondition), "P2");
}

#[test]
fn explorer_finds_restore_without_owner() {
    finds(&flawed(Flaw::RestoreWithoutOwner), "P3");
}

#[test]
fn explorer_finds_ended_lease_that_deletes() {
    finds(&flawed(Flaw::ReleaseDeletes), "P3");
}

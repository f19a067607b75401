//! The promises of `Once::run`, in every order in which things can happen and go wrong.
//!
//! Workers run the library's own futures, polled by hand, over the library's own `MemoryStore`.
//! At each await of each worker, the explorer tries everything that may come next:
//!
//! | | |
//! | --- | --- |
//! | the network | answers; loses the request, or the answer; says nothing; sends it twice; delivers it late, when its worker may have given up or crashed (`network.rs`) |
//! | the handler | succeeds, fails transiently or permanently, panics before or after its effect (`handler.rs`) |
//! | a worker | goes on, crashes, or is left standing while another goes first (`schedule.rs`) |
//! | the clocks | stand; pass the lease; pass a worker's deadline (`clock.rs`) |
//! | the queue | delivers either of two messages with one key, again too, while others are at work (`schedule.rs`) |
//!
//! What is not the ordinary course of a day is a deviation, and all schedules with up to three
//! of them are tried, up to four by `make test-deep` (`chooser.rs`). In each, the promises are
//! checked at every step (`promises.rs`), and every message must in the end be settled. A schedule
//! that breaks a promise is printed as a time line with the line that repeats it:
//!
//! ```text
//! SCHEDULE=claim:0.0.4.2 cargo test --test explore replay -- --nocapture
//! ```
//!
//! That the explorer can fail is tested too: on a table with one flaw (`table.rs`) it must find
//! the promise which that flaw breaks.
//!
//! # What it does not try
//!
//! More deviations than the bound. Wall clocks that differ between workers: leases have a
//! margin for that. The end of the retention. Other payloads under the key. DynamoDB itself:
//! `tests/store_conformance.rs` holds its condition expressions to the same rules.
//!
//! # Another mode of the library
//!
//! Another way to run a message is another function beside `claim_run_complete` in `handler.rs`
//! and a `Scenario` of it. It tells the promises when its handler enters, acts and leaves; what
//! it promises beyond these is one more check in `promises.rs`.
//!
//! # Why an explorer of our own
//!
//! - `loom` and `shuttle` try the interleavings of threads that share memory, by taking the
//!   place of `std::sync` or `tokio` in the code under test. Workers here share nothing but a
//!   table, their crashes and lost answers are what matters, and the code under test stays as it
//!   ships.
//! - `stateright` checks a model: states that can be cloned and hashed. A future can't be, so it
//!   would be a second protocol, written for the checker.
//! - `turmoil` and `madsim` simulate networks and time from random seeds; what they don't meet
//!   they don't rule out.
//!
//! A future that is polled by hand needs none of them: it stops at each await by itself.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    unreachable_pub,
    reason = "tests fail by panicking; each module says what the others may use"
)]

mod chooser;
mod clock;
mod handler;
mod network;
mod promises;
mod scenario;
mod schedule;
mod table;
mod timeline;
mod world;

use std::{collections::BTreeSet, env, str::FromStr as _, time::Duration};

use chooser::{Found, Schedule, Seen};
use futures_util::FutureExt as _;
use handler::{BUDGET, MARGIN};
use scenario::Scenario;
use schedule::Ended;
use sqs_once::{
    protocol::{AfterFailure, ClaimRequest, Owner, Settlement},
    store::{ClaimAnswer, MemoryStore, Store as _},
};
use table::Flaw;
use world::{FINGERPRINT, KEY};

/// How many deviations there may be: `EXPLORE_BOUND`, which `make test-deep` sets.
fn bound() -> u32 {
    env::var("EXPLORE_BOUND").map_or(3, |bound| bound.parse().expect("a number"))
}

/// What broke, the time line, and how to see it again.
fn told(scenario: &Scenario, schedule: &Schedule) -> (Ended, String) {
    let (ended, timeline) = scenario.replay(schedule);
    let line = scenario.line(schedule);
    let text = format!(
        "{ended:?}\n\n{timeline}\nSCHEDULE={line} cargo test --test explore replay -- --nocapture\n"
    );
    (ended, text)
}

fn keeps_every_promise(scenario: &Scenario) -> Found {
    let found = scenario.explore(bound(), Seen::default);
    if let Some(schedule) = &found.broken {
        panic!("{}", told(scenario, schedule).1);
    }
    found
}

#[test]
fn up_to_three_workers_keep_every_promise() {
    let found = keeps_every_promise(&Scenario::three_workers());
    // All that can come of one key with one payload was met on the way.
    let outcomes = [
        "completion_unrecorded",
        "conflict",
        "done",
        "duplicate",
        "failed_before",
        "lease_lost",
        "not_started",
        "out_of_time",
        "panicked",
        "permanent_failure",
        "store_unavailable",
        "transient_failure",
    ];
    assert_eq!(*found.seen.outcomes(), BTreeSet::from(outcomes));
}

#[test]
fn workers_that_do_not_notice_being_frozen_keep_every_promise() {
    keeps_every_promise(&Scenario::untimed());
}

/// Found with four deviations, when an abandoned lease ended at zero instead of now: an attempt
/// that was abandoned (w1) was forgotten when two requests of the worker before it (w0) arrived
/// after that, the first try of its claim, whose retry was answered long ago, and its release:
/// `SCHEDULE=claim:0.8.0.0.1.4.0.0.0.0.0.0.0.0.0.0.1.0.0.1.1`.
#[test]
fn a_claim_that_arrives_late_does_not_replace_a_later_one() {
    let store = MemoryStore::default();
    let claim = |request: &ClaimRequest| store.claim(request).now_or_never().unwrap().unwrap();
    let early = request(0);
    let lease = BUDGET + MARGIN + Duration::from_millis(1);
    let later = request(u64::try_from(lease.as_millis()).unwrap());
    assert!(matches!(claim(&early), ClaimAnswer::Applied { .. }));
    assert!(matches!(claim(&later), ClaimAnswer::Applied { .. }));
    let fence = later.fence();
    let abandoned = store.settle(&fence, &Settlement::Abandon, later.now);
    abandoned.now_or_never().unwrap().unwrap();
    assert!(matches!(claim(&early), ClaimAnswer::Refused(_)));
}

/// A claim made so many milliseconds after the start.
fn request(after: u64) -> ClaimRequest {
    let now = clock::wall() + Duration::from_millis(after);
    let lease_until = now + BUDGET + MARGIN;
    ClaimRequest {
        key: KEY.clone(),
        owner: Owner::fresh(),
        fingerprint: Some(FINGERPRINT.clone()),
        message_id: "m-0".into(),
        now,
        lease_until,
        expires_at: lease_until.as_secs_ceil() + 3600,
        after_failure: AfterFailure::Retry,
    }
}

/// Two schedules that lead to the same state are followed up once. Were anything missing from what
/// is taken for the state, following up each would lead to more.
#[test]
fn leaving_out_what_was_seen_before_loses_no_state() {
    for scenario in [Scenario::three_workers(), Scenario::untimed()] {
        let once_each = scenario.explore(2, Seen::default);
        let every_path = scenario.explore(2, Seen::on_every_path);
        assert!(once_each.executions < every_path.executions);
        let once_each: BTreeSet<u64> = once_each.seen.states().collect();
        let every_path: BTreeSet<u64> = every_path.seen.states().collect();
        let lost = every_path.difference(&once_each).count();
        assert_eq!(lost, 0, "of {} states", every_path.len());
    }
}

/// Explores a table with a flaw; it must come to the promise that the flaw breaks.
fn finds(flaw: Flaw, promise: &str) {
    let scenario = Scenario::flawed(flaw);
    let found = scenario.explore(3, Seen::default);
    let schedule = found.broken.expect("a flaw that breaks nothing");
    let (ended, text) = told(&scenario, &schedule);
    println!("{text}");
    let Ended::Broken(how) = ended else {
        panic!("the schedule breaks nothing when it is repeated")
    };
    assert!(how.starts_with(promise), "{how}");
}

#[test]
fn the_explorer_finds_a_claim_that_ignores_the_lease() {
    finds(Flaw::ClaimIgnoresLease, "P1");
}

#[test]
fn the_explorer_finds_a_claim_over_what_is_completed() {
    finds(Flaw::ClaimIgnoresCompleted, "P5");
}

#[test]
fn the_explorer_finds_a_takeover_that_does_not_return_the_old_record() {
    finds(Flaw::TakeoverNotReturned, "P3");
}

#[test]
fn the_explorer_finds_a_refused_claim_that_does_not_return_the_record() {
    finds(Flaw::RefusedClaimWithoutRecord, "ends");
}

#[test]
fn the_explorer_finds_a_completion_without_its_owner() {
    finds(Flaw::CompletionWithoutOwner, "P2");
}

#[test]
fn the_explorer_finds_a_completion_without_its_condition() {
    finds(Flaw::CompletionWithoutCondition, "P5");
}

#[test]
fn the_explorer_finds_a_release_without_its_owner() {
    finds(Flaw::ReleaseWithoutOwner, "P3");
}

#[test]
fn the_explorer_finds_an_abandoned_claim_that_is_deleted() {
    finds(Flaw::AbandonDeletes, "P3");
}

/// Repeats the schedule that `SCHEDULE` names, with its time line. Without it, one that was just
/// found: a line says all that there is to say of an execution.
#[test]
fn replay() {
    let repeat = |line: &str| {
        let (name, schedule) = line.split_once(':').expect("scenario:choices");
        let scenario = Scenario::named(name).expect("a scenario of scenario.rs");
        told(&scenario, &Schedule::from_str(schedule).unwrap())
    };
    if let Ok(line) = env::var("SCHEDULE") {
        let (ended, text) = repeat(&line);
        println!("{text}");
        assert_eq!(ended, Ended::Well);
    } else {
        let scenario = Scenario::flawed(Flaw::ReleaseWithoutOwner);
        let found = scenario.explore(3, Seen::default);
        let line = scenario.line(&found.broken.expect("a flaw that breaks nothing"));
        assert!(matches!(repeat(&line).0, Ended::Broken(_)));
    }
}

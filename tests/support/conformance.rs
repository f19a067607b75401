//! The suite that every [`Store`] passes.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "tests fail by panicking"
)]
#![allow(unreachable_pub, reason = "shared between test crates")]
//!
//! A further backend is one line: `conformance!(name, its_constructor)`, where the constructor
//! is an async function that answers an empty store.

use std::time::Duration;

use sqs_once::{
    protocol::{
        AfterFailure, ClaimRequest, Fingerprint, Key, Namespace, Owner, Record, Settlement,
        SettlementRefused, State, StoredResult, Timestamp,
        decision::{may_claim, may_settle, settlement_refused},
        record::{MAX_ERROR_BYTES, MAX_RESULT_BYTES},
    },
    store::{ClaimAnswer, SettleAnswer, Store},
};

/// Makes a module of tests, one per promise, for the store that `$new` makes.
#[macro_export]
macro_rules! conformance {
    ($backend:ident, $new:expr) => {
        $crate::conformance!($backend, $new,
            a_new_key_is_claimed_and_the_record_says_so
            a_refused_claim_is_answered_with_the_record
            claims_are_admitted_as_the_rules_say
            a_takeover_is_told_from_whom
            a_completed_record_keeps_its_result
            a_failed_record_keeps_its_error
            a_released_key_is_as_if_never_claimed
            an_abandoned_claim_is_taken_over_at_once
            settlements_are_admitted_as_the_rules_say
            a_late_settlement_changes_nothing
            a_settlement_sent_twice_is_found_as_wanted
            of_many_claims_at_once_one_is_admitted
            keys_keep_apart_whatever_they_hold
            the_largest_result_fits
        );
    };
    ($backend:ident, $new:expr, $($promise:ident)+) => {
        mod $backend {
            use super::*;

            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $promise() {
                let store = $new.await;
                $crate::conformance::$promise(&store).await;
            })+
        }
    };
}

const SECOND: Duration = Duration::from_secs(1);

/// Any time will do: a store has no clock.
const NOW: Timestamp = Timestamp::from_millis(1_800_000_000_500);

fn before(at: Timestamp, millis: u64) -> Timestamp {
    Timestamp::from_millis(at.as_millis() - millis)
}

pub fn key(part: &str) -> Key {
    Key::new(&Namespace::new("conformance").unwrap(), [part]).unwrap()
}

pub fn request(part: &str, message_id: &str) -> ClaimRequest {
    ClaimRequest {
        key: key(part),
        owner: Owner::fresh(),
        fingerprint: Some(Fingerprint::of(b"payload")),
        message_id: message_id.into(),
        now: NOW,
        lease_until: NOW + 30 * SECOND,
        expires_at: (NOW + 3600 * SECOND).as_secs(),
        after_failure: AfterFailure::Retry,
    }
}

async fn claim(store: &impl Store, request: &ClaimRequest) -> ClaimAnswer {
    store.claim(request).await.unwrap()
}

#[track_caller]
fn applied(answer: ClaimAnswer) -> Option<Record> {
    match answer {
        ClaimAnswer::Applied { replaced } => replaced,
        ClaimAnswer::Refused(record) => panic!("refused by {record:?}"),
    }
}

#[track_caller]
fn refused(answer: ClaimAnswer) -> Record {
    match answer {
        ClaimAnswer::Refused(record) => record,
        ClaimAnswer::Applied { replaced } => panic!("admitted over {replaced:?}"),
    }
}

/// What the store holds, by way of a claim that nothing admits but an empty place.
async fn kept(store: &impl Store, part: &str, message_id: &str) -> Record {
    let probe = ClaimRequest {
        now: Timestamp::default(),
        ..request(part, message_id)
    };
    refused(claim(store, &probe).await)
}

fn complete(json: &str) -> Settlement {
    Settlement::Complete {
        result: StoredResult::Json(json.into()),
        expires_at: (NOW + 7200 * SECOND).as_secs(),
    }
}

fn fail(error: &str) -> Settlement {
    Settlement::fail(error.into(), (NOW + 7200 * SECOND).as_secs())
}

async fn settle(store: &impl Store, request: &ClaimRequest, wanted: &Settlement) -> SettleAnswer {
    store
        .settle(&request.fence(), wanted, NOW + SECOND)
        .await
        .unwrap()
}

pub async fn a_new_key_is_claimed_and_the_record_says_so(store: &impl Store) {
    let mine = request("key", "m-1");
    assert_eq!(applied(claim(store, &mine).await), None);
    assert_eq!(kept(store, "key", "m-1").await, mine.record());

    let unprinted = ClaimRequest {
        fingerprint: None,
        ..request("unprinted", "m-2")
    };
    assert_eq!(applied(claim(store, &unprinted).await), None);
    assert_eq!(kept(store, "unprinted", "m-2").await, unprinted.record());
}

pub async fn a_refused_claim_is_answered_with_the_record(store: &impl Store) {
    let (first, second) = (request("key", "m-1"), request("key", "m-1"));
    claim(store, &first).await;
    assert_eq!(refused(claim(store, &second).await), first.record());
    // As the SDK's second try after a lost answer sees it.
    assert_eq!(refused(claim(store, &first).await), first.record());
}

/// Every state a record can be in, at every side of every bound.
fn states() -> Vec<(Option<Settlement>, Timestamp)> {
    let settlements = [
        None,
        Some(Settlement::Abandon),
        Some(complete("1")),
        Some(fail("no")),
    ];
    let leases = [before(NOW, 1), NOW, NOW + SECOND];
    let pairs = settlements
        .iter()
        .flat_map(|s| leases.map(|lease| (s.clone(), lease)));
    pairs.collect()
}

/// Everybody who may ask for a key that `m-1` has claimed.
fn askers() -> Vec<ClaimRequest> {
    let mut askers = Vec::new();
    for print in [None, Some("payload"), Some("other")] {
        for message_id in ["m-1", "m-2"] {
            for after_failure in [AfterFailure::Retry, AfterFailure::Replay] {
                askers.push(ClaimRequest {
                    fingerprint: print.map(|text| Fingerprint::of(text.as_bytes())),
                    after_failure,
                    ..request("key", message_id)
                });
            }
        }
    }
    askers
}

pub async fn claims_are_admitted_as_the_rules_say(store: &impl Store) {
    let mut tried = 0;
    for (settlement, lease_until) in states() {
        for expires_at in [NOW.as_secs() - 1, NOW.as_secs(), NOW.as_secs() + 1] {
            for fingerprint in [None, Some(Fingerprint::of(b"payload"))] {
                for asker in askers() {
                    tried += 1;
                    let theirs = ClaimRequest {
                        fingerprint: fingerprint.clone(),
                        lease_until,
                        expires_at,
                        ..request(&tried.to_string(), "m-1")
                    };
                    claim(store, &theirs).await;
                    let mut record = theirs.record();
                    if let Some(settlement) = settlement.clone().map(|s| expiring(s, expires_at)) {
                        settle(store, &theirs, &settlement).await;
                        record = settlement.apply(&record, NOW + SECOND).unwrap();
                    }
                    let mine = ClaimRequest {
                        key: theirs.key,
                        ..asker
                    };
                    let wanted = if may_claim(Some(&record), &mine) {
                        let replaced = Some(record);
                        ClaimAnswer::Applied { replaced }
                    } else {
                        ClaimAnswer::Refused(record)
                    };
                    assert_eq!(claim(store, &mine).await, wanted, "for {mine:?}");
                }
            }
        }
    }
    assert_eq!(tried, 12 * 3 * 2 * 12);
}

fn expiring(settlement: Settlement, at: u64) -> Settlement {
    match settlement {
        Settlement::Complete { result, .. } => Settlement::Complete {
            result,
            expires_at: at,
        },
        Settlement::Fail { error, .. } => Settlement::Fail {
            error,
            expires_at: at,
        },
        other => other,
    }
}

pub async fn a_takeover_is_told_from_whom(store: &impl Store) {
    let dead = ClaimRequest {
        lease_until: before(NOW, 1),
        ..request("key", "m-1")
    };
    claim(store, &dead).await;
    let mine = request("key", "m-1");
    assert_eq!(applied(claim(store, &mine).await), Some(dead.record()));
    assert_eq!(kept(store, "key", "m-1").await, mine.record());
}

pub async fn a_completed_record_keeps_its_result(store: &impl Store) {
    let omitted = StoredResult::Omitted("too long".into());
    for (part, result) in [
        ("object", StoredResult::Json(r#"{"id": "é\u0000"}"#.into())),
        ("null", StoredResult::Json("null".into())),
        ("zero", StoredResult::Json("0".into())),
        ("empty", StoredResult::Json("\"\"".into())),
        ("omitted", omitted),
    ] {
        let mine = request(part, "m-1");
        claim(store, &mine).await;
        let wanted = Settlement::Complete {
            result,
            expires_at: NOW.as_secs() + 9,
        };
        assert_eq!(settle(store, &mine, &wanted).await, SettleAnswer::Applied);
        let record = kept(store, part, "m-1").await;
        assert_eq!(Some(record), wanted.apply(&mine.record(), NOW + SECOND));
    }
}

pub async fn a_failed_record_keeps_its_error(store: &impl Store) {
    for (part, error) in [
        ("told", "declined".to_owned()),
        ("empty", String::new()),
        ("long", "é".repeat(MAX_ERROR_BYTES)),
    ] {
        let mine = request(part, "m-1");
        claim(store, &mine).await;
        let wanted = fail(&error);
        assert_eq!(settle(store, &mine, &wanted).await, SettleAnswer::Applied);
        let record = kept(store, part, "m-1").await;
        assert_eq!(Some(record), wanted.apply(&mine.record(), NOW + SECOND));
    }
}

pub async fn a_released_key_is_as_if_never_claimed(store: &impl Store) {
    let mine = request("key", "m-1");
    claim(store, &mine).await;
    assert_eq!(
        settle(store, &mine, &Settlement::Release).await,
        SettleAnswer::Applied
    );
    assert_eq!(applied(claim(store, &request("key", "m-1")).await), None);
}

pub async fn an_abandoned_claim_is_taken_over_at_once(store: &impl Store) {
    let mine = request("key", "m-1");
    claim(store, &mine).await;
    assert_eq!(
        settle(store, &mine, &Settlement::Abandon).await,
        SettleAnswer::Applied
    );
    // It was abandoned a second after `NOW`.
    let at = |now| ClaimRequest {
        now,
        ..request("key", "m-1")
    };
    let early = claim(store, &at(NOW + SECOND)).await;
    assert!(matches!(early, ClaimAnswer::Refused(_)));
    let next = at(NOW + SECOND + Duration::from_millis(1));
    let replaced = applied(claim(store, &next).await).unwrap();
    assert_eq!(replaced.owner, Some(mine.owner));
    let lease_until = NOW + SECOND;
    assert_eq!(replaced.state, State::InProgress { lease_until });
}

pub async fn settlements_are_admitted_as_the_rules_say(store: &impl Store) {
    let wanted = [
        complete("2"),
        fail("mine"),
        Settlement::Release,
        Settlement::Abandon,
    ];
    for (n, (settlement, lease_until)) in states().into_iter().enumerate() {
        for (m, wanted) in wanted.iter().enumerate() {
            for by_its_owner in [true, false] {
                let part = format!("{n} {m} {by_its_owner}");
                let theirs = ClaimRequest {
                    lease_until,
                    ..request(&part, "m-1")
                };
                claim(store, &theirs).await;
                let mut record = theirs.record();
                if let Some(settlement) = &settlement {
                    settle(store, &theirs, settlement).await;
                    record = settlement.apply(&record, NOW + SECOND).unwrap();
                }
                let mut fence = theirs.fence();
                if !by_its_owner {
                    fence.owner = Owner::fresh();
                }
                let admitted = may_settle(Some(&record), &fence);
                let answer = store.settle(&fence, wanted, NOW + SECOND).await.unwrap();
                if admitted {
                    assert_eq!(answer, SettleAnswer::Applied, "{wanted:?} over {record:?}");
                } else {
                    assert_eq!(
                        answer,
                        SettleAnswer::Refused(Some(record.clone())),
                        "{wanted:?}"
                    );
                    assert_eq!(
                        kept(store, &part, "m-1").await,
                        record,
                        "{wanted:?} left a trace"
                    );
                }
            }
        }
    }
}

pub async fn a_late_settlement_changes_nothing(store: &impl Store) {
    let slow = ClaimRequest {
        lease_until: before(NOW, 1),
        ..request("key", "m-1")
    };
    claim(store, &slow).await;
    let quick = request("key", "m-1");
    claim(store, &quick).await;
    for wanted in [
        complete("late"),
        fail("late"),
        Settlement::Release,
        Settlement::Abandon,
    ] {
        let answer = settle(store, &slow, &wanted).await;
        assert_eq!(answer, SettleAnswer::Refused(Some(quick.record())));
    }
    assert_eq!(
        settle(store, &quick, &complete("mine")).await,
        SettleAnswer::Applied
    );
    for wanted in [
        complete("late"),
        fail("late"),
        Settlement::Release,
        Settlement::Abandon,
    ] {
        settle(store, &slow, &wanted).await;
    }
    let State::Completed { result } = kept(store, "key", "m-1").await.state else {
        panic!("the newer result is gone")
    };
    assert_eq!(result, StoredResult::Json("mine".into()));
}

pub async fn a_settlement_sent_twice_is_found_as_wanted(store: &impl Store) {
    for wanted in [complete("1"), fail("no"), Settlement::Release] {
        let mine = request(wanted.name(), "m-1");
        claim(store, &mine).await;
        settle(store, &mine, &wanted).await;
        let SettleAnswer::Refused(record) = settle(store, &mine, &wanted).await else {
            panic!("{wanted:?} was applied twice")
        };
        assert_eq!(
            settlement_refused(record.as_ref(), &mine.fence(), &wanted),
            SettlementRefused::AlreadySettled
        );
    }
    // Abandoning leaves the record in progress and its owner's, so the second time passes too.
    let mine = request("abandoned", "m-1");
    claim(store, &mine).await;
    for _ in 0..2 {
        assert_eq!(
            settle(store, &mine, &Settlement::Abandon).await,
            SettleAnswer::Applied
        );
    }
}

pub async fn of_many_claims_at_once_one_is_admitted(store: &impl Store) {
    for round in 0..20 {
        let requests: Vec<_> = (0..8).map(|_| request(&round.to_string(), "m-1")).collect();
        let claims = requests.iter().map(|request| store.claim(request));
        let answers = futures_util::future::join_all(claims).await;
        let admitted = answers
            .iter()
            .filter(|answer| matches!(answer, Ok(ClaimAnswer::Applied { .. })));
        assert_eq!(admitted.count(), 1);
    }
}

pub async fn keys_keep_apart_whatever_they_hold(store: &impl Store) {
    let long = "x".repeat(4096);
    let parts = [
        "a",
        "A",
        "a ",
        "a#",
        "a\\",
        "é",
        "e\u{301}",
        "\0",
        "\u{10ffff}",
        &long,
    ];
    for part in parts {
        let mine = request(part, "m-1");
        assert_eq!(applied(claim(store, &mine).await), None, "{part:?}");
    }
}

pub async fn the_largest_result_fits(store: &impl Store) {
    let mine = ClaimRequest {
        key: key(&"x".repeat(2000)),
        message_id: "m".repeat(1024),
        ..request("key", "m-1")
    };
    claim(store, &mine).await;
    let json = "é".repeat(MAX_RESULT_BYTES / 2);
    assert_eq!(
        settle(store, &mine, &complete(&json)).await,
        SettleAnswer::Applied
    );
}

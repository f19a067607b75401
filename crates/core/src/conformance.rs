//! The conformance suite that every [`Store`] passes.
//!
//! A store's author runs [`all`], or each promise as a test of its own. The functions panic where
//! the store breaks the promise. `new` and `store` must hold no records yet.
//!
//! ```
//! use sqs_once::store::MemoryStore;
//! use sqs_once_testing::conformance;
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() {
//! conformance::all(async || MemoryStore::default()).await;
//! # }
//! ```
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test suite, which fails by panicking"
)]

use std::time::Duration;

use crate::{
    protocol::{
        AfterFailure, AttemptEnd, Before, ClaimRequest, Claimed, Fingerprint, Key, Namespace,
        Owner, Record, ResultPointer, Settlement, SettlementRefused, State, StoredResult,
        Timestamp,
        decision::{may_claim, may_settle, settlement_refused},
        record::{MAX_ERROR_BYTES, MAX_FAILED_MESSAGES, MAX_RESULT_BYTES},
    },
    store::{ClaimAnswer, SettleAnswer, Store},
};

/// The one list of promises: runs a macro with the arguments and the name of each promise.
#[doc(hidden)]
#[macro_export]
macro_rules! for_each_promise_of_a_store {
    ($run:ident, $($arguments:tt)*) => {
        $run! {
            $($arguments)*
            new_key_is_claimed_and_recorded
            refused_claim_returns_record
            claim_admission_follows_rules
            takeover_returns_replaced_record
            completed_record_keeps_result
            failed_record_keeps_error
            restored_key_is_as_before_claim
            ended_lease_is_taken_over_at_once
            renewed_lease_stays_exclusive
            late_renewal_changes_nothing
            attempt_alone_is_counted_until_its_end
            abandon_of_first_claim_is_recorded
            failed_messages_are_never_admitted_again
            settlement_admission_follows_rules
            late_settlement_changes_nothing
            repeated_settlement_counts_as_applied
            concurrent_claims_admit_one
            keys_with_special_characters_are_distinct
            largest_result_fits
        }
    };
}

/// Declares [`all`], which runs each promise.
macro_rules! promises {
    ($($promise:ident)+) => {
        /// Runs every promise, each on another store that `new` returns.
        ///
        /// # Panics
        ///
        /// If the store breaks a promise. The standard error output names the promise.
        pub async fn all<S: Store>(new: impl AsyncFn() -> S) {
            $(
                eprintln!("conformance: {}", stringify!($promise));
                $promise(&new().await).await;
            )+
        }
    };
}

for_each_promise_of_a_store!(promises,);

const SECOND: Duration = Duration::from_secs(1);

/// Any time will do: a store has no clock.
const NOW: Timestamp = Timestamp::from_millis(1_800_000_000_500);

fn before(at: Timestamp, millis: u64) -> Timestamp {
    Timestamp::from_millis(at.as_millis() - millis)
}

fn key(part: &str) -> Key {
    Key::new(&Namespace::new("conformance").unwrap(), [part]).unwrap()
}

fn request(part: &str, message_id: &str) -> ClaimRequest {
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

/// Record in the store, read by a claim that only an absent record admits.
async fn kept(store: &impl Store, part: &str, message_id: &str) -> Record {
    let probe = ClaimRequest {
        now: Timestamp::default(),
        after_failure: AfterFailure::Replay,
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
    fail_message(error, "m-1")
}

fn fail_message(error: &str, message_id: &str) -> Settlement {
    Settlement::fail(
        error.into(),
        message_id,
        true,
        (NOW + 7200 * SECOND).as_secs(),
    )
}

fn end_lease() -> Settlement {
    let last_end = Some(AttemptEnd::Panic);
    Settlement::EndLease { last_end }
}

fn renew(lease_until: Timestamp) -> Settlement {
    Settlement::Renew {
        lease_until,
        expires_at: (NOW + 7200 * SECOND).as_secs(),
        exclusive_attempts: None,
    }
}

fn restore(replaced: Option<Record>) -> Settlement {
    Settlement::Restore(Claimed::over(replaced))
}

async fn settle(store: &impl Store, request: &ClaimRequest, wanted: &Settlement) -> SettleAnswer {
    store
        .settle(&request.fence(), wanted, NOW + SECOND)
        .await
        .unwrap()
}

/// A claim of a new key is applied, and its record is the one that the claim describes.
pub async fn new_key_is_claimed_and_recorded(store: &impl Store) {
    let mine = request("key", "m-1");
    assert_eq!(applied(claim(store, &mine).await), None);
    assert_eq!(kept(store, "key", "m-1").await, mine.record(None));

    let unprinted = ClaimRequest {
        fingerprint: None,
        ..request("unprinted", "m-2")
    };
    assert_eq!(applied(claim(store, &unprinted).await), None);
    assert_eq!(
        kept(store, "unprinted", "m-2").await,
        unprinted.record(None)
    );
}

/// A refused claim returns the record that refused it.
pub async fn refused_claim_returns_record(store: &impl Store) {
    let (first, second) = (request("key", "m-1"), request("key", "m-1"));
    let _ = claim(store, &first).await;
    assert_eq!(refused(claim(store, &second).await), first.record(None));
    // The SDK's second try after a lost response gets the same answer.
    assert_eq!(refused(claim(store, &first).await), first.record(None));
}

/// The end of a lease without a trace of its attempt.
fn restore_unknown() -> Settlement {
    Settlement::Restore(Claimed {
        before: Before::Unknown,
        ..Claimed::over(None)
    })
}

/// Every state of a record, on each side of every bound.
fn states() -> Vec<(Option<Settlement>, Timestamp)> {
    let settlements = [
        None,
        Some(end_lease()),
        Some(restore_unknown()),
        Some(complete("1")),
        Some(fail("no")),
    ];
    let leases = [before(NOW, 1), NOW, NOW + SECOND];
    let pairs = settlements
        .iter()
        .flat_map(|s| leases.map(|lease| (s.clone(), lease)));
    pairs.collect()
}

/// No fingerprint, and fingerprints with and without a scheme.
fn fingerprints() -> [Option<Fingerprint>; 7] {
    let print = |payload: &str, scheme: Option<&str>| {
        Some(Fingerprint::of(payload.as_bytes()).with_scheme(scheme.map(str::to_owned)))
    };
    [
        None,
        print("payload", None),
        print("payload", Some("body")),
        print("payload", Some("parts")),
        print("other", None),
        print("other", Some("body")),
        print("other", Some("parts")),
    ]
}

/// Every kind of claim for a key that `m-1` has claimed.
fn claimants() -> Vec<ClaimRequest> {
    let mut claimants = Vec::new();
    for fingerprint in fingerprints() {
        // The scheme decides about takeovers alone, so one message tries each.
        let has_scheme = (fingerprint.as_ref()).is_some_and(|print| print.scheme().is_some());
        for message_id in ["m-1", "m-2"] {
            for after_failure in [AfterFailure::Retry, AfterFailure::Replay] {
                if has_scheme && (message_id, after_failure) != ("m-1", AfterFailure::Retry) {
                    continue;
                }
                claimants.push(ClaimRequest {
                    fingerprint: fingerprint.clone(),
                    after_failure,
                    ..request("key", message_id)
                });
            }
        }
    }
    claimants
}

/// A claim is admitted exactly where [`may_claim`] admits it: every state of a record, on each side
/// of every bound.
pub async fn claim_admission_follows_rules(store: &impl Store) {
    let mut tried = 0;
    for (settlement, lease_until) in states() {
        for expires_at in [NOW.as_secs() - 1, NOW.as_secs(), NOW.as_secs() + 1] {
            for fingerprint in fingerprints().into_iter().take(3) {
                for asker in claimants() {
                    tried += 1;
                    let theirs = ClaimRequest {
                        fingerprint: fingerprint.clone(),
                        lease_until,
                        expires_at,
                        ..request(&tried.to_string(), "m-1")
                    };
                    let _ = claim(store, &theirs).await;
                    let mut record = theirs.record(None);
                    if let Some(settlement) = settlement.clone().map(|s| expiring(s, expires_at)) {
                        let _ = settle(store, &theirs, &settlement).await;
                        record = settlement.apply(&record, NOW + SECOND).unwrap();
                    }
                    let mine = ClaimRequest {
                        key: theirs.key,
                        ..asker
                    };
                    let (wanted, left) = if may_claim(Some(&record), &mine) {
                        let replaced = Some(record).filter(|record| !record.is_expired(NOW));
                        let left = mine.record(replaced.as_ref());
                        (ClaimAnswer::Applied { replaced }, left)
                    } else {
                        (ClaimAnswer::Refused(record.clone()), record)
                    };
                    assert_eq!(claim(store, &mine).await, wanted, "for {mine:?}");
                    let part = tried.to_string();
                    assert_eq!(kept(store, &part, "m-1").await, left, "after {mine:?}");
                }
            }
        }
    }
    assert_eq!(tried, 15 * 3 * 3 * 16);
}

fn expiring(settlement: Settlement, at: u64) -> Settlement {
    match settlement {
        Settlement::Complete { result, .. } => Settlement::Complete {
            result,
            expires_at: at,
        },
        Settlement::Fail { error, .. } => Settlement::fail(error, "m-1", true, at),
        other => other,
    }
}

/// A takeover returns the record that it replaced.
pub async fn takeover_returns_replaced_record(store: &impl Store) {
    let dead = ClaimRequest {
        lease_until: before(NOW, 1),
        ..request("key", "m-1")
    };
    let _ = claim(store, &dead).await;
    let mine = request("key", "m-1");
    assert_eq!(applied(claim(store, &mine).await), Some(dead.record(None)));
    let record = mine.record(Some(&dead.record(None)));
    assert_eq!(kept(store, "key", "m-1").await, record);
}

/// A completed record keeps its result, for every JSON type.
pub async fn completed_record_keeps_result(store: &impl Store) {
    let omitted = StoredResult::Omitted("too long".into());
    let in_s3 = ResultPointer {
        bucket: "outputs".into(),
        key: "results/k/o/d".into(),
        sha256: "d".into(),
        bytes: 70_000,
    };
    for (part, result) in [
        ("object", StoredResult::Json(r#"{"id": "é\u0000"}"#.into())),
        ("null", StoredResult::Json("null".into())),
        ("zero", StoredResult::Json("0".into())),
        ("empty", StoredResult::Json("\"\"".into())),
        ("omitted", omitted),
        ("in S3", StoredResult::InS3(Box::new(in_s3))),
    ] {
        let mine = request(part, "m-1");
        let _ = claim(store, &mine).await;
        let wanted = Settlement::Complete {
            result,
            expires_at: NOW.as_secs() + 9,
        };
        assert_eq!(settle(store, &mine, &wanted).await, SettleAnswer::Applied);
        let record = kept(store, part, "m-1").await;
        assert_eq!(Some(record), wanted.apply(&mine.record(None), NOW + SECOND));
    }
}

/// A failed record keeps its error.
pub async fn failed_record_keeps_error(store: &impl Store) {
    for (part, error) in [
        ("told", "declined".to_owned()),
        ("empty", String::new()),
        ("long", "é".repeat(MAX_ERROR_BYTES)),
    ] {
        let mine = request(part, "m-1");
        let _ = claim(store, &mine).await;
        let wanted = fail(&error);
        assert_eq!(settle(store, &mine, &wanted).await, SettleAnswer::Applied);
        let record = kept(store, part, "m-1").await;
        assert_eq!(Some(record), wanted.apply(&mine.record(None), NOW + SECOND));
    }
}

/// A restored key is as it was before the claim.
pub async fn restored_key_is_as_before_claim(store: &impl Store) {
    let first = request("key", "m-1");
    let _ = claim(store, &first).await;
    assert_eq!(
        settle(store, &first, &restore(None)).await,
        SettleAnswer::Applied
    );
    let mine = request("key", "m-1");
    assert_eq!(applied(claim(store, &mine).await), None);
    let _ = settle(store, &mine, &fail("declined")).await;

    let failed = kept(store, "key", "m-1").await;
    let other = ClaimRequest {
        fingerprint: Some(Fingerprint::of(b"corrected")),
        ..request("key", "m-2")
    };
    let replaced = applied(claim(store, &other).await);
    assert_eq!(replaced.as_ref(), Some(&failed));
    let undone = restore(replaced);
    let _ = settle(store, &other, &undone).await;
    let expected = undone.apply(&other.record(Some(&failed)), NOW + SECOND);
    assert_eq!(Some(kept(store, "key", "m-1").await), expected);

    // A takeover, whose earlier attempt stays open.
    let crashed = ClaimRequest {
        lease_until: before(NOW, 1),
        ..request("open", "m-1")
    };
    let _ = claim(store, &crashed).await;
    let mine = request("open", "m-1");
    let undone = restore(applied(claim(store, &mine).await));
    let _ = settle(store, &mine, &undone).await;
    let record = mine.record(Some(&crashed.record(None)));
    let expected = undone.apply(&record, NOW + SECOND);
    assert_eq!(Some(kept(store, "open", "m-1").await), expected);
}

/// An ended lease is taken over at once.
pub async fn ended_lease_is_taken_over_at_once(store: &impl Store) {
    let mine = request("key", "m-1");
    let _ = claim(store, &mine).await;
    assert_eq!(
        settle(store, &mine, &end_lease()).await,
        SettleAnswer::Applied
    );
    // The attempt ended a second after `NOW`.
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
    assert_eq!(replaced.last_end, Some(AttemptEnd::Panic));
    let record = kept(store, "key", "m-1").await;
    assert_eq!((record.attempts, record.last_end), (2, None));
    assert_eq!(record.first_claimed_at, Some(NOW));
}

/// The renewal before an attempt alone counts it. A takeover keeps the count, each recorded end of a
/// handler removes it, and a restore without one puts it back.
pub async fn attempt_alone_is_counted_until_its_end(store: &impl Store) {
    let dead = |part: &str| ClaimRequest {
        lease_until: before(NOW, 2),
        ..request(part, "m-1")
    };
    let alone = |n: u64| Settlement::Renew {
        lease_until: before(NOW, 1),
        expires_at: NOW.as_secs() + 9,
        exclusive_attempts: Some(n),
    };
    let ends = [
        ("completed", complete("1")),
        ("failed", fail("declined")),
        ("ended", end_lease()),
    ];
    for (part, end) in ends {
        let mine = dead(part);
        let _ = claim(store, &mine).await;
        let fence = mine.fence().with_lease(mine.lease_until);
        let answer = store.settle(&fence, &alone(2), NOW).await.unwrap();
        assert_eq!(answer, SettleAnswer::Applied);
        let late = store.settle(&fence, &alone(3), NOW).await.unwrap();
        let record = alone(2).apply(&mine.record(None), NOW).unwrap();
        assert_eq!(late, SettleAnswer::Refused(Some(record.clone())));

        let next = request(part, "m-1");
        assert_eq!(applied(claim(store, &next).await), Some(record.clone()));
        let taken_over = next.record(Some(&record));
        assert_eq!(taken_over.exclusive_attempts, 2);
        assert_eq!(kept(store, part, "m-1").await, taken_over);
        assert_eq!(settle(store, &next, &end).await, SettleAnswer::Applied);
        let left = kept(store, part, "m-1").await;
        assert_eq!(left.exclusive_attempts, 0, "{part}");
        assert_eq!(Some(left), end.apply(&taken_over, NOW + SECOND));
    }
    for (part, began, count) in [("began", true, 0), ("did not begin", false, 2)] {
        let mine = dead(part);
        let _ = claim(store, &mine).await;
        let fence = mine.fence().with_lease(mine.lease_until);
        let _ = store.settle(&fence, &alone(2), NOW).await.unwrap();
        let next = request(part, "m-1");
        let replaced = applied(claim(store, &next).await);
        let fence = next.fence().with_lease(next.lease_until);
        let _ = store.settle(&fence, &alone(3), NOW).await.unwrap();
        assert_eq!(kept(store, part, "m-1").await.exclusive_attempts, 3);
        let claimed = Claimed::over(replaced);
        let restore = Settlement::Restore(if began {
            claimed.with_recorded_end()
        } else {
            claimed
        });
        assert_eq!(settle(store, &next, &restore).await, SettleAnswer::Applied);
        let left = kept(store, part, "m-1").await;
        assert_eq!(left.exclusive_attempts, count, "{part}");
    }
}

/// The end of a claim that was abandoned is `not_started` only if the claim opened the attempt.
pub async fn abandon_of_first_claim_is_recorded(store: &impl Store) {
    let abandon = Settlement::EndLease {
        last_end: Some(AttemptEnd::NotStarted),
    };
    let first = request("key", "m-1");
    let _ = claim(store, &first).await;
    let fence = first.fence().with_first_claim(first.now);
    let answer = store.settle(&fence, &abandon, NOW).await.unwrap();
    assert_eq!(answer, SettleAnswer::Applied);
    let left = kept(store, "key", "m-1").await;
    assert_eq!(left.last_end, Some(AttemptEnd::NotStarted));

    let second = ClaimRequest {
        now: NOW + SECOND,
        ..request("key", "m-1")
    };
    let _ = claim(store, &second).await;
    let fence = second.fence().with_first_claim(second.now);
    let answer = store.settle(&fence, &abandon, NOW + SECOND).await.unwrap();
    let record = second.record(Some(&left));
    assert_eq!(answer, SettleAnswer::Refused(Some(record)));
}

/// A record remembers each message that failed under its key, up to the limit, and admits none of
/// them again.
pub async fn failed_messages_are_never_admitted_again(store: &impl Store) {
    for n in 0..MAX_FAILED_MESSAGES {
        let message_id = format!("m-{n}");
        let mine = request("key", &message_id);
        applied(claim(store, &mine).await);
        let wanted = fail_message(&format!("error {n}"), &message_id);
        let _ = settle(store, &mine, &wanted).await;
        for m in 0..=n {
            let again = claim(store, &request("key", &format!("m-{m}"))).await;
            assert_eq!(refused(again).failed_message_ids.len(), n + 1);
        }
    }
    let record = refused(claim(store, &request("key", "another")).await);
    assert_eq!(record.error.as_deref(), Some("error 19"));

    // The failed message is also refused while another message is in progress, and after that
    // message's lease.
    let first = request("two", "m-1");
    let _ = claim(store, &first).await;
    let _ = settle(store, &first, &fail("declined")).await;
    let second = request("two", "m-2");
    let replaced = applied(claim(store, &second).await);
    assert_eq!(replaced.unwrap().failed_message_ids.len(), 1);
    let _ = settle(store, &second, &end_lease()).await;
    let later = ClaimRequest {
        now: NOW + 2 * SECOND,
        ..request("two", "m-1")
    };
    let record = refused(claim(store, &later).await);
    assert_eq!(record.error.as_deref(), Some("declined"));
}

/// A settlement is admitted exactly where [`may_settle`] admits it.
pub async fn settlement_admission_follows_rules(store: &impl Store) {
    let wanted = [
        complete("2"),
        fail("mine"),
        restore(None),
        end_lease(),
        renew(NOW + 60 * SECOND),
    ];
    for (n, (settlement, lease_until)) in states().into_iter().enumerate() {
        for (m, wanted) in wanted.iter().enumerate() {
            for (by_its_owner, fenced_lease) in [
                (true, None),
                (false, None),
                (true, Some(lease_until)),
                (true, Some(before(lease_until, 1))),
                (false, Some(lease_until)),
            ] {
                let part = format!("{n} {m} {by_its_owner} {fenced_lease:?}");
                let theirs = ClaimRequest {
                    lease_until,
                    ..request(&part, "m-1")
                };
                let _ = claim(store, &theirs).await;
                let mut record = theirs.record(None);
                if let Some(settlement) = &settlement {
                    let _ = settle(store, &theirs, settlement).await;
                    record = settlement.apply(&record, NOW + SECOND).unwrap();
                }
                let mut fence = theirs.fence();
                if !by_its_owner {
                    fence.owner = Owner::fresh();
                }
                fence.lease_until = fenced_lease;
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

/// A renewed lease holds off other claims, and can be renewed again. Its claim settles as before.
pub async fn renewed_lease_stays_exclusive(store: &impl Store) {
    let mine = request("key", "m-1");
    let _ = claim(store, &mine).await;
    let mut lease_until = mine.lease_until;
    for _ in 0..2 {
        let fence = mine.fence().with_lease(lease_until);
        lease_until = lease_until + 30 * SECOND;
        let wanted = renew(lease_until);
        let answer = store.settle(&fence, &wanted, NOW + SECOND).await.unwrap();
        assert_eq!(answer, SettleAnswer::Applied);
        let record = kept(store, "key", "m-1").await;
        assert_eq!(Some(&record), wanted.apply(&record, NOW + SECOND).as_ref());
        // The same request again, as after a lost answer.
        let again = store.settle(&fence, &wanted, NOW + SECOND).await.unwrap();
        let SettleAnswer::Refused(refused_by) = again else {
            panic!("the renewal was applied twice")
        };
        assert_eq!(
            settlement_refused(refused_by.as_ref(), &fence, &wanted),
            SettlementRefused::AlreadySettled
        );
    }
    let during = ClaimRequest {
        now: lease_until,
        ..request("key", "m-1")
    };
    let _ = refused(claim(store, &during).await);
    assert_eq!(
        settle(store, &mine, &complete("1")).await,
        SettleAnswer::Applied
    );
}

/// A renewal that arrives after the end of its claim, or after the next renewal, changes nothing.
pub async fn late_renewal_changes_nothing(store: &impl Store) {
    let ends = [
        end_lease(),
        restore_unknown(),
        complete("1"),
        fail("no"),
        renew(NOW + 90 * SECOND),
    ];
    for (n, end) in ends.into_iter().enumerate() {
        let part = n.to_string();
        let mine = request(&part, "m-1");
        let _ = claim(store, &mine).await;
        let _ = settle(store, &mine, &end).await;
        let left = kept(store, &part, "m-1").await;
        let fence = mine.fence().with_lease(mine.lease_until);
        let late = renew(NOW + 60 * SECOND);
        let late = store.settle(&fence, &late, NOW + SECOND);
        let expected = SettleAnswer::Refused(Some(left.clone()));
        assert_eq!(late.await.unwrap(), expected, "after {end:?}");
        assert_eq!(kept(store, &part, "m-1").await, left, "after {end:?}");
    }
}

/// A settlement of a lost lease changes nothing.
pub async fn late_settlement_changes_nothing(store: &impl Store) {
    let slow = ClaimRequest {
        lease_until: before(NOW, 1),
        ..request("key", "m-1")
    };
    let _ = claim(store, &slow).await;
    let quick = request("key", "m-1");
    let _ = claim(store, &quick).await;
    for wanted in [
        complete("late"),
        fail("late"),
        restore(None),
        restore_unknown(),
        end_lease(),
        renew(NOW + 60 * SECOND),
    ] {
        let answer = settle(store, &slow, &wanted).await;
        assert_eq!(
            answer,
            SettleAnswer::Refused(Some(quick.record(Some(&slow.record(None)))))
        );
    }
    assert_eq!(
        settle(store, &quick, &complete("mine")).await,
        SettleAnswer::Applied
    );
    for wanted in [
        complete("late"),
        fail("late"),
        restore(None),
        restore_unknown(),
        end_lease(),
        renew(NOW + 60 * SECOND),
    ] {
        let _ = settle(store, &slow, &wanted).await;
    }
    let State::Completed { result } = kept(store, "key", "m-1").await.state else {
        panic!("the newer result is lost")
    };
    assert_eq!(result, StoredResult::Json("mine".into()));
}

/// A settlement sent twice is recognised as applied.
pub async fn repeated_settlement_counts_as_applied(store: &impl Store) {
    for wanted in [complete("1"), fail("no"), restore(None)] {
        let mine = request(wanted.name(), "m-1");
        let _ = claim(store, &mine).await;
        let _ = settle(store, &mine, &wanted).await;
        let SettleAnswer::Refused(record) = settle(store, &mine, &wanted).await else {
            panic!("{wanted:?} was applied twice")
        };
        assert_eq!(
            settlement_refused(record.as_ref(), &mine.fence(), &wanted),
            SettlementRefused::AlreadySettled
        );
    }
    // An ended lease leaves the record in progress, with its owner: the second settlement is
    // applied too.
    let mine = request("ended", "m-1");
    let _ = claim(store, &mine).await;
    for _ in 0..2 {
        assert_eq!(
            settle(store, &mine, &end_lease()).await,
            SettleAnswer::Applied
        );
    }
}

/// Of concurrent claims, one is admitted.
pub async fn concurrent_claims_admit_one(store: &impl Store) {
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

/// Keys with special characters are distinct.
pub async fn keys_with_special_characters_are_distinct(store: &impl Store) {
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

/// The largest result fits, beside the largest key.
pub async fn largest_result_fits(store: &impl Store) {
    let mine = ClaimRequest {
        key: key(&"x".repeat(2000)),
        message_id: "m".repeat(1024),
        ..request("key", "m-1")
    };
    let _ = claim(store, &mine).await;
    let json = "é".repeat(MAX_RESULT_BYTES / 2);
    assert_eq!(
        settle(store, &mine, &complete(&json)).await,
        SettleAnswer::Applied
    );
}

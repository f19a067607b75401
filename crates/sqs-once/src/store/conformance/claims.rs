//! Promises about claims: which ones a store admits, and which record each returns.

use std::time::Duration;

use super::requests::{
    NOW, SECOND, applied, before, claim, claim_and_settle, fail, fail_message, kept, key, refused,
    release, request, settle, states,
};
use crate::{
    protocol::{
        AfterFailure, ClaimRequest, Fingerprint, Settlement,
        decision::may_claim,
        record::{MAX_FAILED_MESSAGES, Record},
    },
    store::{ClaimResponse, Store},
};

/// Claims a new key. The claim is applied, and the record is the one that the claim describes.
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

/// A claim whose condition failed returns the record that it found.
pub async fn refused_claim_returns_record(store: &impl Store) {
    let (first, second) = (request("key", "m-1"), request("key", "m-1"));
    let _ = claim(store, &first).await;
    assert_eq!(refused(claim(store, &second).await), first.record(None));
    // The SDK's second try, after a lost response, gets the same response.
    assert_eq!(refused(claim(store, &first).await), first.record(None));
}

/// Returns no fingerprint, and fingerprints with and without a scheme.
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

/// Returns every kind of claim for a key that `m-1` has claimed.
fn claimants() -> Vec<ClaimRequest> {
    let mut claimants = Vec::new();
    for fingerprint in fingerprints() {
        // The scheme matters only for takeovers, so one message is enough to try each.
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

/// Returns the claim and the settlement that lead to every state of a record, on each side of every bound.
fn histories() -> Vec<(ClaimRequest, Option<Settlement>)> {
    let mut histories = Vec::new();
    for (settlement, lease_until) in states() {
        for expires_at in [NOW.as_secs() - 1, NOW.as_secs(), NOW.as_secs() + 1] {
            for fingerprint in fingerprints().into_iter().take(3) {
                let theirs = ClaimRequest {
                    fingerprint,
                    lease_until,
                    expires_at,
                    ..request("key", "m-1")
                };
                let settled = settlement.as_ref().map(|how| expiring(how, expires_at));
                histories.push((theirs, settled));
            }
        }
    }
    histories
}

/// A store admits a claim exactly where [`may_claim`] does, for every state of a record on each side of every
/// bound.
pub async fn claim_admission_follows_rules(store: &impl Store) {
    let (mut tried, mut records) = (0, 0);
    for (theirs, settlement) in histories() {
        // A refused claim leaves its record to the next claim.
        let mut left: Option<Record> = None;
        for asker in claimants() {
            tried += 1;
            let record = match left.take() {
                Some(record) => record,
                None => {
                    records += 1;
                    let theirs = ClaimRequest {
                        key: key(&records.to_string()),
                        ..theirs.clone()
                    };
                    claim_and_settle(store, &theirs, settlement.as_ref()).await
                }
            };
            let part = records.to_string();
            let mine = ClaimRequest {
                key: key(&part),
                ..asker
            };
            let answer = claim(store, &mine).await;
            if may_claim(Some(&record), &mine) {
                let replaced = Some(record).filter(|record| !record.is_expired(NOW));
                let record = mine.record(replaced.as_ref());
                let wanted = ClaimResponse::Applied { replaced };
                assert_eq!(answer, wanted, "for {mine:?}");
                assert_eq!(kept(store, &part, "m-1").await, record, "after {mine:?}");
            } else {
                let wanted = ClaimResponse::ConditionFailed(record.clone());
                assert_eq!(answer, wanted, "for {mine:?}");
                left = Some(record);
            }
        }
        if let Some(record) = left {
            assert_eq!(kept(store, &records.to_string(), "m-1").await, record);
        }
    }
    assert_eq!(tried, 15 * 3 * 3 * 16);
}

fn expiring(settlement: &Settlement, at: u64) -> Settlement {
    match settlement {
        Settlement::Complete { result, .. } => Settlement::Complete {
            result: result.clone(),
            expires_at: at,
        },
        Settlement::Fail { error, .. } => Settlement::fail(error.clone(), "m-1", true, at),
        other => other.clone(),
    }
}

/// A claim of a consumer that looks up earlier attempts takes over only after the lease and its quarantine.
pub async fn takeover_waits_for_quarantine(store: &impl Store) {
    let dead = ClaimRequest {
        lease_until: before(NOW, 31_000),
        ..request("key", "m-1")
    };
    let _ = claim(store, &dead).await;
    let after = |takeover_after| ClaimRequest {
        takeover_after,
        ..request("key", "m-1")
    };
    let early = claim(store, &after(31 * SECOND)).await;
    assert_eq!(refused(early), dead.record(None));
    let just_over = after(31 * SECOND - Duration::from_millis(1));
    assert_eq!(
        applied(claim(store, &just_over).await),
        Some(dead.record(None))
    );
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

/// A record remembers each message that failed under its key, up to the limit, and none of them can claim
/// again.
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

    // Nor can the failed message claim while another message is in progress, or after that message's lease.
    let first = request("two", "m-1");
    let _ = claim(store, &first).await;
    let _ = settle(store, &first, &fail("declined")).await;
    let second = request("two", "m-2");
    let replaced = applied(claim(store, &second).await);
    assert_eq!(replaced.unwrap().failed_message_ids.len(), 1);
    let _ = settle(store, &second, &release()).await;
    let later = ClaimRequest {
        now: NOW + 2 * SECOND,
        ..request("two", "m-1")
    };
    let record = refused(claim(store, &later).await);
    assert_eq!(record.error.as_deref(), Some("declined"));
}

/// Of several concurrent claims, the store admits one.
pub async fn concurrent_claims_admit_one(store: &impl Store) {
    for round in 0..20 {
        let requests: Vec<_> = (0..8).map(|_| request(&round.to_string(), "m-1")).collect();
        let claims = requests.iter().map(|request| claim(store, request));
        let answers = futures_util::future::join_all(claims).await;
        let admitted = answers
            .iter()
            .filter(|answer| matches!(answer, ClaimResponse::Applied { .. }));
        assert_eq!(admitted.count(), 1);
    }
}

/// Keys with special characters stay distinct.
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

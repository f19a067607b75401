//! Promises about the end of a claim: which record it leaves, and which settlements fail.

use super::requests::{
    NOW, SECOND, applied, before, claim, claim_and_settle, complete, fail, kept, key, release,
    renew, request, restore, restore_unknown, settle, settle_by, states,
};
use crate::{
    protocol::{
        ClaimRequest, FailedSettlement, Fingerprint, Owner, ResultPointer, Settlement, State,
        StoredResult,
        decision::{failed_settlement, may_settle},
        record::{MAX_ERROR_BYTES, MAX_RESULT_BYTES},
    },
    store::{SettleResponse, Store},
};

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
        assert_eq!(settle(store, &mine, &wanted).await, SettleResponse::Applied);
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
        assert_eq!(settle(store, &mine, &wanted).await, SettleResponse::Applied);
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
        SettleResponse::Applied
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

/// A store admits a settlement exactly where [`may_settle`] does.
pub async fn settlement_admission_follows_rules(store: &impl Store) {
    let wanted = [
        complete("2"),
        fail("mine"),
        restore(None),
        release(),
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
                let record = claim_and_settle(store, &theirs, settlement.as_ref()).await;
                let mut fence = theirs.fence();
                if !by_its_owner {
                    fence.owner = Owner::fresh();
                }
                fence.lease_until = fenced_lease;
                let admitted = may_settle(Some(&record), &fence);
                let answer = settle_by(store, &fence, wanted, NOW + SECOND).await;
                if admitted {
                    assert_eq!(
                        answer,
                        SettleResponse::Applied,
                        "{wanted:?} over {record:?}"
                    );
                } else {
                    assert_eq!(
                        answer,
                        SettleResponse::ConditionFailed(Some(record.clone())),
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

/// A settlement of a lost lease changes nothing.
pub async fn late_settlement_changes_nothing(store: &impl Store) {
    let slow = ClaimRequest {
        lease_until: before(NOW, 1),
        ..request("key", "m-1")
    };
    let _ = claim(store, &slow).await;
    let quick = request("key", "m-1");
    let _ = claim(store, &quick).await;
    let late = [
        complete("late"),
        fail("late"),
        restore(None),
        restore_unknown(),
        release(),
        renew(NOW + 60 * SECOND),
    ];
    for wanted in &late {
        let answer = settle(store, &slow, wanted).await;
        assert_eq!(
            answer,
            SettleResponse::ConditionFailed(Some(quick.record(Some(&slow.record(None)))))
        );
    }
    assert_eq!(
        settle(store, &quick, &complete("mine")).await,
        SettleResponse::Applied
    );
    for wanted in &late {
        let _ = settle(store, &slow, wanted).await;
    }
    let State::Completed { result } = kept(store, "key", "m-1").await.state else {
        panic!("the newer result is lost")
    };
    assert_eq!(result, StoredResult::Json("mine".into()));
}

/// A settlement that is sent twice is recognized as applied.
pub async fn repeated_settlement_counts_as_applied(store: &impl Store) {
    for wanted in [complete("1"), fail("no"), restore(None)] {
        let mine = request(wanted.name(), "m-1");
        let _ = claim(store, &mine).await;
        let _ = settle(store, &mine, &wanted).await;
        let SettleResponse::ConditionFailed(record) = settle(store, &mine, &wanted).await else {
            panic!("{wanted:?} was applied twice")
        };
        assert_eq!(
            failed_settlement(record.as_ref(), &mine.fence(), &wanted),
            FailedSettlement::AlreadySettled
        );
    }
    // A record whose lease was ended stays in progress and keeps its owner, so the second settlement is
    // applied too.
    let mine = request("ended", "m-1");
    let _ = claim(store, &mine).await;
    for _ in 0..2 {
        assert_eq!(
            settle(store, &mine, &release()).await,
            SettleResponse::Applied
        );
    }
}

/// The largest result fits beside the largest key.
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
        SettleResponse::Applied
    );
}

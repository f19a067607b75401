//! Promises about leases and attempts: how they are renewed, ended and counted.

use std::time::Duration;

use super::requests::{
    NOW, SECOND, applied, before, claim, complete, fail, kept, refused, release, renew, request,
    restore_unknown, settle, settle_by,
};
use crate::{
    protocol::{
        AttemptEnd, ClaimRequest, FailedSettlement, PriorState, Settlement, State,
        decision::failed_settlement,
    },
    store::{ClaimResponse, SettleResponse, Store},
};

/// After its lease has ended, a record can be taken over at once.
pub async fn ended_lease_is_taken_over_at_once(store: &impl Store) {
    let mine = request("key", "m-1");
    let _ = claim(store, &mine).await;
    assert_eq!(
        settle(store, &mine, &release()).await,
        SettleResponse::Applied
    );
    // The attempt ended a second after `NOW`.
    let at = |now| ClaimRequest {
        now,
        ..request("key", "m-1")
    };
    let early = claim(store, &at(NOW + SECOND)).await;
    assert!(matches!(early, ClaimResponse::ConditionFailed(_)));
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

/// The renewal before an attempt alone counts the attempt. A takeover keeps the count, the recorded end of a
/// handler removes it, and a restore without such an end puts the earlier count back.
pub async fn attempt_alone_is_counted_until_its_end(store: &impl Store) {
    let dead = |part: &str| ClaimRequest {
        lease_until: before(NOW, 2),
        ..request(part, "m-1")
    };
    let alone = |n: u64| Settlement::Renew {
        lease_until: before(NOW, 1),
        expires_at: NOW.as_secs() + 9,
        exclusive_attempts: n,
    };
    let ends = [
        ("completed", complete("1")),
        ("failed", fail("declined")),
        ("ended", release()),
    ];
    for (part, end) in ends {
        let mine = dead(part);
        let _ = claim(store, &mine).await;
        let fence = mine.fence().with_lease(mine.lease_until);
        let answer = settle_by(store, &fence, &alone(2), NOW).await;
        assert_eq!(answer, SettleResponse::Applied);
        let late = settle_by(store, &fence, &alone(3), NOW).await;
        let record = alone(2).apply(&mine.record(None), NOW).unwrap();
        assert_eq!(late, SettleResponse::ConditionFailed(Some(record.clone())));

        let next = request(part, "m-1");
        assert_eq!(applied(claim(store, &next).await), Some(record.clone()));
        let taken_over = next.record(Some(&record));
        assert_eq!(taken_over.exclusive_attempts, 2);
        assert_eq!(kept(store, part, "m-1").await, taken_over);
        assert_eq!(settle(store, &next, &end).await, SettleResponse::Applied);
        let left = kept(store, part, "m-1").await;
        assert_eq!(left.exclusive_attempts, 0, "{part}");
        assert_eq!(Some(left), end.apply(&taken_over, NOW + SECOND));
    }
    for (part, began, count) in [("began", true, 0), ("did not begin", false, 2)] {
        let mine = dead(part);
        let _ = claim(store, &mine).await;
        let fence = mine.fence().with_lease(mine.lease_until);
        let _ = settle_by(store, &fence, &alone(2), NOW).await;
        let next = request(part, "m-1");
        let replaced = applied(claim(store, &next).await);
        let fence = next.fence().with_lease(next.lease_until);
        let _ = settle_by(store, &fence, &alone(3), NOW).await;
        assert_eq!(kept(store, part, "m-1").await.exclusive_attempts, 3);
        let claimed = PriorState::over(replaced);
        let restore = Settlement::Restore(if began {
            claimed.with_recorded_end()
        } else {
            claimed
        });
        assert_eq!(
            settle(store, &next, &restore).await,
            SettleResponse::Applied
        );
        let left = kept(store, part, "m-1").await;
        assert_eq!(left.exclusive_attempts, count, "{part}");
    }
}

/// When a claim is abandoned, its end is `not_started` only if that claim opened the attempt.
pub async fn abandon_of_first_claim_is_recorded(store: &impl Store) {
    let abandon = Settlement::Release {
        last_end: Some(AttemptEnd::NotStarted),
    };
    let first = request("key", "m-1");
    let _ = claim(store, &first).await;
    let fence = first.fence().with_first_claim(first.now);
    let answer = settle_by(store, &fence, &abandon, NOW).await;
    assert_eq!(answer, SettleResponse::Applied);
    let left = kept(store, "key", "m-1").await;
    assert_eq!(left.last_end, Some(AttemptEnd::NotStarted));

    let second = ClaimRequest {
        now: NOW + SECOND,
        ..request("key", "m-1")
    };
    let _ = claim(store, &second).await;
    let fence = second.fence().with_first_claim(second.now);
    let answer = settle_by(store, &fence, &abandon, NOW + SECOND).await;
    let record = second.record(Some(&left));
    assert_eq!(answer, SettleResponse::ConditionFailed(Some(record)));
}

/// A renewed lease keeps other claims out and can be renewed again, and its claim can still be settled.
pub async fn renewed_lease_stays_exclusive(store: &impl Store) {
    let mine = request("key", "m-1");
    let _ = claim(store, &mine).await;
    let mut lease_until = mine.lease_until;
    for _ in 0..2 {
        let fence = mine.fence().with_lease(lease_until);
        lease_until = lease_until + 30 * SECOND;
        let wanted = renew(lease_until);
        let answer = settle_by(store, &fence, &wanted, NOW + SECOND).await;
        assert_eq!(answer, SettleResponse::Applied);
        let record = kept(store, "key", "m-1").await;
        assert_eq!(Some(&record), wanted.apply(&record, NOW + SECOND).as_ref());
        // The same request again, as after a lost response.
        let again = settle_by(store, &fence, &wanted, NOW + SECOND).await;
        let SettleResponse::ConditionFailed(refused_by) = again else {
            panic!("the renewal was applied twice")
        };
        assert_eq!(
            failed_settlement(refused_by.as_ref(), &fence, &wanted),
            FailedSettlement::AlreadySettled
        );
    }
    let during = ClaimRequest {
        now: lease_until,
        ..request("key", "m-1")
    };
    let _ = refused(claim(store, &during).await);
    assert_eq!(
        settle(store, &mine, &complete("1")).await,
        SettleResponse::Applied
    );
}

/// A renewal that arrives after the end of its claim, or after the next renewal, changes nothing.
pub async fn late_renewal_changes_nothing(store: &impl Store) {
    let ends = [
        release(),
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
        let late = settle_by(store, &fence, &late, NOW + SECOND).await;
        let expected = SettleResponse::ConditionFailed(Some(left.clone()));
        assert_eq!(late, expected, "after {end:?}");
        assert_eq!(kept(store, &part, "m-1").await, left, "after {end:?}");
    }
}

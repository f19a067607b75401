//! The claims and settlements that the promises send, and checks of the store's responses.

use std::time::Duration;

use crate::{
    protocol::{
        AfterFailure, AttemptEnd, ClaimRequest, FencingToken, Fingerprint, Key, Namespace, Owner,
        PreviousRecord, PriorState, Record, Settlement, StoredResult, Timestamp,
    },
    store::{ClaimResponse, RequestContext, SettleResponse, Store},
};

pub(super) const SECOND: Duration = Duration::from_secs(1);

/// Any time will do, because a store has no clock.
pub(super) const NOW: Timestamp = Timestamp::from_millis(1_800_000_000_500);

pub(super) fn before(at: Timestamp, millis: u64) -> Timestamp {
    Timestamp::from_millis(at.as_millis() - millis)
}

pub(super) fn key(part: &str) -> Key {
    Key::new(&Namespace::new("conformance").unwrap(), [part]).unwrap()
}

pub(super) fn request(part: &str, message_id: &str) -> ClaimRequest {
    ClaimRequest {
        key: key(part),
        owner: Owner::fresh(),
        fingerprint: Some(Fingerprint::of(b"payload")),
        message_id: message_id.into(),
        now: NOW,
        lease_until: NOW + 30 * SECOND,
        takeover_after: Duration::ZERO,
        expires_at: (NOW + 3600 * SECOND).as_secs(),
        after_failure: AfterFailure::Retry,
    }
}

pub(super) async fn claim(store: &impl Store, request: &ClaimRequest) -> ClaimResponse {
    store
        .claim(request, &RequestContext::default())
        .await
        .unwrap()
}

#[track_caller]
pub(super) fn applied(answer: ClaimResponse) -> Option<Record> {
    match answer {
        ClaimResponse::Applied { replaced } => replaced,
        ClaimResponse::ConditionFailed(record) => panic!("refused by {record:?}"),
    }
}

#[track_caller]
pub(super) fn refused(answer: ClaimResponse) -> Record {
    match answer {
        ClaimResponse::ConditionFailed(record) => record,
        ClaimResponse::Applied { replaced } => panic!("admitted over {replaced:?}"),
    }
}

/// Returns the record in the store. It comes from a claim whose condition fails unless the record is absent.
pub(super) async fn kept(store: &impl Store, part: &str, message_id: &str) -> Record {
    let probe = ClaimRequest {
        now: Timestamp::default(),
        after_failure: AfterFailure::Replay,
        ..request(part, message_id)
    };
    refused(claim(store, &probe).await)
}

pub(super) fn complete(json: &str) -> Settlement {
    Settlement::Complete {
        result: StoredResult::Json(json.into()),
        expires_at: (NOW + 7200 * SECOND).as_secs(),
    }
}

pub(super) fn fail(error: &str) -> Settlement {
    fail_message(error, "m-1")
}

pub(super) fn fail_message(error: &str, message_id: &str) -> Settlement {
    Settlement::fail(
        error.into(),
        message_id,
        true,
        (NOW + 7200 * SECOND).as_secs(),
    )
}

pub(super) fn release() -> Settlement {
    let last_end = Some(AttemptEnd::Panic);
    Settlement::Release { last_end }
}

pub(super) fn renew(lease_until: Timestamp) -> Settlement {
    Settlement::Renew {
        lease_until,
        expires_at: (NOW + 7200 * SECOND).as_secs(),
        exclusive_attempts: 1,
    }
}

pub(super) fn restore(replaced: Option<Record>) -> Settlement {
    Settlement::Restore(PriorState::over(replaced))
}

pub(super) async fn settle(
    store: &impl Store,
    request: &ClaimRequest,
    wanted: &Settlement,
) -> SettleResponse {
    settle_by(store, &request.fence(), wanted, NOW + SECOND).await
}

pub(super) async fn settle_by(
    store: &impl Store,
    fence: &FencingToken,
    wanted: &Settlement,
    now: Timestamp,
) -> SettleResponse {
    let context = RequestContext::default();
    store.settle(fence, wanted, now, &context).await.unwrap()
}

/// Claims a new key, and settles the claim. Returns the record that the rules say is left.
pub(super) async fn claim_and_settle(
    store: &impl Store,
    request: &ClaimRequest,
    wanted: Option<&Settlement>,
) -> Record {
    let _ = claim(store, request).await;
    let claimed = request.record(None);
    let Some(wanted) = wanted else {
        return claimed;
    };
    let _ = settle(store, request, wanted).await;
    wanted.apply(&claimed, NOW + SECOND).unwrap()
}

/// Returns a settlement that ends a lease without a trace of its attempt.
pub(super) fn restore_unknown() -> Settlement {
    Settlement::Restore(PriorState {
        before: PreviousRecord::Unknown,
        ..PriorState::over(None)
    })
}

/// Returns every state of a record, on each side of every bound.
pub(super) fn states() -> Vec<(Option<Settlement>, Timestamp)> {
    let settlements = [
        None,
        Some(release()),
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

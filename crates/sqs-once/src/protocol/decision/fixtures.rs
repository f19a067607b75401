//! Claims, records and settlements for the tests of the rules.

use std::time::Duration;

use super::{PreviousRecord, PriorState, Settlement};
use crate::protocol::{
    key::{Fingerprint, Key, Namespace},
    record::{
        AfterFailure, AttemptEnd, ClaimRequest, MAX_FAILED_MESSAGES, Owner, Record, State,
        StoredResult, Timestamp,
    },
};

pub(super) const NOW: Timestamp = Timestamp::from_millis(1_800_000_000_000);
pub(super) const EARLIER: Timestamp = Timestamp::from_millis(1_799_999_000_000);

pub(super) fn request(message_id: &str, payload: &str) -> ClaimRequest {
    ClaimRequest {
        key: Key::new(&Namespace::new("test").unwrap(), ["key"]).unwrap(),
        owner: Owner::fresh(),
        fingerprint: Some(Fingerprint::of(payload.as_bytes())),
        message_id: message_id.into(),
        now: NOW,
        lease_until: NOW + Duration::from_secs(30),
        takeover_after: Duration::ZERO,
        expires_at: (NOW + Duration::from_secs(3600)).as_secs(),
        after_failure: AfterFailure::Retry,
    }
}

/// Returns a record in this state, written by the claim `theirs`.
pub(super) fn record(theirs: &ClaimRequest, state: State) -> Record {
    let mut record = Record {
        first_claimed_at: Some(EARLIER),
        ..theirs.record(None)
    };
    if state == State::Failed {
        record = failed_record(theirs, [theirs.message_id.clone()]);
    }
    Record { state, ..record }
}

pub(super) fn failed_record<const N: usize>(theirs: &ClaimRequest, ids: [String; N]) -> Record {
    Record {
        state: State::Failed,
        error: Some("declined".into()),
        failed_message_ids: ids.into(),
        first_claimed_at: None,
        ..theirs.record(None)
    }
}

pub(super) fn full_record(theirs: &ClaimRequest) -> Record {
    let ids: [String; MAX_FAILED_MESSAGES] = std::array::from_fn(|n| format!("failed-{n}"));
    failed_record(theirs, ids)
}

pub(super) fn live() -> State {
    State::InProgress { lease_until: NOW }
}

pub(super) fn ended() -> State {
    State::InProgress {
        lease_until: Timestamp::from_millis(NOW.as_millis() - 1),
    }
}

pub(super) fn completed() -> State {
    State::Completed {
        result: StoredResult::Json("1".into()),
    }
}

/// Returns every settlement, with `Restore` over an absent, a failed, a taken-over and an unknown record.
pub(super) fn settlements() -> [Settlement; 7] {
    let expires_at = NOW.as_secs() + 3600;
    let theirs = request("m-0", "p");
    let over = |record| Settlement::Restore(PriorState::over(record));
    [
        Settlement::Complete {
            result: StoredResult::Json("2".into()),
            expires_at,
        },
        Settlement::fail("declined".into(), "m-1", true, expires_at),
        Settlement::Release {
            last_end: Some(AttemptEnd::Panic),
        },
        over(None),
        over(Some(failed_record(&theirs, ["m-0".into()]))),
        over(Some(record(&theirs, ended()))),
        Settlement::Restore(PriorState {
            before: PreviousRecord::Unknown,
            ..PriorState::over(None)
        }),
    ]
}

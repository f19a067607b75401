//! [`may_claim`]: which claims are admitted, and why the condition of a claim failed.

use super::{FailedSettlement, PriorState, Settlement, failed_settlement};
use crate::{
    flawed::flawed,
    protocol::record::{
        AfterFailure, ClaimRequest, MAX_FAILED_MESSAGES, Owner, Record, State, StoredResult,
        Timestamp,
    },
};

/// Returns whether a claim succeeds over `record` (`None`: no record exists).
///
/// | record | a claim succeeds |
/// | --- | --- |
/// | absent, or past `expires_at` | always |
/// | `IN_PROGRESS` | after its lease and [`takeover_after`](ClaimRequest::takeover_after), with the same payload |
/// | `COMPLETED` | never |
/// | `FAILED` | with [`AfterFailure::Retry`], below [`MAX_FAILED_MESSAGES`] failed messages |
///
/// While the record is kept, no message in `failed_message_ids` can claim it.
///
/// This function is the condition of every claim. `DynamoStore` expresses the same rule as a condition
/// expression, and [`crate::store::MemoryStore`] calls the function. The conformance suite compares both
/// stores with it.
#[must_use]
pub fn may_claim(record: Option<&Record>, request: &ClaimRequest) -> bool {
    let Some(record) = record.filter(|record| !record.is_expired(request.now)) else {
        return true;
    };
    let failed = &record.failed_message_ids;
    if failed.contains(&request.message_id) && !flawed!("a failed message is claimed again") {
        return false;
    }
    match &record.state {
        // A takeover: the lease of another worker expired, and the payload is the same.
        State::InProgress { lease_until } => {
            (*lease_until < request.takes_over_leases_before()
                || flawed!("a live lease is taken over"))
                && same_payload(record, request)
        }
        State::Completed { .. } => flawed!("a completed key is claimed"),
        // The message was sent anew, or redriven from the dead-letter queue. Its payload may have been
        // corrected.
        State::Failed => {
            request.after_failure == AfterFailure::Retry && failed.len() < MAX_FAILED_MESSAGES
        }
    }
}

/// Compares the fingerprints of record and claim.
///
/// If the record or the claim has no fingerprint, we treat the payloads as equal: fingerprints may be
/// switched off, and a record may be older than the setting. We do the same for fingerprints of two different
/// known schemes, because then the setting changed during the record's retention.
fn same_payload(record: &Record, request: &ClaimRequest) -> bool {
    match (&record.fingerprint, &request.fingerprint) {
        (Some(recorded), Some(claimed)) => !recorded.differs_from(claimed),
        _ => true,
    }
}

/// Why the condition of a claim or insert failed.
#[doc(hidden)]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FailedClaim {
    /// The record carries this claim's owner: the request was applied and its response was lost. The worker
    /// holds the claim.
    Held(PriorState),
    /// Another claim wrote the record. The handler must not run.
    Rejected(Rejection),
}

/// Why the handler must not run.
#[doc(hidden)]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rejection {
    /// The key was used earlier for a different payload. The record stays unchanged.
    KeyReused,
    /// The operation is completed. Holds the stored result.
    Duplicate(StoredResult),
    /// This message has failed permanently, or another message with this key has and [`AfterFailure::Replay`]
    /// is set. Holds the stored error.
    FailedBefore(String),
    /// [`MAX_FAILED_MESSAGES`] messages failed permanently under this key. Holds the last error.
    TooManyFailures(String),
    /// Another worker holds the claim.
    Conflict {
        /// Owner token of the other claim, if the record has one.
        owner: Option<Owner>,
        /// When this claim may take over: the end of the other claim's lease, which may have passed, plus
        /// [`takeover_after`](ClaimRequest::takeover_after).
        lease_until: Timestamp,
    },
    /// An attempt with a different payload is open, and the lease of its claim expired.
    PayloadConflict {
        /// Claim time of the earliest open attempt, if the record has it.
        open_since: Option<Timestamp>,
    },
}

/// Interprets the record on which the condition of a claim failed.
#[doc(hidden)]
#[must_use]
pub fn failed_claim(record: Record, request: &ClaimRequest) -> FailedClaim {
    let in_progress = matches!(record.state, State::InProgress { .. });
    if in_progress && record.owner.as_ref() == Some(&request.owner) {
        return FailedClaim::Held(PriorState::recovered(&record, request));
    }
    FailedClaim::Rejected(rejection(record, request))
}

/// Interprets the record on which the condition of an insert failed.
///
/// An insert is a claim and its `settlement` in one write.
#[doc(hidden)]
#[must_use]
pub(crate) fn failed_insert(
    record: Record,
    request: &ClaimRequest,
    settlement: &Settlement,
) -> FailedClaim {
    let fence = request.fence();
    match failed_settlement(Some(&record), &fence, settlement) {
        FailedSettlement::AlreadySettled => {
            FailedClaim::Held(PriorState::recovered(&record, request))
        }
        FailedSettlement::LeaseLost => FailedClaim::Rejected(rejection(record, request)),
    }
}

/// Interprets the `record` of another owner on which the condition of a claim failed.
#[doc(hidden)]
#[must_use]
pub fn rejection(record: Record, request: &ClaimRequest) -> Rejection {
    let same_payload = same_payload(&record, request);
    let error = (record.error).unwrap_or_else(|| "no error was stored".into());
    match record.state {
        State::Completed { result } if same_payload => Rejection::Duplicate(result),
        _ if record.failed_message_ids.contains(&request.message_id) => {
            Rejection::FailedBefore(error)
        }
        State::Completed { .. } | State::Failed if !same_payload => Rejection::KeyReused,
        State::InProgress { lease_until }
            if !same_payload && lease_until < request.takes_over_leases_before() =>
        {
            Rejection::PayloadConflict {
                open_since: record
                    .first_claimed_at
                    .filter(|at| *at != Timestamp::default()),
            }
        }
        State::InProgress { lease_until } => Rejection::Conflict {
            owner: record.owner,
            lease_until: lease_until + request.takeover_after,
        },
        State::Failed if record.failed_message_ids.len() >= MAX_FAILED_MESSAGES => {
            Rejection::TooManyFailures(error)
        }
        State::Failed | State::Completed { .. } => Rejection::FailedBefore(error),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::protocol::decision::{
        PreviousRecord,
        fixtures::{
            EARLIER, NOW, completed, ended, failed_record, full_record, live, record, request,
            settlements,
        },
    };

    fn not_mine(record: Record, request: &ClaimRequest) -> Rejection {
        match failed_claim(record, request) {
            FailedClaim::Rejected(rejection) => rejection,
            FailedClaim::Held(claimed) => panic!("mine: {claimed:?}"),
        }
    }

    #[test]
    fn claim_admission_follows_rule_table() {
        let theirs = request("m-1", "payload");
        let again = request("m-1", "payload");
        let resent = request("m-2", "payload");
        let changed = request("m-1", "another payload");
        let corrected = request("m-2", "corrected payload");
        let strict = ClaimRequest {
            after_failure: AfterFailure::Replay,
            ..request("m-2", "corrected payload")
        };
        let unchecked = ClaimRequest {
            fingerprint: None,
            ..request("m-1", "")
        };
        for (state, request, admitted) in [
            (live(), &again, false),
            (live(), &resent, false),
            (live(), &changed, false),
            (ended(), &again, true),
            (ended(), &resent, true),
            (ended(), &changed, false),
            (ended(), &unchecked, true),
            (completed(), &again, false),
            (completed(), &resent, false),
            (State::Failed, &again, false),
            (State::Failed, &changed, false),
            (State::Failed, &resent, true),
            (State::Failed, &corrected, true),
            (State::Failed, &strict, false),
        ] {
            let kept = record(&theirs, state);
            assert_eq!(
                may_claim(Some(&kept), request),
                admitted,
                "{kept:?} {request:?}"
            );
            let expired = Record {
                expires_at: NOW.as_secs() - 1,
                ..kept.clone()
            };
            assert!(may_claim(Some(&expired), request), "{expired:?}");
            let on_the_second = Record {
                expires_at: NOW.as_secs(),
                ..kept
            };
            assert_eq!(may_claim(Some(&on_the_second), request), admitted);
        }
        assert!(may_claim(None, &again));
        let without_fingerprint = Record {
            fingerprint: None,
            ..record(&theirs, ended())
        };
        assert!(may_claim(Some(&without_fingerprint), &changed));
    }

    #[test]
    fn takeover_waits_for_lease_and_quarantine() {
        let theirs = request("m-1", "payload");
        let held = record(&theirs, live());
        let until = |now| ClaimRequest {
            now,
            takeover_after: Duration::from_secs(31),
            ..request("m-1", "payload")
        };
        let end = NOW + Duration::from_secs(31);
        assert!(!may_claim(Some(&held), &until(end)));
        assert!(may_claim(
            Some(&held),
            &until(end + Duration::from_millis(1))
        ));
        let conflict = Rejection::Conflict {
            owner: Some(theirs.owner.clone()),
            lease_until: end,
        };
        assert_eq!(not_mine(held, &until(end)), conflict);
        // A failed record has no lease to wait for.
        let failed = record(&theirs, State::Failed);
        let resent = ClaimRequest {
            message_id: "m-2".into(),
            ..until(NOW)
        };
        assert!(may_claim(Some(&failed), &resent));
    }

    #[test]
    fn claim_of_failed_message_is_refused() {
        let other = request("m-2", "payload");
        let mut kept = record(&other, ended());
        kept.failed_message_ids.insert("m-1".into());
        assert!(!may_claim(Some(&kept), &request("m-1", "payload")));
        assert!(may_claim(Some(&kept), &other));
        kept.error = Some("declined".into());
        let rejection = not_mine(kept, &request("m-1", "payload"));
        assert_eq!(rejection, Rejection::FailedBefore("declined".into()));
    }

    #[test]
    fn claim_after_20_failed_messages_is_refused() {
        let mut full = full_record(&request("m-1", "p"));
        let next = request("m-2", "p");
        assert!(!may_claim(Some(&full), &next));
        assert_eq!(
            not_mine(full.clone(), &next),
            Rejection::TooManyFailures("declined".into())
        );
        full.failed_message_ids.pop_first();
        assert!(may_claim(Some(&full), &next));
    }

    #[test]
    fn own_record_means_lost_response() {
        let mine = request("m-1", "payload");
        let recovered = |record: Record| match failed_claim(record, &mine) {
            FailedClaim::Held(claimed) => claimed,
            refused @ FailedClaim::Rejected(_) => panic!("{refused:?}"),
        };
        let first = recovered(mine.record(None));
        assert_eq!(first, PriorState::over(None));
        // A takeover from an earlier attempt that is open.
        let second = recovered(mine.record(Some(&record(&request("m-1", "payload"), ended()))));
        assert_eq!(second.before, PreviousRecord::Unknown);
        assert_eq!((second.open_since, second.attempts), (Some(EARLIER), 1));
        let failed = Record {
            attempts: 0,
            created_at: None,
            ..failed_record(&mine, ["m-0".into()])
        };
        let over_failed = recovered(mine.record(Some(&failed)));
        assert_eq!(over_failed.before, PreviousRecord::Unknown);
        // The failed attempt may be open since the same millisecond.
        let third = recovered(mine.record(Some(&failed_record(&mine, ["m-0".into()]))));
        assert_eq!(third.before, PreviousRecord::Unknown);
        assert_eq!(third.open_since, Some(mine.now));
    }

    #[test]
    fn own_insert_means_lost_response() {
        let (mine, theirs) = (request("m-1", "payload"), request("m-1", "payload"));
        let [complete, fail, ..] = settlements();
        for settlement in [complete.clone(), fail.clone()] {
            let inserted = settlement.apply(&mine.record(None), NOW).unwrap();
            let refused = failed_insert(inserted, &mine, &settlement);
            assert!(matches!(refused, FailedClaim::Held(_)), "{settlement:?}");
        }
        for other in [
            complete.apply(&theirs.record(None), NOW).unwrap(),
            // The result of an earlier round.
            fail.apply(&mine.record(None), NOW).unwrap(),
            record(&mine, completed()),
        ] {
            let refused = failed_insert(other, &mine, &complete);
            assert!(matches!(refused, FailedClaim::Rejected(_)), "{refused:?}");
        }
    }

    #[test]
    fn other_payload_is_reused_key_or_conflict() {
        let theirs = request("m-1", "payload");
        let mine = request("m-2", "another payload");
        assert_eq!(
            not_mine(record(&theirs, completed()), &mine),
            Rejection::KeyReused
        );
        assert_eq!(not_mine(full_record(&theirs), &mine), Rejection::KeyReused);
        let conflict = Rejection::Conflict {
            owner: Some(theirs.owner.clone()),
            lease_until: NOW,
        };
        assert_eq!(not_mine(record(&theirs, live()), &mine), conflict);
        for (first_claimed_at, open_since) in [
            (Some(EARLIER), Some(EARLIER)),
            (Some(Timestamp::default()), None),
            (None, None),
        ] {
            let left = Record {
                first_claimed_at,
                ..record(&theirs, ended())
            };
            assert_eq!(
                not_mine(left, &mine),
                Rejection::PayloadConflict { open_since }
            );
        }
    }

    #[test]
    fn completed_record_returns_its_result() {
        let kept = record(&request("m-1", "p"), completed());
        let refused = not_mine(kept, &request("m-2", "p"));
        assert_eq!(
            refused,
            Rejection::Duplicate(StoredResult::Json("1".into()))
        );
    }

    #[test]
    fn failed_record_returns_its_error() {
        let kept = record(&request("m-1", "p"), State::Failed);
        let strict = ClaimRequest {
            after_failure: AfterFailure::Replay,
            ..request("m-2", "p")
        };
        for asker in [request("m-1", "p"), request("m-1", "other"), strict] {
            let refused = not_mine(kept.clone(), &asker);
            assert_eq!(refused, Rejection::FailedBefore("declined".into()));
        }
    }

    #[test]
    fn live_lease_is_conflict() {
        let theirs = request("m-1", "p");
        let refused = not_mine(record(&theirs, live()), &request("m-1", "p"));
        let conflict = Rejection::Conflict {
            owner: Some(theirs.owner),
            lease_until: NOW,
        };
        assert_eq!(refused, conflict);
    }
}

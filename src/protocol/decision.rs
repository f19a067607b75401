//! Who may claim, and what a refused write means.
//!
//! DynamoDB answers a refused conditional write with the item that refused it. From that
//! record and what was asked, everything follows, without a second read.

use super::record::{
    AfterFailure, ClaimRequest, Fence, MAX_ERROR_BYTES, Owner, Record, State, StoredResult,
    Timestamp,
};

/// Whether a claim may be made over `record` (`None`: there is none).
///
/// This is the claim's condition. [`crate::store::DynamoStore`] writes the same rule as a
/// condition expression, [`crate::store::MemoryStore`] calls this function, and one
/// conformance suite holds both to it.
#[must_use]
pub fn may_claim(record: Option<&Record>, request: &ClaimRequest) -> bool {
    let Some(record) = record else { return true };
    if record.expires_at < request.now.as_secs() {
        return true;
    }
    match &record.state {
        // Its worker died or gave up, and it is the same operation.
        State::InProgress { lease_until } => {
            *lease_until < request.now && same_payload(record, request)
        }
        State::Completed { .. } => false,
        // A new send, or a redrive from the dead-letter queue, may try again, with a
        // mended payload too.
        State::Failed { .. } => {
            request.after_failure == AfterFailure::Retry
                && record.message_id.as_deref() != Some(&request.message_id)
        }
    }
}

/// A fingerprint that one side does not have (switched off, or a record of before it was
/// switched on) says nothing.
fn same_payload(record: &Record, request: &ClaimRequest) -> bool {
    match (&record.fingerprint, &request.fingerprint) {
        (Some(theirs), Some(mine)) => theirs == mine,
        _ => true,
    }
}

/// What a refused claim or insert means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClaimRefused {
    /// The record is what was asked for: a first try was applied and its answer was lost. Of a
    /// claim, it is held; whether it took over from somebody was in the lost answer.
    Mine,
    /// It is not.
    NotMine(Refusal),
}

/// Why nothing may run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The key was used before for another payload. The record is left alone.
    KeyReused,
    /// The operation is done; this is its result.
    Duplicate(StoredResult),
    /// It failed for good before; this is why.
    FailedBefore(String),
    /// Somebody else is at it.
    Conflict {
        /// Who, if the record says so.
        owner: Option<Owner>,
        /// Until when, at the latest, it is theirs alone.
        lease_until: Timestamp,
    },
}

/// Reads the record that refused a claim.
#[must_use]
pub fn claim_refused(record: Record, request: &ClaimRequest) -> ClaimRefused {
    let in_progress = matches!(record.state, State::InProgress { .. });
    if in_progress && record.owner.as_ref() == Some(&request.owner) {
        return ClaimRefused::Mine;
    }
    ClaimRefused::NotMine(refusal(record, request))
}

/// Reads the record that refused an insert of `inserted`: a record that is written as it is to
/// stay, on the claim's condition.
#[must_use]
pub fn insert_refused(record: Record, request: &ClaimRequest, inserted: &Record) -> ClaimRefused {
    if record.owner.as_ref() == Some(&request.owner) && record.state == inserted.state {
        return ClaimRefused::Mine;
    }
    ClaimRefused::NotMine(refusal(record, request))
}

/// Reads a record that [may not](may_claim) be claimed and is not the asker's.
#[must_use]
pub fn refusal(record: Record, request: &ClaimRequest) -> Refusal {
    if !same_payload(&record, request) {
        return Refusal::KeyReused;
    }
    match record.state {
        State::Completed { result } => Refusal::Duplicate(result),
        State::Failed { error } => Refusal::FailedBefore(error),
        State::InProgress { lease_until } => Refusal::Conflict {
            owner: record.owner,
            lease_until,
        },
    }
}

/// How a claim is ended. Each is one write, fenced by [`Fence`].
///
/// ```
/// use sqs_once::protocol::Settlement;
///
/// assert_eq!(Settlement::fail("declined".into(), 1_800_000_000).name(), "fail");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Settlement {
    /// The handler is done.
    Complete {
        /// What it returned.
        result: StoredResult,
        /// Until when the outcome is remembered, in seconds since the epoch.
        expires_at: u64,
    },
    /// The handler said: permanent failure.
    Fail {
        /// Why.
        error: String,
        /// Until when the outcome is remembered, in seconds since the epoch.
        expires_at: u64,
    },
    /// Nothing has happened: the record goes, and the next attempt is a fresh one.
    Release,
    /// Nobody knows how far it got: the lease ends now, and the next attempt is told. Not
    /// earlier than now: a claim of before, late on its way, must not pass over it.
    Abandon,
}

impl Settlement {
    /// [`Settlement::Fail`], its text cut to [`MAX_ERROR_BYTES`] at a character's edge.
    #[must_use]
    pub fn fail(mut error: String, expires_at: u64) -> Self {
        error.truncate(error.floor_char_boundary(MAX_ERROR_BYTES));
        Self::Fail { error, expires_at }
    }

    /// The word for it in logs and errors.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Complete { .. } => "complete",
            Self::Fail { .. } => "fail",
            Self::Release => "release",
            Self::Abandon => "abandon",
        }
    }

    /// What this makes of a record; `None` deletes it.
    #[must_use]
    pub fn apply(&self, record: &Record, now: Timestamp) -> Option<Record> {
        let (state, expires_at) = match self.clone() {
            Self::Release => return None,
            Self::Abandon => (State::InProgress { lease_until: now }, record.expires_at),
            Self::Complete { result, expires_at } => (State::Completed { result }, expires_at),
            Self::Fail { error, expires_at } => (State::Failed { error }, expires_at),
        };
        Some(Record {
            state,
            expires_at,
            updated_at: Some(now),
            ..record.clone()
        })
    }
}

/// Whether `fence` may settle `record`: the condition of every write after the claim.
#[must_use]
pub fn may_settle(record: Option<&Record>, fence: &Fence) -> bool {
    record.is_some_and(|record| {
        record.owner.as_ref() == Some(&fence.owner)
            && matches!(record.state, State::InProgress { .. })
    })
}

/// What a refused settlement means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SettlementRefused {
    /// A first try was applied and its answer was lost: all is as wanted.
    AlreadySettled,
    /// The lease ran out and somebody else went on, or the record is gone. Nothing of
    /// theirs was touched.
    LeaseLost,
}

/// Reads the record (`None`: there is none) that refused a settlement.
#[must_use]
pub fn settlement_refused(
    record: Option<&Record>,
    fence: &Fence,
    wanted: &Settlement,
) -> SettlementRefused {
    let as_wanted = match (wanted, record) {
        (wanted, None) => *wanted == Settlement::Release,
        (wanted, Some(record)) => {
            record.owner.as_ref() == Some(&fence.owner)
                && match (wanted, &record.state) {
                    // A program without a fence may have completed my record with its own.
                    (Settlement::Complete { result, .. }, State::Completed { result: kept }) => {
                        result == kept
                    }
                    (Settlement::Fail { .. }, State::Failed { .. }) => true,
                    _ => false,
                }
        }
    };
    if as_wanted {
        SettlementRefused::AlreadySettled
    } else {
        SettlementRefused::LeaseLost
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::protocol::key::{Fingerprint, Key, Namespace};

    const NOW: Timestamp = Timestamp::from_millis(1_800_000_000_000);

    fn request(message_id: &str, payload: &str) -> ClaimRequest {
        ClaimRequest {
            key: Key::new(&Namespace::new("test").unwrap(), ["key"]).unwrap(),
            owner: Owner::fresh(),
            fingerprint: Some(Fingerprint::of(payload.as_bytes())),
            message_id: message_id.into(),
            now: NOW,
            lease_until: NOW + Duration::from_secs(30),
            expires_at: (NOW + Duration::from_secs(3600)).as_secs(),
            after_failure: AfterFailure::Retry,
        }
    }

    /// A record as `theirs` left it in this state.
    fn record(theirs: &ClaimRequest, state: State) -> Record {
        Record {
            state,
            ..theirs.record()
        }
    }

    fn live() -> State {
        State::InProgress { lease_until: NOW }
    }

    fn dead() -> State {
        State::InProgress {
            lease_until: Timestamp::from_millis(NOW.as_millis() - 1),
        }
    }

    fn completed() -> State {
        State::Completed {
            result: StoredResult::Json("1".into()),
        }
    }

    fn failed() -> State {
        State::Failed {
            error: "declined".into(),
        }
    }

    #[test]
    fn an_insert_that_is_refused_by_itself_was_applied_before() {
        let (mine, theirs) = (request("m-1", "payload"), request("m-1", "payload"));
        let inserted = record(&mine, completed());
        let refused = |by| insert_refused(by, &mine, &inserted);
        let itself = refused(record(&mine, completed()));
        assert!(matches!(itself, ClaimRefused::Mine));
        for other in [
            record(&theirs, completed()),
            // An answer of before, to another round.
            record(&mine, failed()),
            record(&theirs, failed()),
        ] {
            assert!(matches!(refused(other), ClaimRefused::NotMine(_)));
        }
    }

    #[test]
    fn a_claim_is_admitted_by_the_rows_of_the_condition_and_no_other() {
        let theirs = request("m-1", "payload");
        let again = request("m-1", "payload");
        let resent = request("m-2", "payload");
        let changed = request("m-1", "another payload");
        let mended = request("m-2", "mended payload");
        let strict = ClaimRequest {
            after_failure: AfterFailure::Replay,
            ..request("m-2", "mended payload")
        };
        let unchecked = ClaimRequest {
            fingerprint: None,
            ..request("m-1", "")
        };
        for (state, request, admitted) in [
            (live(), &again, false),
            (live(), &resent, false),
            (live(), &changed, false),
            (dead(), &again, true),
            (dead(), &resent, true),
            (dead(), &changed, false),
            (dead(), &unchecked, true),
            (completed(), &again, false),
            (completed(), &resent, false),
            (failed(), &again, false),
            (failed(), &changed, false),
            (failed(), &resent, true),
            (failed(), &mended, true),
            (failed(), &strict, false),
        ] {
            let kept = record(&theirs, state);
            assert_eq!(
                may_claim(Some(&kept), request),
                admitted,
                "{kept:?} {request:?}"
            );

            // Kept past its retention, it counts as gone, whatever it says.
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

        let unprinted = Record {
            fingerprint: None,
            ..record(&theirs, dead())
        };
        assert!(may_claim(Some(&unprinted), &changed));
    }

    #[test]
    fn my_own_record_means_that_the_answer_was_lost() {
        let mine = request("m-1", "payload");
        assert_eq!(
            claim_refused(record(&mine, live()), &mine),
            ClaimRefused::Mine
        );
    }

    #[test]
    fn another_fingerprint_means_key_reused_whatever_the_status() {
        let theirs = request("m-1", "payload");
        let mine = request("m-1", "another payload");
        for state in [live(), dead(), completed(), failed()] {
            assert_eq!(
                claim_refused(record(&theirs, state), &mine),
                ClaimRefused::NotMine(Refusal::KeyReused)
            );
        }
    }

    #[test]
    fn a_completed_record_is_a_duplicate_and_its_result_the_answer() {
        let refused = claim_refused(
            record(&request("m-1", "p"), completed()),
            &request("m-2", "p"),
        );
        assert_eq!(
            refused,
            ClaimRefused::NotMine(Refusal::Duplicate(StoredResult::Json("1".into())))
        );
    }

    #[test]
    fn a_failed_record_answers_the_same_message_with_its_error() {
        let refused = claim_refused(record(&request("m-1", "p"), failed()), &request("m-1", "p"));
        assert_eq!(
            refused,
            ClaimRefused::NotMine(Refusal::FailedBefore("declined".into()))
        );
    }

    #[test]
    fn a_live_lease_is_a_conflict_and_tells_whose_and_until_when() {
        let theirs = request("m-1", "p");
        let refused = claim_refused(record(&theirs, live()), &request("m-1", "p"));
        assert_eq!(
            refused,
            ClaimRefused::NotMine(Refusal::Conflict {
                owner: Some(theirs.owner),
                lease_until: NOW
            })
        );
    }

    #[test]
    fn a_record_without_an_owner_is_nobodys() {
        let mine = request("m-1", "p");
        let foreign = |state| Record {
            owner: None,
            message_id: None,
            created_at: None,
            updated_at: None,
            ..record(&mine, state)
        };
        assert_eq!(
            claim_refused(foreign(live()), &mine),
            ClaimRefused::NotMine(Refusal::Conflict {
                owner: None,
                lease_until: NOW
            })
        );
        assert!(may_claim(Some(&foreign(dead())), &mine));
        for state in [live(), dead(), completed(), failed()] {
            assert!(!may_settle(Some(&foreign(state.clone())), &mine.fence()));
            for wanted in settlements() {
                assert_eq!(
                    settlement_refused(Some(&foreign(state.clone())), &mine.fence(), &wanted),
                    SettlementRefused::LeaseLost
                );
            }
        }
    }

    fn settlements() -> [Settlement; 4] {
        let expires_at = NOW.as_secs() + 3600;
        [
            Settlement::Complete {
                result: StoredResult::Json("2".into()),
                expires_at,
            },
            Settlement::fail("declined".into(), expires_at),
            Settlement::Release,
            Settlement::Abandon,
        ]
    }

    #[test]
    fn only_the_owner_of_a_record_in_progress_settles_it() {
        let (mine, theirs) = (request("m-1", "p"), request("m-1", "p"));
        let fence = mine.fence();
        assert!(may_settle(Some(&record(&mine, live())), &fence));
        assert!(
            may_settle(Some(&record(&mine, dead())), &fence),
            "late, but nobody took over"
        );
        assert!(!may_settle(Some(&record(&mine, completed())), &fence));
        assert!(!may_settle(Some(&record(&mine, failed())), &fence));
        assert!(!may_settle(Some(&record(&theirs, live())), &fence));
        assert!(!may_settle(None, &fence));
    }

    #[test]
    fn a_refused_settlement_found_as_wanted_means_that_the_answer_was_lost() {
        let mine = request("m-1", "p");
        for wanted in settlements() {
            // Abandon leaves the record as the condition wants it: it is never refused.
            if wanted == Settlement::Abandon {
                continue;
            }
            let left = wanted.apply(&mine.record(), NOW);
            assert_eq!(
                settlement_refused(left.as_ref(), &mine.fence(), &wanted),
                SettlementRefused::AlreadySettled,
                "{wanted:?}"
            );
        }
    }

    #[test]
    fn a_result_that_is_not_mine_is_not_my_completion() {
        let mine = request("m-1", "p");
        let [complete, ..] = settlements();
        assert_eq!(
            settlement_refused(Some(&record(&mine, completed())), &mine.fence(), &complete),
            SettlementRefused::LeaseLost
        );
    }

    #[test]
    fn any_other_refused_settlement_means_that_the_lease_was_lost() {
        let (mine, theirs) = (request("m-1", "p"), request("m-1", "p"));
        for wanted in settlements() {
            for state in [live(), dead(), completed(), failed()] {
                assert_eq!(
                    settlement_refused(Some(&record(&theirs, state)), &mine.fence(), &wanted),
                    SettlementRefused::LeaseLost,
                    "{wanted:?}"
                );
            }
            if wanted != Settlement::Release {
                assert_eq!(
                    settlement_refused(None, &mine.fence(), &wanted),
                    SettlementRefused::LeaseLost
                );
            }
        }
    }

    #[test]
    fn a_failure_text_is_cut_at_a_characters_edge() {
        let Settlement::Fail { error, .. } = Settlement::fail("é".repeat(MAX_ERROR_BYTES), 0)
        else {
            unreachable!("Settlement::fail makes a Fail")
        };
        assert_eq!(error.len(), MAX_ERROR_BYTES);
    }
}

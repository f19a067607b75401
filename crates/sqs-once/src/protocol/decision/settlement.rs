//! [`Settlement`]: ends a claim or renews its lease. Also explains why the condition of a settlement failed.

use std::time::Duration;

use super::{PreviousRecord, PriorState};
use crate::{
    flawed::flawed,
    protocol::record::{
        AttemptEnd, ClaimRequest, FencingToken, MAX_ERROR_BYTES, Record, State, StoredResult,
        Timestamp,
    },
};

/// Ends a claim or renews its lease, with one write on the condition of the claim's [`FencingToken`].
///
/// ```
/// use sqs_once::protocol::Settlement;
///
/// assert_eq!(Settlement::Release { last_end: None }.name(), "release");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Settlement {
    /// The handler succeeded.
    Complete {
        /// The handler's output.
        result: StoredResult,
        /// End of the record's retention, in seconds since the epoch.
        expires_at: u64,
    },
    /// The handler failed permanently.
    Fail {
        /// Text of the failure.
        error: String,
        /// The message that failed. It never runs again.
        message_id: String,
        /// True if this claim set `first_claimed_at` ([`PriorState::is_first_open`]). The settlement
        /// then removes `first_claimed_at`.
        first_open: bool,
        /// End of the record's retention, in seconds since the epoch.
        expires_at: u64,
    },
    /// The attempt may have had its effect. The lease ends now, and the next attempt sees this one as the
    /// prior attempt.
    ///
    /// The lease ends at the settling worker's time and not at 0, so that a claim that was sent earlier and
    /// arrives late does not meet the condition.
    ///
    /// If the handler had started, this also removes the count of attempts alone.
    Release {
        /// End of the attempt. `None` if unknown.
        last_end: Option<AttemptEnd>,
    },
    /// The attempt had no effect. The record returns to its state before the claim.
    ///
    /// | before the claim | after |
    /// | --- | --- |
    /// | no record | deleted |
    /// | `FAILED` | `FAILED` |
    /// | `IN_PROGRESS`, or unknown | the lease ends now |
    ///
    /// The count of attempts alone returns to its value before the claim. If the handler had started, it is
    /// removed ([`PriorState::with_recorded_end`]).
    Restore(PriorState),
    /// The handler is about to run alone, so the lease ends later and the claim goes on.
    ///
    /// The fencing token of a renewal includes the current end of the lease ([`FencingToken::with_lease`]).
    Renew {
        /// New end of the lease.
        lease_until: Timestamp,
        /// End of the record's retention, in seconds since the epoch. Never before the end of the lease.
        expires_at: u64,
        /// The number of the attempt that is about to run alone.
        exclusive_attempts: u64,
    },
}

impl Settlement {
    /// Creates a [`Settlement::Fail`], with `error` cut to [`MAX_ERROR_BYTES`] at a character boundary.
    #[must_use]
    pub fn fail(
        mut error: String,
        message_id: impl Into<String>,
        first_open: bool,
        expires_at: u64,
    ) -> Self {
        error.truncate(error.floor_char_boundary(MAX_ERROR_BYTES));
        Self::Fail {
            error,
            message_id: message_id.into(),
            first_open,
            expires_at,
        }
    }

    /// Creates the [`Settlement::Restore`] of a claim over `claimed`.
    ///
    /// If a copy of the claim `may_arrive` later, we must not delete the record or make it `FAILED` again,
    /// because the copy would then be applied. So the lease ends, as if the previous record were unknown. If
    /// the handler `began`, its end is recorded.
    #[must_use]
    pub fn undo(mut claimed: PriorState, may_arrive: bool, began: bool) -> Self {
        if may_arrive {
            claimed.before = PreviousRecord::Unknown;
        }
        if began {
            claimed = claimed.with_recorded_end();
        }
        Self::Restore(claimed)
    }

    /// Returns the writes that end the lease of a claim without a response, with their fencing tokens. The
    /// second is for a record that the first does not fit.
    ///
    /// We do not delete the record: the claim may have been a takeover, and then the next attempt must see
    /// the prior attempt. If the claim opened the attempt itself, the record says that no handler was
    /// started, so that the next claim does not make the message a suspect.
    #[must_use]
    pub fn abandon(request: &ClaimRequest) -> [(FencingToken, Self); 2] {
        let not_started = Some(AttemptEnd::NotStarted);
        [
            (request.fence().with_first_claim(request.now), not_started),
            (request.fence(), None),
        ]
        .map(|(fence, last_end)| (fence, Self::Release { last_end }))
    }

    /// Returns the name of the settlement in logs and errors.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Complete { .. } => "complete",
            Self::Fail { .. } => "fail",
            Self::Release { .. } => "release",
            Self::Restore(_) => "restore",
            Self::Renew { .. } => "renew",
        }
    }

    /// Returns the record after the settlement, or `None` if the settlement deletes `record`.
    #[must_use]
    pub fn apply(&self, record: &Record, now: Timestamp) -> Option<Record> {
        let mut record = Record {
            updated_at: Some(now),
            ..record.clone()
        };
        match self {
            Self::Complete { result, expires_at } => {
                record.state = State::Completed {
                    result: result.clone(),
                };
                record.expires_at = *expires_at;
                record.first_claimed_at = None;
                record.last_end = None;
                record.exclusive_attempts = 0;
                record.error = None;
                record.failed_message_ids.clear();
            }
            Self::Fail {
                error,
                message_id,
                first_open,
                expires_at,
            } => {
                record.state = State::Failed;
                record.expires_at = *expires_at;
                record.error = Some(error.clone());
                if flawed!("a failure replaces those of other messages") {
                    record.failed_message_ids.clear();
                }
                record.failed_message_ids.insert(message_id.clone());
                record.exclusive_attempts = 0;
                if *first_open {
                    record.first_claimed_at = None;
                }
            }
            Self::Release { last_end } => {
                record.state = State::InProgress { lease_until: now };
                record.last_end = *last_end;
                if last_end.is_some() {
                    record.exclusive_attempts = 0;
                }
            }
            Self::Restore(claimed) => {
                if claimed.is_first_open() || flawed!("an undone claim hides earlier attempts") {
                    record.first_claimed_at = None;
                }
                record.last_end = claimed.last_end;
                record.exclusive_attempts = claimed.exclusive_attempts;
                record.state = State::InProgress { lease_until: now };
                match &claimed.before {
                    PreviousRecord::Nothing => return None,
                    PreviousRecord::Record(before) => {
                        record.fingerprint = before.fingerprint.clone();
                        record.message_id = before.message_id.clone();
                        if before.state == State::Failed {
                            record.state = State::Failed;
                            record.expires_at = before.expires_at;
                        }
                    }
                    PreviousRecord::Unknown => {}
                }
            }
            Self::Renew {
                lease_until,
                expires_at,
                exclusive_attempts,
            } => {
                record.state = State::InProgress {
                    lease_until: *lease_until,
                };
                record.expires_at = *expires_at;
                record.exclusive_attempts = *exclusive_attempts;
            }
        }
        Some(record)
    }
}

/// Returns the time of a settlement that is sent `now`, by a worker that claimed at `claimed_at` and had `leases`.
///
/// - It is not before the claim, even if the clock was set back: otherwise a late copy of the claim could be
///   applied after the lease was ended.
/// - It is not the end of a lease: otherwise a late renewal of that lease could be applied after the lease was
///   ended, because its fencing token would fit. The record would then count an attempt alone that never began.
#[doc(hidden)]
#[must_use]
pub fn settled_at(now: Timestamp, claimed_at: Timestamp, leases: &[Timestamp]) -> Timestamp {
    let mut at = now.max(claimed_at);
    while leases.contains(&at) {
        at = at + Duration::from_millis(1);
    }
    at
}

/// Returns whether the claim with this fencing token may settle `record`.
///
/// This function is the condition of every write after the claim. The record must be `IN_PROGRESS` and have
/// the token's owner. If the token names an end of the lease or the time of the earliest open attempt, the
/// record must have those too.
#[must_use]
pub fn may_settle(record: Option<&Record>, fence: &FencingToken) -> bool {
    let Some(record) = record else { return false };
    let State::InProgress { lease_until } = record.state else {
        return false;
    };
    let same_lease = fence.lease_until.is_none_or(|fenced| fenced == lease_until);
    let first = fence.first_claimed_at;
    let same_first = first.is_none() || first == record.first_claimed_at;
    let same_owner = record.owner.as_ref() == Some(&fence.owner);
    (same_owner || flawed!("the owner is not compared")) && same_lease && same_first
}

/// Why the condition of a settlement failed.
#[doc(hidden)]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FailedSettlement {
    /// An earlier request applied the settlement, and its response was lost.
    AlreadySettled,
    /// The lease expired and another worker took over, or the record was deleted. Nothing was
    /// written.
    LeaseLost,
}

/// Interprets the record (`None`: no record exists) on which the condition of a settlement failed.
#[doc(hidden)]
#[must_use]
pub fn failed_settlement(
    record: Option<&Record>,
    fence: &FencingToken,
    wanted: &Settlement,
) -> FailedSettlement {
    let as_wanted = match (wanted, record) {
        (Settlement::Restore(claimed), None) => claimed.before == PreviousRecord::Nothing,
        (_, None) => false,
        (wanted, Some(record)) => {
            record.owner.as_ref() == Some(&fence.owner)
                && match (wanted, &record.state) {
                    // A program that writes without fencing tokens may have stored its own result under this
                    // owner.
                    (Settlement::Complete { result, .. }, State::Completed { result: kept }) => {
                        result == kept
                    }
                    (Settlement::Fail { message_id, .. }, State::Failed) => {
                        record.failed_message_ids.contains(message_id)
                    }
                    (Settlement::Restore(_), State::Failed) => true,
                    (
                        Settlement::Renew {
                            lease_until,
                            exclusive_attempts,
                            ..
                        },
                        State::InProgress { lease_until: kept },
                    ) => lease_until == kept && *exclusive_attempts == record.exclusive_attempts,
                    _ => false,
                }
        }
    };
    if as_wanted {
        FailedSettlement::AlreadySettled
    } else {
        FailedSettlement::LeaseLost
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::decision::{
        fixtures::{
            EARLIER, NOW, completed, ended, failed_record, live, record, request, settlements,
        },
        may_claim,
    };

    #[test]
    fn record_without_owner_cannot_be_settled() {
        let mine = request("m-1", "p");
        let foreign = |state| Record {
            owner: None,
            message_id: None,
            created_at: None,
            updated_at: None,
            ..record(&mine, state)
        };
        assert!(may_claim(Some(&foreign(ended())), &mine));
        for state in [live(), ended(), completed(), State::Failed] {
            assert!(!may_settle(Some(&foreign(state.clone())), &mine.fence()));
            for wanted in settlements() {
                assert_eq!(
                    failed_settlement(Some(&foreign(state.clone())), &mine.fence(), &wanted),
                    FailedSettlement::LeaseLost
                );
            }
        }
    }

    #[test]
    fn only_owner_settles_record_in_progress() {
        let (mine, theirs) = (request("m-1", "p"), request("m-1", "p"));
        let fence = mine.fence();
        assert!(may_settle(Some(&record(&mine, live())), &fence));
        let late = record(&mine, ended());
        assert!(may_settle(Some(&late), &fence), "no takeover yet");
        assert!(!may_settle(Some(&record(&mine, completed())), &fence));
        assert!(!may_settle(Some(&record(&mine, State::Failed)), &fence));
        assert!(!may_settle(Some(&record(&theirs, live())), &fence));
        assert!(!may_settle(None, &fence));
    }

    #[test]
    fn refused_settlement_in_wanted_state_is_applied() {
        let mine = request("m-1", "p");
        for wanted in settlements() {
            let left = wanted.apply(&mine.record(None), NOW);
            if may_settle(left.as_ref(), &mine.fence()) {
                // The record keeps its owner and `IN_PROGRESS`, so a second settlement succeeds.
                continue;
            }
            assert_eq!(
                failed_settlement(left.as_ref(), &mine.fence(), &wanted),
                FailedSettlement::AlreadySettled,
                "{wanted:?}"
            );
        }
    }

    #[test]
    fn result_of_other_owner_is_not_own_completion() {
        let mine = request("m-1", "p");
        let [complete, ..] = settlements();
        assert_eq!(
            failed_settlement(Some(&record(&mine, completed())), &mine.fence(), &complete),
            FailedSettlement::LeaseLost
        );
    }

    #[test]
    fn other_refused_settlement_is_lease_lost() {
        let (mine, theirs) = (request("m-1", "p"), request("m-1", "p"));
        for wanted in settlements() {
            for state in [live(), ended(), completed(), State::Failed] {
                assert_eq!(
                    failed_settlement(Some(&record(&theirs, state)), &mine.fence(), &wanted),
                    FailedSettlement::LeaseLost,
                    "{wanted:?}"
                );
            }
            let deletes = wanted.apply(&mine.record(None), NOW).is_none();
            let gone = failed_settlement(None, &mine.fence(), &wanted);
            assert_eq!(gone == FailedSettlement::AlreadySettled, deletes);
        }
    }

    #[test]
    fn completion_removes_history() {
        let [complete, ..] = settlements();
        let mut before = record(&request("m-1", "p"), State::Failed);
        before.first_claimed_at = Some(EARLIER);
        let done = complete.apply(&request("m-2", "p").record(Some(&before)), NOW);
        let done = done.unwrap();
        assert_eq!((done.error, done.first_claimed_at), (None, None));
        assert!(done.failed_message_ids.is_empty());
    }

    #[test]
    fn failure_closes_only_its_own_attempt() {
        for (open, kept) in [(None, None), (Some(EARLIER), Some(EARLIER))] {
            let before = Record {
                first_claimed_at: open,
                ..failed_record(&request("m-1", "p"), ["m-1".into()])
            };
            let mine = request("m-2", "p");
            let claimed = PriorState::over(Some(before.clone()));
            let fail = Settlement::fail("no".into(), "m-2", claimed.is_first_open(), 1);
            let failed = fail.apply(&mine.record(Some(&before)), NOW).unwrap();
            assert_eq!(failed.first_claimed_at, kept);
            assert_eq!(failed.failed_message_ids.len(), 2);
            assert_eq!(failed.error.as_deref(), Some("no"));
        }
    }

    #[test]
    fn restore_returns_record_before_claim() {
        let mine = request("m-2", "corrected payload");
        let fresh = Settlement::Restore(PriorState::over(None));
        assert_eq!(fresh.apply(&mine.record(None), NOW), None);

        let failed = failed_record(&request("m-1", "p"), ["m-1".into()]);
        let restore = Settlement::Restore(PriorState::over(Some(failed.clone())));
        let restored = restore.apply(&mine.record(Some(&failed)), NOW).unwrap();
        let expected = Record {
            owner: Some(mine.owner.clone()),
            updated_at: Some(NOW),
            attempts: 2,
            ..failed
        };
        assert_eq!(restored, expected);

        let mut open = record(&request("m-1", "p"), ended());
        open.last_end = Some(AttemptEnd::Deadline);
        let restore = Settlement::Restore(PriorState::over(Some(open.clone())));
        let restored = restore.apply(&mine.record(Some(&open)), NOW).unwrap();
        assert_eq!(restored.state, State::InProgress { lease_until: NOW });
        assert_eq!(restored.first_claimed_at, Some(EARLIER));
        assert_eq!(restored.last_end, Some(AttemptEnd::Deadline));
    }

    /// Found by tests/model/processes: a process thawed in the last millisecond of its lease and undid its claim.
    /// The renewal that counts an attempt alone arrived after that, and counted a death that never was.
    #[test]
    fn late_renewal_does_not_fit_ended_lease() {
        let mine = request("m-1", "p");
        let renewal = mine.fence().with_lease(mine.lease_until);
        let undo = Settlement::Restore(PriorState::over(Some(record(&mine, ended()))));
        for late in [0, 1, 2] {
            let now = mine.lease_until + Duration::from_millis(late);
            let after = mine.lease_until + Duration::from_millis(1);
            let at = settled_at(now, mine.now, &[mine.lease_until, after]);
            let undone = undo.apply(&mine.record(None), at);
            assert!(may_settle(undone.as_ref(), &mine.fence()), "{late}");
            assert!(!may_settle(undone.as_ref(), &renewal), "{late}");
        }
        // The clock was set back.
        assert_eq!(settled_at(EARLIER, mine.now, &[]), mine.now);
    }

    #[test]
    fn failure_text_is_cut_between_characters() {
        let fail = Settlement::fail("é".repeat(MAX_ERROR_BYTES), "m-1", true, 0);
        let Settlement::Fail { error, .. } = fail else {
            unreachable!("Settlement::fail makes a Fail")
        };
        assert_eq!(error.len(), MAX_ERROR_BYTES);
    }
}

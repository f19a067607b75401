//! [`Settlement`]: the end or the renewal of a claim, and the meaning of a refused one.

use super::{Before, Claimed};
use crate::protocol::record::{
    AttemptEnd, Fence, MAX_ERROR_BYTES, Record, State, StoredResult, Timestamp,
};

/// The end of a claim, or the renewal of its lease: one write, on the condition of the claim's
/// [`Fence`].
///
/// ```
/// use sqs_once::protocol::Settlement;
///
/// assert_eq!(Settlement::EndLease { last_end: None }.name(), "end_lease");
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
        /// True if this claim set `first_claimed_at` ([`Claimed::is_first_open`]). The settlement
        /// then removes `first_claimed_at`.
        first_open: bool,
        /// End of the record's retention, in seconds since the epoch.
        expires_at: u64,
    },
    /// The attempt may have had its effect. The lease ends now, and the next attempt is informed of
    /// this attempt.
    ///
    /// The lease ends at the settling worker's time, not at 0. A claim that was sent earlier and
    /// arrives late must not pass the condition.
    ///
    /// The end of a handler that began removes the count of attempts alone.
    EndLease {
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
    /// The count of attempts alone is as before the claim, or removed if the handler began
    /// ([`Claimed::with_recorded_end`]).
    Restore(Claimed),
    /// The handler still runs, or is about to run alone, and the lease ends later. The claim goes on.
    ///
    /// The fence of a renewal has the end of the lease so far ([`Fence::with_lease`]).
    Renew {
        /// New end of the lease.
        lease_until: Timestamp,
        /// End of the record's retention, in seconds since the epoch. Not before the lease.
        expires_at: u64,
        /// The number of the attempt that is about to run alone. `None` leaves the count as it is.
        exclusive_attempts: Option<u64>,
    },
}

impl Settlement {
    /// [`Settlement::Fail`] with `error` cut to [`MAX_ERROR_BYTES`], between two characters.
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

    /// Returns the name of the settlement in logs and errors.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Complete { .. } => "complete",
            Self::Fail { .. } => "fail",
            Self::EndLease { .. } => "end_lease",
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
                record.failed_message_ids.insert(message_id.clone());
                record.exclusive_attempts = 0;
                if *first_open {
                    record.first_claimed_at = None;
                }
            }
            Self::EndLease { last_end } => {
                record.state = State::InProgress { lease_until: now };
                record.last_end = *last_end;
                if last_end.is_some() {
                    record.exclusive_attempts = 0;
                }
            }
            Self::Restore(claimed) => {
                if claimed.is_first_open() {
                    record.first_claimed_at = None;
                }
                record.last_end = claimed.last_end;
                record.exclusive_attempts = claimed.exclusive_attempts;
                record.state = State::InProgress { lease_until: now };
                match &claimed.before {
                    Before::Nothing => return None,
                    Before::Record(before) => {
                        record.fingerprint = before.fingerprint.clone();
                        record.message_id = before.message_id.clone();
                        if before.state == State::Failed {
                            record.state = State::Failed;
                            record.expires_at = before.expires_at;
                        }
                    }
                    Before::Unknown => {}
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
                record.exclusive_attempts = exclusive_attempts.unwrap_or(record.exclusive_attempts);
            }
        }
        Some(record)
    }
}

/// Returns whether the claim of `fence` may settle `record`.
///
/// This function is the condition of every write after the claim. The record must have the
/// fence's owner and be `IN_PROGRESS`, with the fence's end of the lease and the fence's time of the
/// earliest open attempt if it has them.
#[must_use]
pub fn may_settle(record: Option<&Record>, fence: &Fence) -> bool {
    let Some(record) = record else { return false };
    let State::InProgress { lease_until } = record.state else {
        return false;
    };
    let same_lease = fence.lease_until.is_none_or(|fenced| fenced == lease_until);
    let first = fence.first_claimed_at;
    let same_first = first.is_none() || first == record.first_claimed_at;
    record.owner.as_ref() == Some(&fence.owner) && same_lease && same_first
}

/// The meaning of a refused settlement.
#[doc(hidden)]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SettlementRefused {
    /// An earlier request applied the settlement, and its answer was lost.
    AlreadySettled,
    /// The lease expired and another worker took over, or the record was deleted. Nothing was
    /// written.
    LeaseLost,
}

/// Interprets the record (`None`: no record exists) that refused a settlement.
#[doc(hidden)]
#[must_use]
pub fn settlement_refused(
    record: Option<&Record>,
    fence: &Fence,
    wanted: &Settlement,
) -> SettlementRefused {
    let as_wanted = match (wanted, record) {
        (Settlement::Restore(claimed), None) => claimed.before == Before::Nothing,
        (_, None) => false,
        (wanted, Some(record)) => {
            record.owner.as_ref() == Some(&fence.owner)
                && match (wanted, &record.state) {
                    // A program that writes without a fence may have stored its own result under
                    // this owner.
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
                    ) => {
                        let count = exclusive_attempts.unwrap_or(record.exclusive_attempts);
                        lease_until == kept && count == record.exclusive_attempts
                    }
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
                    settlement_refused(Some(&foreign(state.clone())), &mine.fence(), &wanted),
                    SettlementRefused::LeaseLost
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
                settlement_refused(left.as_ref(), &mine.fence(), &wanted),
                SettlementRefused::AlreadySettled,
                "{wanted:?}"
            );
        }
    }

    #[test]
    fn result_of_other_owner_is_not_own_completion() {
        let mine = request("m-1", "p");
        let [complete, ..] = settlements();
        assert_eq!(
            settlement_refused(Some(&record(&mine, completed())), &mine.fence(), &complete),
            SettlementRefused::LeaseLost
        );
    }

    #[test]
    fn other_refused_settlement_is_lease_lost() {
        let (mine, theirs) = (request("m-1", "p"), request("m-1", "p"));
        for wanted in settlements() {
            for state in [live(), ended(), completed(), State::Failed] {
                assert_eq!(
                    settlement_refused(Some(&record(&theirs, state)), &mine.fence(), &wanted),
                    SettlementRefused::LeaseLost,
                    "{wanted:?}"
                );
            }
            let deletes = wanted.apply(&mine.record(None), NOW).is_none();
            let gone = settlement_refused(None, &mine.fence(), &wanted);
            assert_eq!(gone == SettlementRefused::AlreadySettled, deletes);
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
            let claimed = Claimed::over(Some(before.clone()));
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
        let fresh = Settlement::Restore(Claimed::over(None));
        assert_eq!(fresh.apply(&mine.record(None), NOW), None);

        let failed = failed_record(&request("m-1", "p"), ["m-1".into()]);
        let restore = Settlement::Restore(Claimed::over(Some(failed.clone())));
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
        let restore = Settlement::Restore(Claimed::over(Some(open.clone())));
        let restored = restore.apply(&mine.record(Some(&open)), NOW).unwrap();
        assert_eq!(restored.state, State::InProgress { lease_until: NOW });
        assert_eq!(restored.first_claimed_at, Some(EARLIER));
        assert_eq!(restored.last_end, Some(AttemptEnd::Deadline));
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

//! Rules of claims and settlements, and the meaning of a refused write.
//!
//! DynamoDB returns the existing item when a condition check fails
//! (`ReturnValuesOnConditionCheckFailure`). That record and the request decide everything that
//! follows, without a second read.

use super::record::{
    AfterFailure, AttemptEnd, ClaimRequest, Fence, MAX_ERROR_BYTES, MAX_FAILED_MESSAGES, Owner,
    Record, State, StoredResult, Timestamp,
};

/// Returns whether a claim succeeds over `record` (`None`: no record exists).
///
/// | record | a claim succeeds |
/// | --- | --- |
/// | absent, or past `expires_at` | always |
/// | `IN_PROGRESS` | after its lease expired, with the same payload |
/// | `COMPLETED` | never |
/// | `FAILED` | with [`AfterFailure::Retry`], below [`MAX_FAILED_MESSAGES`] failed messages |
///
/// While the record is kept, a message in `failed_message_ids` is always refused.
///
/// This function is the condition of every claim. `DynamoStore` writes the same
/// rule as a condition expression. [`crate::store::MemoryStore`] calls this function. One
/// conformance suite compares both stores with it.
#[must_use]
pub fn may_claim(record: Option<&Record>, request: &ClaimRequest) -> bool {
    let Some(record) = record.filter(|record| !record.is_expired(request.now)) else {
        return true;
    };
    let failed = &record.failed_message_ids;
    if failed.contains(&request.message_id) {
        return false;
    }
    match &record.state {
        // A takeover: the lease of another worker expired, and the payload is the same.
        State::InProgress { lease_until } => {
            *lease_until < request.now && same_payload(record, request)
        }
        State::Completed { .. } => false,
        // A new send, or a redrive from the dead-letter queue, with a corrected payload too.
        State::Failed => {
            request.after_failure == AfterFailure::Retry && failed.len() < MAX_FAILED_MESSAGES
        }
    }
}

/// Compares the fingerprints of record and claim.
///
/// If the record or the claim has no fingerprint, the payloads count as the same. Fingerprints
/// may be switched off, and a record may be older than the setting. So are fingerprints of two known
/// schemes: the setting changed while the record lives.
fn same_payload(record: &Record, request: &ClaimRequest) -> bool {
    match (&record.fingerprint, &request.fingerprint) {
        (Some(recorded), Some(claimed)) => !recorded.differs_from(claimed),
        _ => true,
    }
}

/// History of a key, as the answer to a successful claim shows it.
///
/// The history decides how the claim can be undone, and of which earlier attempts the handler is
/// informed.
#[doc(hidden)]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claimed {
    /// The record before the claim.
    pub before: Before,
    /// Claim time of the earliest open attempt before this claim. `None` if no attempt was open;
    /// 0 if the time is unknown.
    pub open_since: Option<Timestamp>,
    /// End of the previous attempt. `None` if the end is unknown, as after a crash.
    pub last_end: Option<AttemptEnd>,
    /// Number of earlier claims since the record was created.
    pub attempts: u64,
    /// Attempts alone without a recorded end, as the record before the claim has them.
    pub exclusive_attempts: u64,
}

/// The record before a claim.
#[doc(hidden)]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Before {
    /// No record existed, or only an expired one.
    Nothing,
    /// This record existed.
    Record(Box<Record>),
    /// Unknown: the answer with the replaced record was lost.
    Unknown,
}

impl Claimed {
    /// History from the answer to a claim. `replaced` is the record before the claim, and is
    /// `None` if that record was expired.
    #[must_use]
    pub fn over(replaced: Option<Record>) -> Self {
        let Some(record) = replaced else {
            return Self {
                before: Before::Nothing,
                open_since: None,
                last_end: None,
                attempts: 0,
                exclusive_attempts: 0,
            };
        };
        Self {
            open_since: if record.is_foreign_claim() {
                Some(Timestamp::default())
            } else {
                record.first_claimed_at
            },
            last_end: record.last_end,
            attempts: record.attempts,
            exclusive_attempts: record.exclusive_attempts,
            before: Before::Record(Box::new(record)),
        }
    }

    /// History from the `record` that this claim wrote, when the answer to the claim was lost.
    fn recovered(record: &Record, request: &ClaimRequest) -> Self {
        // `attempts` is not enough: after a takeover from another program it is 1 as well.
        let claimed_at = Some(request.now);
        let is_new = record.attempts == 1
            && (record.created_at, record.first_claimed_at) == (claimed_at, claimed_at)
            && record.error.is_none()
            && record.failed_message_ids.is_empty();
        Self {
            before: if is_new {
                Before::Nothing
            } else {
                Before::Unknown
            },
            open_since: record.first_claimed_at.filter(|at| *at != request.now),
            last_end: None,
            attempts: record.attempts.saturating_sub(1),
            // The claim kept it.
            exclusive_attempts: record.exclusive_attempts,
        }
    }

    /// Returns this history for a handler that began: its end removes the count of attempts alone,
    /// also if it had no effect.
    #[must_use]
    pub fn with_recorded_end(self) -> Self {
        Self {
            exclusive_attempts: 0,
            ..self
        }
    }

    /// Returns whether this claim set `first_claimed_at`. If so, the settlement that closes this
    /// attempt removes `first_claimed_at`.
    #[must_use]
    pub const fn is_first_open(&self) -> bool {
        self.open_since.is_none()
    }
}

/// The meaning of a refused claim or insert.
#[doc(hidden)]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClaimRefused {
    /// The record carries this claim's owner: the request was applied and its answer was lost.
    /// The worker holds the claim.
    Held(Claimed),
    /// Another claim, or another program, wrote the record. The handler must not run.
    Refused(Refusal),
}

/// The reason why the handler must not run.
#[doc(hidden)]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The key was used before for another payload. The record stays unchanged.
    KeyReused,
    /// The operation is completed. Holds the stored result.
    Duplicate(StoredResult),
    /// This message failed permanently before, or another message with this key and
    /// [`AfterFailure::Replay`] is set. Holds the stored error.
    FailedBefore(String),
    /// [`MAX_FAILED_MESSAGES`] messages failed permanently under this key. Holds the last error.
    TooManyFailures(String),
    /// Another worker holds the claim.
    Conflict {
        /// Owner token of the other claim, if the record has one.
        owner: Option<Owner>,
        /// End of the other claim's lease, which may have passed.
        lease_until: Timestamp,
    },
    /// An attempt with another payload is open, and the lease of its claim expired.
    PayloadConflict {
        /// Claim time of the earliest open attempt, if the record has it.
        open_since: Option<Timestamp>,
    },
}

/// Interprets the record that refused a claim.
#[doc(hidden)]
#[must_use]
pub fn claim_refused(record: Record, request: &ClaimRequest) -> ClaimRefused {
    let in_progress = matches!(record.state, State::InProgress { .. });
    if in_progress && record.owner.as_ref() == Some(&request.owner) {
        return ClaimRefused::Held(Claimed::recovered(&record, request));
    }
    ClaimRefused::Refused(refusal(record, request))
}

/// Interprets the record that refused an insert.
///
/// An insert is a claim and its `settlement` in one write.
#[doc(hidden)]
#[must_use]
pub fn insert_refused(
    record: Record,
    request: &ClaimRequest,
    settlement: &Settlement,
) -> ClaimRefused {
    let fence = request.fence();
    match settlement_refused(Some(&record), &fence, settlement) {
        SettlementRefused::AlreadySettled => {
            ClaimRefused::Held(Claimed::recovered(&record, request))
        }
        SettlementRefused::LeaseLost => ClaimRefused::Refused(refusal(record, request)),
    }
}

/// Interprets a refused claim whose `record` belongs to another owner.
#[doc(hidden)]
#[must_use]
pub fn refusal(record: Record, request: &ClaimRequest) -> Refusal {
    let same_payload = same_payload(&record, request);
    let error = (record.error).unwrap_or_else(|| "no error was stored".into());
    match record.state {
        State::Completed { result } if same_payload => Refusal::Duplicate(result),
        _ if record.failed_message_ids.contains(&request.message_id) => {
            Refusal::FailedBefore(error)
        }
        State::Completed { .. } | State::Failed if !same_payload => Refusal::KeyReused,
        State::InProgress { lease_until } if !same_payload && lease_until < request.now => {
            Refusal::PayloadConflict {
                open_since: record
                    .first_claimed_at
                    .filter(|at| *at != Timestamp::default()),
            }
        }
        State::InProgress { lease_until } => Refusal::Conflict {
            owner: record.owner,
            lease_until,
        },
        State::Failed if record.failed_message_ids.len() >= MAX_FAILED_MESSAGES => {
            Refusal::TooManyFailures(error)
        }
        State::Failed | State::Completed { .. } => Refusal::FailedBefore(error),
    }
}

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
    use std::time::Duration;

    use super::*;
    use crate::protocol::key::{Fingerprint, Key, Namespace};

    const NOW: Timestamp = Timestamp::from_millis(1_800_000_000_000);
    const EARLIER: Timestamp = Timestamp::from_millis(1_799_999_000_000);

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

    /// Record in this state, written by the claim `theirs`.
    fn record(theirs: &ClaimRequest, state: State) -> Record {
        let mut record = Record {
            first_claimed_at: Some(EARLIER),
            ..theirs.record(None)
        };
        if state == State::Failed {
            record = failed_record(theirs, [theirs.message_id.clone()]);
        }
        Record { state, ..record }
    }

    fn failed_record<const N: usize>(theirs: &ClaimRequest, ids: [String; N]) -> Record {
        Record {
            state: State::Failed,
            error: Some("declined".into()),
            failed_message_ids: ids.into(),
            first_claimed_at: None,
            ..theirs.record(None)
        }
    }

    fn full_record(theirs: &ClaimRequest) -> Record {
        let ids: [String; MAX_FAILED_MESSAGES] = std::array::from_fn(|n| format!("failed-{n}"));
        failed_record(theirs, ids)
    }

    fn live() -> State {
        State::InProgress { lease_until: NOW }
    }

    fn ended() -> State {
        State::InProgress {
            lease_until: Timestamp::from_millis(NOW.as_millis() - 1),
        }
    }

    fn completed() -> State {
        State::Completed {
            result: StoredResult::Json("1".into()),
        }
    }

    fn not_mine(record: Record, request: &ClaimRequest) -> Refusal {
        match claim_refused(record, request) {
            ClaimRefused::Refused(refusal) => refusal,
            ClaimRefused::Held(claimed) => panic!("mine: {claimed:?}"),
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
    fn claim_of_failed_message_is_refused() {
        let other = request("m-2", "payload");
        let mut kept = record(&other, ended());
        kept.failed_message_ids.insert("m-1".into());
        assert!(!may_claim(Some(&kept), &request("m-1", "payload")));
        assert!(may_claim(Some(&kept), &other));
        kept.error = Some("declined".into());
        let refusal = not_mine(kept, &request("m-1", "payload"));
        assert_eq!(refusal, Refusal::FailedBefore("declined".into()));
    }

    #[test]
    fn claim_after_20_failed_messages_is_refused() {
        let mut full = full_record(&request("m-1", "p"));
        let next = request("m-2", "p");
        assert!(!may_claim(Some(&full), &next));
        assert_eq!(
            not_mine(full.clone(), &next),
            Refusal::TooManyFailures("declined".into())
        );
        full.failed_message_ids.pop_first();
        assert!(may_claim(Some(&full), &next));
    }

    #[test]
    fn claim_keeps_history_of_attempts() {
        let mut before = record(&request("m-1", "p"), ended());
        before.error = Some("declined".into());
        before.failed_message_ids.insert("m-0".into());
        before.last_end = Some(AttemptEnd::Panic);
        let claimed = request("m-2", "p").record(Some(&before));
        assert_eq!(claimed.error, before.error);
        assert_eq!(claimed.failed_message_ids, before.failed_message_ids);
        assert_eq!(claimed.first_claimed_at, Some(EARLIER));
        assert_eq!(claimed.created_at, before.created_at);
        assert_eq!((claimed.attempts, claimed.last_end), (2, None));
    }

    #[test]
    fn takeover_from_other_program_has_no_first_time() {
        let foreign = Record {
            owner: None,
            attempts: 0,
            first_claimed_at: None,
            ..record(&request("m-1", "p"), ended())
        };
        let claimed = request("m-1", "p").record(Some(&foreign));
        assert_eq!(claimed.first_claimed_at, Some(Timestamp::default()));
        let known = Claimed::over(Some(foreign));
        assert_eq!(known.open_since, Some(Timestamp::default()));
    }

    #[test]
    fn own_record_means_lost_response() {
        let mine = request("m-1", "payload");
        let recovered = |record: Record| match claim_refused(record, &mine) {
            ClaimRefused::Held(claimed) => claimed,
            refused @ ClaimRefused::Refused(_) => panic!("{refused:?}"),
        };
        let first = recovered(mine.record(None));
        assert_eq!(first, Claimed::over(None));
        // A takeover from an earlier attempt that is open.
        let second = recovered(mine.record(Some(&record(&request("m-1", "payload"), ended()))));
        assert_eq!(second.before, Before::Unknown);
        assert_eq!((second.open_since, second.attempts), (Some(EARLIER), 1));
        // A takeover from another program, which counts no attempts.
        let foreign = Record {
            owner: None,
            attempts: 0,
            first_claimed_at: None,
            created_at: None,
            ..record(&request("m-1", "payload"), ended())
        };
        let over_foreign = recovered(mine.record(Some(&foreign)));
        assert_eq!(over_foreign.before, Before::Unknown);
        assert_eq!(over_foreign.open_since, Some(Timestamp::default()));
        let failed = Record {
            attempts: 0,
            created_at: None,
            ..failed_record(&mine, ["m-0".into()])
        };
        let over_failed = recovered(mine.record(Some(&failed)));
        assert_eq!(over_failed.before, Before::Unknown);
        // A claim over a record without an open attempt.
        let third = recovered(mine.record(Some(&failed_record(&mine, ["m-0".into()]))));
        assert_eq!(third.before, Before::Unknown);
        assert!(third.is_first_open());
    }

    #[test]
    fn own_insert_means_lost_response() {
        let (mine, theirs) = (request("m-1", "payload"), request("m-1", "payload"));
        let [complete, fail, ..] = settlements();
        for settlement in [complete.clone(), fail.clone()] {
            let inserted = settlement.apply(&mine.record(None), NOW).unwrap();
            let refused = insert_refused(inserted, &mine, &settlement);
            assert!(matches!(refused, ClaimRefused::Held(_)), "{settlement:?}");
        }
        for other in [
            complete.apply(&theirs.record(None), NOW).unwrap(),
            // The result of an earlier round.
            fail.apply(&mine.record(None), NOW).unwrap(),
            record(&mine, completed()),
        ] {
            let refused = insert_refused(other, &mine, &complete);
            assert!(matches!(refused, ClaimRefused::Refused(_)), "{refused:?}");
        }
    }

    #[test]
    fn other_payload_is_reused_key_or_conflict() {
        let theirs = request("m-1", "payload");
        let mine = request("m-2", "another payload");
        assert_eq!(
            not_mine(record(&theirs, completed()), &mine),
            Refusal::KeyReused
        );
        assert_eq!(not_mine(full_record(&theirs), &mine), Refusal::KeyReused);
        let conflict = Refusal::Conflict {
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
                Refusal::PayloadConflict { open_since }
            );
        }
    }

    #[test]
    fn completed_record_returns_its_result() {
        let kept = record(&request("m-1", "p"), completed());
        let refused = not_mine(kept, &request("m-2", "p"));
        assert_eq!(refused, Refusal::Duplicate(StoredResult::Json("1".into())));
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
            assert_eq!(refused, Refusal::FailedBefore("declined".into()));
        }
    }

    #[test]
    fn live_lease_is_conflict() {
        let theirs = request("m-1", "p");
        let refused = not_mine(record(&theirs, live()), &request("m-1", "p"));
        let conflict = Refusal::Conflict {
            owner: Some(theirs.owner),
            lease_until: NOW,
        };
        assert_eq!(refused, conflict);
    }

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

    /// Every settlement, with `Restore` of an absent, a failed, a taken-over and an unknown record.
    fn settlements() -> [Settlement; 7] {
        let expires_at = NOW.as_secs() + 3600;
        let theirs = request("m-0", "p");
        let over = |record| Settlement::Restore(Claimed::over(record));
        [
            Settlement::Complete {
                result: StoredResult::Json("2".into()),
                expires_at,
            },
            Settlement::fail("declined".into(), "m-1", true, expires_at),
            Settlement::EndLease {
                last_end: Some(AttemptEnd::Panic),
            },
            over(None),
            over(Some(failed_record(&theirs, ["m-0".into()]))),
            over(Some(record(&theirs, ended()))),
            Settlement::Restore(Claimed {
                before: Before::Unknown,
                ..Claimed::over(None)
            }),
        ]
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

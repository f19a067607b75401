//! [`decide`] decides whether a claim may replace the record that it found.

use std::time::Duration;

use crate::flawed::flawed;

use super::{
    isolation::{CrashWaits, lease_alone},
    key::Fingerprint,
    record::{Owner, Record, RecordedFailure, Stamp, State, StoredResult, Timestamp},
};

/// A worker's request to run an operation.
#[derive(Clone, Debug)]
pub struct Claim {
    /// Token of the claim: random, and new for each claim.
    pub owner: Owner,
    /// Fingerprint of the payload. `None` matches every fingerprint.
    pub fingerprint: Option<Fingerprint>,
    /// Id of the message that asks for the operation.
    pub message_id: String,
    /// When the message was sent. `None` for work that does not come from SQS.
    pub sent_at: Option<Timestamp>,
    /// Name of the queue.
    pub source: Option<String>,
    /// The worker's time, read before it sends the request, so that a slow response only shortens the lease.
    pub now: Timestamp,
    /// End of the lease.
    pub lease_until: Timestamp,
    /// End of the record's retention, in seconds since the epoch.
    pub expires_at: u64,
    /// How long after its lease an earlier attempt's request may still have its effect (lease margin plus quarantine).
    /// `None` if there is no lookup. For `decide_without_body`, the modes pass the quarantine without the margin.
    pub quarantine: Option<Duration>,
}

/// How a claim treats the record that it found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// There is no record, or it has expired: the claim writes a new one.
    First,
    /// The claim replaces the record, and keeps its history.
    Over,
    /// This claim wrote the record, but the response was lost.
    Mine,
    /// The handler must not run.
    Rejected(Rejection),
}

/// Why the handler must not run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rejection {
    /// The operation is completed.
    Duplicate {
        /// The stored result.
        result: StoredResult,
        /// The queue of the message that completed the operation, if this message comes from another queue.
        other_source: Option<String>,
        /// How many times the operation was claimed.
        attempts: u64,
        /// The generation of the call key under which the operation was completed.
        generation: u64,
        /// How long ago the operation was completed.
        age: Duration,
    },
    /// The key was used earlier for a different payload. The record stays unchanged.
    KeyReused,
    /// The payload failed permanently after the message was sent. Holds the stored error.
    FailedBefore(String),
    /// Another worker holds the claim, or a request of an earlier attempt may still have its effect.
    Conflict {
        /// Token of the other claim.
        owner: Owner,
        /// When this worker may claim.
        until: Timestamp,
    },
    /// An attempt with a different payload is open, and its lease has ended.
    PayloadConflict {
        /// Claim time of the earliest open attempt.
        open_since: Option<Timestamp>,
    },
}

/// Decides whether `claim` may replace the record that it found. The first matching row decides.
///
/// | found | decision |
/// | --- | --- |
/// | nothing, or a record past `expires_at` | first record |
/// | a record of this claim | mine |
/// | `COMPLETED`, same payload | duplicate |
/// | `COMPLETED`, other payload | key reused |
/// | a failure of the payload, and the message was sent at or before its time | failed before |
/// | `FAILED` with an open attempt, and the lookup's quarantine after the failure has not ended | conflict until then |
/// | `FAILED` | over the record |
/// | `IN_PROGRESS`, and the lease (with a lookup, also the quarantine) has not ended | conflict until then |
/// | `IN_PROGRESS`, other payload | payload conflict |
/// | `IN_PROGRESS` | over the record |
#[must_use]
pub fn decide(found: Option<&Record>, claim: &Claim) -> Decision {
    let is_kept =
        |record: &&Record| !record.is_expired(claim.now) || flawed("a record is kept for ever");
    let Some(record) = found.filter(is_kept) else {
        return Decision::First;
    };
    if record.stamp.owner == claim.owner && !flawed("a claim does not know its own record") {
        return Decision::Mine;
    }
    let quarantine = claim.quarantine.unwrap_or_default();
    let conflict = |until| Rejection::Conflict {
        owner: record.stamp.owner.clone(),
        until,
    };
    Decision::Rejected(match (&record.state, claim.failure_in(record)) {
        (State::Completed { .. }, _) if flawed("a completed key is claimed") => {
            return Decision::Over;
        }
        (State::Completed { result }, _) if claim.has_payload_of(record) => {
            record.duplicate(result, claim)
        }
        (State::Completed { .. }, _) => Rejection::KeyReused,
        (_, Some(failure)) if !flawed("a failed message is claimed again") => {
            Rejection::FailedBefore(failure.error.clone())
        }
        (State::Failed, _) => match record.last_failure() {
            Some(at)
                if claim.quarantine.is_some()
                    && record.first_claimed_at.is_some()
                    && at + quarantine >= claim.now =>
            {
                conflict(at + quarantine)
            }
            _ => return Decision::Over,
        },
        (State::InProgress { lease_until }, _)
            if *lease_until + quarantine >= claim.now && !flawed("a live lease is taken over") =>
        {
            conflict(*lease_until + quarantine)
        }
        (State::InProgress { .. }, _)
            if !claim.has_payload_of(record)
                && !flawed("an open attempt of another payload is taken over") =>
        {
            Rejection::PayloadConflict {
                open_since: record.first_claimed_at,
            }
        }
        (State::InProgress { .. }, _) => return Decision::Over,
    })
}

/// Returns what a record says about a message whose body is gone, or `None` if the record doesn't say whether the message
/// was processed. Nobody knows the payload of such a message. The caller must not claim the key in either case.
///
/// | found | answer |
/// | --- | --- |
/// | `COMPLETED` by this message | duplicate |
/// | a failure of this message | failed before |
/// | `IN_PROGRESS`, and the lease (with a lookup, also the quarantine) has not ended | conflict until then |
/// | anything else | `None` |
#[must_use]
pub fn decide_without_body(found: Option<&Record>, claim: &Claim) -> Option<Rejection> {
    let record = found.filter(|record| !record.is_expired(claim.now))?;
    let mut failures = record.failures.iter();
    let failure = failures.find(|failure| failure.message_id == claim.message_id);
    match (&record.state, failure) {
        (State::Completed { result }, _) if record.message_id == claim.message_id => {
            Some(record.duplicate(result, claim))
        }
        (_, Some(failure)) => Some(Rejection::FailedBefore(failure.error.clone())),
        (State::InProgress { lease_until }, _) => {
            let until = *lease_until + claim.quarantine.unwrap_or_default();
            (until >= claim.now).then(|| Rejection::Conflict {
                owner: record.stamp.owner.clone(),
                until,
            })
        }
        _ => None,
    }
}

impl Claim {
    /// Creates a claim without a fingerprint, for a message that was sent now. `expires_at` is in seconds since the epoch.
    #[must_use]
    pub fn new(
        owner: Owner,
        message_id: impl Into<String>,
        now: Timestamp,
        lease_until: Timestamp,
        expires_at: u64,
    ) -> Self {
        Self {
            owner,
            fingerprint: None,
            message_id: message_id.into(),
            sent_at: Some(now),
            source: None,
            now,
            lease_until,
            expires_at,
            quarantine: None,
        }
    }

    /// Returns whether the record may have this payload. We rule that out only if both fingerprints are known and differ.
    fn has_payload_of(&self, record: &Record) -> bool {
        Fingerprint::may_be_same(&record.fingerprint, &self.fingerprint)
    }

    /// Returns the recorded failure that answers this message. Without a send time, the message's id must match, and the failure
    /// must not stand for other payloads.
    fn failure_in<'a>(&self, record: &'a Record) -> Option<&'a RecordedFailure> {
        let is_answer = |failure: &&RecordedFailure| {
            let is_earlier = match self.sent_at {
                Some(sent_at) => sent_at <= failure.at,
                None => {
                    self.message_id == failure.message_id
                        && (failure.fingerprint.is_some() || self.fingerprint.is_none())
                }
            };
            is_earlier
                && (Fingerprint::may_be_same(&failure.fingerprint, &self.fingerprint)
                    || flawed("a failure answers every payload"))
        };
        record.failures.iter().find(is_answer)
    }
}

impl Record {
    fn duplicate(&self, result: &StoredResult, claim: &Claim) -> Rejection {
        Rejection::Duplicate {
            result: result.clone(),
            other_source: self.other_source(claim),
            attempts: self.attempts,
            generation: self.generation,
            age: self.updated_at.until(claim.now),
        }
    }

    fn other_source(&self, claim: &Claim) -> Option<String> {
        let other = claim.source.is_some() && self.source != claim.source;
        let is_told = !flawed("a duplicate of another queue is not told");
        self.source.clone().filter(|_| other && is_told)
    }

    /// Returns the record that a claim writes. `replaced` is the previous record, or `None` if it has expired.
    ///
    /// With `alone`, the handler runs alone. The same write counts the attempt and sets a longer lease, so that the message
    /// rests if the process dies.
    #[must_use]
    pub fn claimed(
        claim: &Claim,
        version: u64,
        replaced: Option<&Self>,
        alone: Option<&CrashWaits>,
    ) -> Self {
        let before = replaced.map_or(0, |record| record.exclusive_attempts);
        let exclusive_attempts = before
            + u64::from(alone.is_some() && !flawed("attempts alone are not counted"))
            + u64::from(alone.is_some() && flawed("an attempt alone counts twice"));
        let lease_until = match alone {
            Some(waits) => lease_alone(exclusive_attempts, waits, claim.now, claim.lease_until),
            None => claim.lease_until,
        };
        // Keep the record at least until others may take over.
        let kept_until = lease_until + claim.quarantine.unwrap_or_default();
        Self {
            stamp: Stamp {
                owner: claim.owner.clone(),
                version,
            },
            state: State::InProgress { lease_until },
            expires_at: claim.expires_at.max(kept_until.as_secs_ceil()),
            fingerprint: claim.fingerprint.clone(),
            message_id: claim.message_id.clone(),
            source: claim.source.clone(),
            attempts: replaced.map_or(0, |record| record.attempts) + 1,
            // This claim can be the earlier one: it may be applied late, or its worker's clock may be behind.
            first_claimed_at: replaced
                .and_then(|record| record.first_claimed_at)
                .filter(|_| !flawed("the first claim's time is moved to the last"))
                .map_or(Some(claim.now), |open| Some(open.min(claim.now))),
            last_end: None,
            exclusive_attempts,
            failures: replaced
                .filter(|_| !flawed("a claim forgets the failures"))
                .map_or_else(Vec::new, |record| record.failures.clone()),
            generation: replaced.map_or(0, |record| record.generation),
            open_other: replaced.is_some_and(|record| {
                record.first_claimed_at.is_some()
                    && (record.open_other || !claim.has_payload_of(record))
                    && !flawed("another payload is not told")
            }),
            updated_at: claim.now,
        }
    }
}

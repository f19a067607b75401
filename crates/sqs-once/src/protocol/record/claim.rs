//! [`ClaimRequest`]: the contents of a claim. [`FencingToken`]: the fencing token, which is the condition of
//! every write after it.

use std::{collections::BTreeSet, time::Duration};

use super::{Owner, Record, State, Timestamp};
use crate::protocol::key::{Fingerprint, Key};

/// The contents of one claim.
///
/// The worker reads the clock before it sends the request, so a slow response shortens the lease and never
/// extends it.
///
/// [`Store`](crate::store::Store) shows a claim in use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimRequest {
    /// Key of the operation.
    pub key: Key,
    /// Owner token of the claim.
    pub owner: Owner,
    /// Fingerprint of the payload. `None` matches every fingerprint.
    pub fingerprint: Option<Fingerprint>,
    /// Message that carries the operation.
    pub message_id: String,
    /// The claiming worker's clock.
    pub now: Timestamp,
    /// End of the lease: the claim is exclusive until then.
    pub lease_until: Timestamp,
    /// How long after the end of an earlier lease this claim may take over. Zero, unless the consumer
    /// [looks up](crate::LookUp) what an earlier attempt did: then it is the lease margin plus the
    /// quarantine.
    pub takeover_after: Duration,
    /// End of the record's retention, in seconds since the epoch.
    pub expires_at: u64,
    /// How a `FAILED` record affects other messages.
    pub after_failure: AfterFailure,
}

/// How a `FAILED` record affects other messages with the same key.
///
/// In both cases, a message that failed permanently itself gets the stored error again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AfterFailure {
    /// A different message, whether sent anew or redriven from the dead-letter queue, runs the handler, until
    /// [`MAX_FAILED_MESSAGES`](super::MAX_FAILED_MESSAGES) messages have failed.
    #[default]
    Retry,
    /// A different message gets the stored error while the record is kept.
    Replay,
}

/// Returns how long after the end of a lease another attempt may take over: at once, but with a look-up after the lease
/// margin and the quarantine.
#[doc(hidden)]
#[must_use]
pub fn takeover_after(lease_margin: Duration, quarantine: Option<Duration>) -> Duration {
    quarantine.map_or(Duration::ZERO, |wait| lease_margin.saturating_add(wait))
}

/// Returns when a record that is written now expires, in seconds since the epoch: at the end of its retention, but not
/// before `kept_until`.
#[doc(hidden)]
#[must_use]
pub fn expires_at(now: Timestamp, retention: Duration, kept_until: Timestamp) -> u64 {
    (now + retention).max(kept_until).as_secs_ceil()
}

impl ClaimRequest {
    /// Creates a claim without a fingerprint that runs even after a different message failed
    /// ([`AfterFailure::Retry`]).
    ///
    /// `expires_at` is in seconds since the epoch.
    #[must_use]
    pub fn new(
        key: Key,
        owner: Owner,
        message_id: impl Into<String>,
        now: Timestamp,
        lease_until: Timestamp,
        expires_at: u64,
    ) -> Self {
        Self {
            key,
            owner,
            fingerprint: None,
            message_id: message_id.into(),
            now,
            lease_until,
            takeover_after: Duration::ZERO,
            expires_at,
            after_failure: AfterFailure::default(),
        }
    }

    /// Returns the record after this claim. `replaces` is the record before the claim, and is
    /// `None` if that record was expired.
    ///
    /// The new record keeps the messages that failed, the last permanent failure, the creation time,
    /// the claim time of the earliest open attempt and the count of attempts alone.
    #[must_use]
    pub fn record(&self, replaces: Option<&Record>) -> Record {
        let first_claimed_at = replaces
            .and_then(|r| r.first_claimed_at)
            .unwrap_or(self.now);
        Record {
            state: State::InProgress {
                lease_until: self.lease_until,
            },
            owner: Some(self.owner.clone()),
            expires_at: self.expires_at,
            fingerprint: self.fingerprint.clone(),
            message_id: Some(self.message_id.clone()),
            attempts: replaces.map_or(0, |r| r.attempts) + 1,
            first_claimed_at: Some(first_claimed_at),
            last_end: None,
            exclusive_attempts: replaces.map_or(0, |r| r.exclusive_attempts),
            error: replaces.and_then(|r| r.error.clone()),
            failed_message_ids: replaces
                .map_or_else(BTreeSet::new, |r| r.failed_message_ids.clone()),
            created_at: replaces.and_then(|r| r.created_at).or(Some(self.now)),
            updated_at: Some(self.now),
        }
    }

    /// Returns the time before which an earlier lease must have ended for this claim to take over.
    #[must_use]
    pub fn takes_over_leases_before(&self) -> Timestamp {
        let wait = u64::try_from(self.takeover_after.as_millis()).unwrap_or(u64::MAX);
        Timestamp::from_millis(self.now.as_millis().saturating_sub(wait))
    }

    /// Returns the fencing token for this claim's later writes.
    #[must_use]
    pub fn fence(&self) -> FencingToken {
        FencingToken {
            key: self.key.clone(),
            owner: self.owner.clone(),
            lease_until: None,
            first_claimed_at: None,
        }
    }
}

/// The fencing token of a claim: the condition of every write after the claim. The record must still have
/// this owner and still be `IN_PROGRESS`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FencingToken {
    /// Key of the operation.
    pub key: Key,
    /// Owner token of the claim.
    pub owner: Owner,
    /// End of the lease that the record must have. `None` accepts every lease.
    ///
    /// Renewals set it, so that a renewal that arrives after the worker ended the lease changes nothing.
    pub lease_until: Option<Timestamp>,
    /// Claim time of the earliest open attempt that the record must have. `None` accepts every time.
    ///
    /// When the worker abandons a claim that got no response, it sets this to the time of that claim. So it
    /// records [`AttemptEnd::NotStarted`](super::AttemptEnd::NotStarted) only if no earlier attempt is open.
    pub first_claimed_at: Option<Timestamp>,
}

impl FencingToken {
    /// Returns this token for records whose lease ends at `lease_until`.
    #[must_use]
    pub fn with_lease(self, lease_until: Timestamp) -> Self {
        Self {
            lease_until: Some(lease_until),
            ..self
        }
    }

    /// Returns this token for records whose earliest open attempt was claimed at `first_claimed_at`.
    #[must_use]
    pub fn with_first_claim(self, first_claimed_at: Timestamp) -> Self {
        Self {
            first_claimed_at: Some(first_claimed_at),
            ..self
        }
    }
}

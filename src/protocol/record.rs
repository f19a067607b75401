//! [`Record`]: the item for one key. [`Fence`]: the condition of a change of it.

use std::{
    collections::BTreeSet,
    fmt,
    time::{Duration, SystemTime},
};

use super::key::{Fingerprint, Key};

/// The most bytes a DynamoDB item may have, names and values together (*Amazon DynamoDB
/// Developer Guide*, "Constraints in Amazon DynamoDB").
pub const MAX_ITEM_BYTES: usize = 400 * 1024;

/// The most bytes of a handler's output that are stored.
///
/// The rest of [`MAX_ITEM_BYTES`] when the key (at most 2 KB), a message id and the
/// other attributes have had their room.
pub const MAX_RESULT_BYTES: usize = MAX_ITEM_BYTES - 8 * 1024;

/// The most bytes of a failure's text that are stored: it is for people to read.
pub const MAX_ERROR_BYTES: usize = 4 * 1024;

/// The most messages that may fail permanently under one key while its record is kept. After
/// that, no further message with the key runs.
pub const MAX_FAILED_MESSAGES: usize = 20;

/// A point in time: milliseconds since the Unix epoch.
///
/// ```
/// use std::time::Duration;
/// use sqs_once::protocol::Timestamp;
///
/// let at = Timestamp::from_millis(1_500) + Duration::from_millis(1);
/// assert_eq!((at.as_millis(), at.as_secs(), at.as_secs_ceil()), (1_501, 1, 2));
/// assert_eq!(at.until(Timestamp::default()), Duration::ZERO);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(u64);

impl Timestamp {
    /// This many milliseconds after the epoch.
    #[must_use]
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis)
    }

    /// Milliseconds since the epoch.
    #[must_use]
    pub const fn as_millis(self) -> u64 {
        self.0
    }

    /// Whole seconds since the epoch, rounded down.
    #[must_use]
    pub const fn as_secs(self) -> u64 {
        self.0 / 1000
    }

    /// Whole seconds since the epoch, rounded up: never earlier than `self`.
    #[must_use]
    pub const fn as_secs_ceil(self) -> u64 {
        self.0.div_ceil(1000)
    }

    /// How long from `self` to `later`; zero if that is not later.
    #[must_use]
    pub fn until(self, later: Self) -> Duration {
        Duration::from_millis(later.0.saturating_sub(self.0))
    }
}

/// In RFC 3339, to the second: `2026-11-21T10:50:00Z`.
impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        /// The end of the year 9999, the last that RFC 3339 can write.
        const LAST: u64 = 253_402_300_799;
        let since = Duration::from_secs(self.as_secs().min(LAST));
        humantime::format_rfc3339_seconds(SystemTime::UNIX_EPOCH + since).fmt(f)
    }
}

impl std::ops::Add<Duration> for Timestamp {
    type Output = Self;

    /// Saturates: a retention of centuries is "for ever".
    fn add(self, span: Duration) -> Self {
        Self(
            self.0
                .saturating_add(u64::try_from(span.as_millis()).unwrap_or(u64::MAX)),
        )
    }
}

/// The owner of a claim: a random token, new for each claim.
///
/// ```
/// use sqs_once::protocol::Owner;
///
/// assert_ne!(Owner::fresh(), Owner::fresh());
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Owner(String);

impl Owner {
    /// A token read back from a record.
    #[must_use]
    pub fn from_stored(text: String) -> Self {
        Self(text)
    }

    /// The token.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A handler's output as the record keeps it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoredResult {
    /// The output, as JSON text.
    Json(String),
    /// The output could not be kept; the text says why, with its size. The operation is
    /// COMPLETED all the same: its effect has happened.
    Omitted(String),
}

impl StoredResult {
    /// `json` if it fits ([`MAX_RESULT_BYTES`]), else a note of its size.
    ///
    /// ```
    /// use sqs_once::protocol::{StoredResult, record::MAX_RESULT_BYTES};
    ///
    /// assert_eq!(StoredResult::fit("1".into()), StoredResult::Json("1".into()));
    /// let long = "x".repeat(MAX_RESULT_BYTES + 1);
    /// assert!(matches!(StoredResult::fit(long), StoredResult::Omitted(_)));
    /// ```
    #[must_use]
    pub fn fit(json: String) -> Self {
        if json.len() <= MAX_RESULT_BYTES {
            Self::Json(json)
        } else {
            Self::Omitted(format!(
                "output of {} bytes not stored: a record holds at most {MAX_RESULT_BYTES}",
                json.len()
            ))
        }
    }
}

/// The status of an operation.
///
/// ```
/// use sqs_once::protocol::{State, Timestamp};
///
/// assert_eq!(State::InProgress { lease_until: Timestamp::now() }.name(), "IN_PROGRESS");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// A worker holds a claim, or held one that it did not settle.
    InProgress {
        /// The claim is exclusive until then. After it, another worker can take it over.
        lease_until: Timestamp,
    },
    /// The operation is done, for as long as the record is kept.
    Completed {
        /// The output of the handler.
        result: StoredResult,
    },
    /// The last attempt failed permanently: see [`Record::error`].
    Failed,
}

impl State {
    /// The word in the record's `status`.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::InProgress { .. } => "IN_PROGRESS",
            Self::Completed { .. } => "COMPLETED",
            Self::Failed => "FAILED",
        }
    }
}

/// The end of an attempt that left its operation open, as far as its worker could record it.
///
/// ```
/// use sqs_once::protocol::AttemptEnd;
///
/// assert_eq!(AttemptEnd::Panic.name(), "panic");
/// assert_eq!(AttemptEnd::from_name("deadline"), Some(AttemptEnd::Deadline));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum AttemptEnd {
    /// The handler returned a retryable failure.
    Retryable,
    /// The handler panicked.
    Panic,
    /// The handler was cut off at the deadline.
    Deadline,
}

impl AttemptEnd {
    /// The word in the record's `last_end`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Retryable => "retryable",
            Self::Panic => "panic",
            Self::Deadline => "deadline",
        }
    }

    /// Reads the word back.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        let all = [Self::Retryable, Self::Panic, Self::Deadline];
        all.into_iter().find(|end| end.name() == name)
    }
}

/// The item for one key in the idempotency table.
///
/// A record that another program wrote (see
/// [`Layout::powertools`](crate::store::Layout::powertools)) may have no owner, no message and no
/// times. Without an owner, no worker can settle it.
///
/// An attempt is *open* if it may have had its effect without that being recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Record {
    /// The status.
    pub state: State,
    /// The token of the current or last claim.
    pub owner: Option<Owner>,
    /// Seconds since the epoch. After it, the record counts as absent, deleted or not: DynamoDB's
    /// TTL deletes expired items "within a few days".
    pub expires_at: u64,
    /// The fingerprint that the payload must have.
    pub fingerprint: Option<Fingerprint>,
    /// The message of the current or last claim.
    pub message_id: Option<String>,
    /// Claims made since the record was created; 0 if another program wrote it.
    pub attempts: u64,
    /// The time of the claim of the earliest open attempt: 0 if it is not known, `None` if no
    /// attempt is open.
    pub first_claimed_at: Option<Timestamp>,
    /// How the last attempt ended. `None` if that is not known (crash).
    pub last_end: Option<AttemptEnd>,
    /// The last permanent failure. A record in progress keeps the one of a message before.
    pub error: Option<String>,
    /// The messages that failed permanently under this key, at most [`MAX_FAILED_MESSAGES`].
    pub failed_message_ids: BTreeSet<String>,
    /// When the record was created.
    pub created_at: Option<Timestamp>,
    /// When the record last changed.
    pub updated_at: Option<Timestamp>,
}

impl Record {
    /// A record with this status, and nothing else known. A [`Store`](crate::store::Store) that
    /// reads a record sets the other fields from its table.
    ///
    /// ```
    /// use sqs_once::protocol::{Record, State};
    ///
    /// let mut record = Record::new(State::Failed, 1_800_000_000);
    /// record.error = Some("the card was declined".into());
    /// assert_eq!(record.attempts, 0);
    /// ```
    #[must_use]
    pub fn new(state: State, expires_at: u64) -> Self {
        Self {
            state,
            owner: None,
            expires_at,
            fingerprint: None,
            message_id: None,
            attempts: 0,
            first_claimed_at: None,
            last_end: None,
            error: None,
            failed_message_ids: BTreeSet::new(),
            created_at: None,
            updated_at: None,
        }
    }

    /// Returns whether the record is past its `expires_at`, and counts as absent.
    #[must_use]
    pub const fn is_expired(&self, now: Timestamp) -> bool {
        self.expires_at < now.as_secs()
    }

    /// Returns whether it is a claim that another program made: no owner of ours can be its fence.
    ///
    /// Every claim of this version counts its attempts, so a record without them is another
    /// program's, or an earlier version's.
    pub(crate) const fn is_foreign_claim(&self) -> bool {
        matches!(self.state, State::InProgress { .. }) && self.attempts == 0
    }
}

/// The contents of one claim.
///
/// All its times were taken before the request is sent, so a slow answer shortens the
/// lease and never lengthens it.
///
/// See [`Store`](crate::store::Store) for one in use.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClaimRequest {
    /// The operation.
    pub key: Key,
    /// The token of the claim.
    pub owner: Owner,
    /// The fingerprint of the payload; `None` is not compared.
    pub fingerprint: Option<Fingerprint>,
    /// The message that carries it.
    pub message_id: String,
    /// The asker's clock.
    pub now: Timestamp,
    /// Until when the claim is to be exclusive.
    pub lease_until: Timestamp,
    /// Seconds since the epoch until which the record is kept at least.
    pub expires_at: u64,
    /// The effect of a FAILED record on another message.
    pub after_failure: AfterFailure,
}

/// The effect of a FAILED record on another message with its key. A message that failed itself
/// gets the stored error again, whatever is chosen here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum AfterFailure {
    /// Another message runs (a new send, or a redrive from the dead-letter queue), until
    /// [`MAX_FAILED_MESSAGES`] have failed.
    #[default]
    Retry,
    /// Another message gets the stored error too, for as long as the record is kept.
    Replay,
}

impl ClaimRequest {
    /// A claim without a fingerprint, which another message's failure does not stop
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
            expires_at,
            after_failure: AfterFailure::default(),
        }
    }

    /// The record that this claim makes of the one that it `replaces`, which is not expired.
    ///
    /// It keeps what must outlive an attempt: the messages that failed, the last permanent failure
    /// and the time of the earliest open attempt.
    #[must_use]
    pub fn record(&self, replaces: Option<&Record>) -> Record {
        let first_claimed_at = match replaces {
            // Another program made it, so the time of its attempt is not known.
            Some(record) if record.is_foreign_claim() => Timestamp::default(),
            _ => replaces
                .and_then(|r| r.first_claimed_at)
                .unwrap_or(self.now),
        };
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
            error: replaces.and_then(|r| r.error.clone()),
            failed_message_ids: replaces
                .map_or_else(BTreeSet::new, |r| r.failed_message_ids.clone()),
            created_at: replaces.and_then(|r| r.created_at).or(Some(self.now)),
            updated_at: Some(self.now),
        }
    }

    /// The condition of this claim's later writes.
    #[must_use]
    pub fn fence(&self) -> Fence {
        Fence {
            key: self.key.clone(),
            owner: self.owner.clone(),
        }
    }
}

/// The condition of every write after the claim: the record still has this owner
/// and still `IN_PROGRESS`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Fence {
    /// The operation.
    pub key: Key,
    /// The token of the claim.
    pub owner: Owner,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owner_is_32_random_hex_digits() {
        let (one, other) = (Owner::fresh(), Owner::fresh());
        assert_ne!(one, other);
        assert_eq!(one.to_string(), one.as_str());
        assert_eq!(one.as_str().len(), 32);
        assert!(one.as_str().chars().all(|c| c.is_ascii_hexdigit()));
    }

    #[test]
    fn timestamp_is_shown_in_rfc_3339() {
        let shown = |millis| Timestamp::from_millis(millis).to_string();
        assert_eq!(shown(1_795_258_200_999), "2026-11-21T10:50:00Z");
        assert_eq!(shown(u64::MAX), "9999-12-31T23:59:59Z");
    }

    #[test]
    fn stored_texts_are_limited() {
        assert_eq!((MAX_RESULT_BYTES, MAX_ERROR_BYTES), (392 * 1024, 4096));
    }
}

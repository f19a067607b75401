//! [`Record`]: the table item for one key. [`Fence`]: the condition of every write after a claim.

use std::{
    collections::BTreeSet,
    fmt, mem,
    time::{Duration, SystemTime},
};

use serde::Deserialize;
use serde_json::json;
use sha2::{Digest as _, Sha256};

use super::key::{Fingerprint, Key, hex};

/// Maximum size of a DynamoDB item in bytes, attribute names and values together (*Amazon DynamoDB
/// Developer Guide*, "Constraints in Amazon DynamoDB").
pub const MAX_ITEM_BYTES: usize = 400 * 1024;

/// Maximum size of a handler's output in a record, in bytes of JSON.
///
/// The rest of [`MAX_ITEM_BYTES`] is for the key (at most 2 KB), a message id and the other
/// attributes.
pub const MAX_RESULT_BYTES: usize = MAX_ITEM_BYTES - 8 * 1024;

/// Maximum size of a failure's text in a record, in bytes. Longer texts are cut.
pub const MAX_ERROR_BYTES: usize = 4 * 1024;

/// Maximum number of messages that may fail permanently under one key while the record is kept.
/// Further messages with this key do not run.
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
    /// Creates a time from milliseconds since the epoch.
    #[must_use]
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis)
    }

    /// Returns milliseconds since the epoch.
    #[must_use]
    pub const fn as_millis(self) -> u64 {
        self.0
    }

    /// Returns whole seconds since the epoch, rounded down.
    #[must_use]
    pub const fn as_secs(self) -> u64 {
        self.0 / 1000
    }

    /// Returns whole seconds since the epoch, rounded up. The result is never earlier than `self`.
    #[must_use]
    pub const fn as_secs_ceil(self) -> u64 {
        self.0.div_ceil(1000)
    }

    /// Returns the time from `self` to `later`, or zero if `later` is not after `self`.
    #[must_use]
    pub fn until(self, later: Self) -> Duration {
        Duration::from_millis(later.0.saturating_sub(self.0))
    }
}

/// Displays the time in RFC 3339, to the second: `2026-11-21T10:50:00Z`.
impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        /// The end of the year 9999, the last year of RFC 3339.
        const LAST: u64 = 253_402_300_799;
        let since = Duration::from_secs(self.as_secs().min(LAST));
        humantime::format_rfc3339_seconds(SystemTime::UNIX_EPOCH + since).fmt(f)
    }
}

impl std::ops::Add<Duration> for Timestamp {
    type Output = Self;

    /// Adds `span`, and saturates on overflow.
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
    /// Creates an owner from the token in a record.
    #[must_use]
    pub fn from_stored(text: String) -> Self {
        Self(text)
    }

    /// Returns the token.
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

/// A handler's output as stored in the record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoredResult {
    /// The output, as JSON text.
    Json(String),
    /// The output is an object in S3.
    InS3(Box<ResultPointer>),
    /// The output could not be stored. The text states the reason and the output's size.
    ///
    /// The record is `COMPLETED` nevertheless, because the effect has occurred. A consumer also puts this
    /// in place of an output when a message has ended, so that a batch does not keep all its outputs in
    /// memory.
    Omitted(String),
}

/// The object in S3 that holds a handler's output, as JSON text.
///
/// ```
/// use sqs_once::protocol::{Key, Namespace, Owner, ResultPointer};
///
/// let key = Key::new(&Namespace::new("reports")?, ["2026-11"])?;
/// let pointer = ResultPointer::new("outputs", &key, &Owner::fresh(), b"[1,2]");
/// assert!(pointer.key.starts_with("results/"));
/// assert!(pointer.is_of(b"[1,2]"));
/// assert!(!pointer.is_of(b"[1,3]"));
/// # Ok::<(), sqs_once::protocol::KeyError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct ResultPointer {
    /// Name of the bucket.
    pub bucket: String,
    /// Key of the object: `results/`, the SHA-256 of the idempotency key, the owner of the claim, and
    /// the SHA-256 of the output.
    ///
    /// Each pair of key and output has one owner, so a late write of one attempt never replaces the
    /// object of another.
    pub key: String,
    /// SHA-256 of the output, lower-case hex.
    pub sha256: String,
    /// Length of the output in bytes.
    pub bytes: usize,
}

impl ResultPointer {
    /// Creates the pointer to an output of the operation `key`, by the attempt of `owner`.
    #[must_use]
    pub fn new(bucket: impl Into<String>, key: &Key, owner: &Owner, output: &[u8]) -> Self {
        Self::of_digest(bucket, key, owner, &Sha256::digest(output), output.len())
    }

    /// Creates the pointer to an output with this SHA-256 and length.
    pub fn of_digest(
        bucket: impl Into<String>,
        key: &Key,
        owner: &Owner,
        digest: &[u8],
        bytes: usize,
    ) -> Self {
        let sha256 = hex(digest);
        let operation = hex(&Sha256::digest(key.as_str().as_bytes()));
        Self {
            bucket: bucket.into(),
            key: format!("results/{operation}/{owner}/{sha256}"),
            sha256,
            bytes,
        }
    }

    /// Returns whether `output` is the output that was stored, by its digest.
    #[must_use]
    pub fn is_of(&self, output: &[u8]) -> bool {
        hex(&Sha256::digest(output)) == self.sha256
    }

    /// The pointer as a record holds it.
    pub fn to_json(&self) -> String {
        let Self {
            bucket,
            key,
            sha256,
            bytes,
        } = self;
        json!({"bucket": bucket, "key": key, "sha256": sha256, "bytes": bytes}).to_string()
    }
}

/// Displays the URI of the object: `s3://bucket/key`.
impl fmt::Display for ResultPointer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "s3://{}/{}", self.bucket, self.key)
    }
}

/// The reason in a record whose output was not to be stored.
const NOT_WANTED: &str = "IDEMPOTENCY_RESULTS=none";

/// The reason in place of an output that is in the record, and no longer in memory.
const IN_RECORD: &str = "the output is in the record";

impl StoredResult {
    /// The result of an operation whose output is not to be stored.
    pub(crate) fn not_wanted() -> Self {
        Self::Omitted(NOT_WANTED.to_owned())
    }

    /// The reason why an output is not stored that was to be stored.
    pub fn missing(&self) -> Option<&str> {
        match self {
            Self::Omitted(why) if why != NOT_WANTED && why != IN_RECORD => Some(why),
            _ => None,
        }
    }

    /// Takes the output out, and leaves what is known of it beside its text.
    pub fn take(&mut self) -> Self {
        match self {
            Self::Json(_) => mem::replace(self, Self::Omitted(IN_RECORD.to_owned())),
            Self::InS3(_) | Self::Omitted(_) => self.clone(),
        }
    }

    /// Returns `json` up to [`MAX_RESULT_BYTES`], and [`StoredResult::Omitted`] beyond.
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
    /// A worker holds a claim, or left a claim without a settlement.
    InProgress {
        /// End of the lease. Until then the claim is exclusive. Afterwards another worker can take
        /// over.
        lease_until: Timestamp,
    },
    /// The operation is completed. Its handler never runs again while the record is kept.
    Completed {
        /// The output of the handler.
        result: StoredResult,
    },
    /// The last attempt failed permanently. [`Record::error`] holds the text.
    Failed,
}

impl State {
    /// Returns the value of the record's `status` attribute.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::InProgress { .. } => "IN_PROGRESS",
            Self::Completed { .. } => "COMPLETED",
            Self::Failed => "FAILED",
        }
    }
}

/// The recorded end of an attempt that may have had its effect.
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
    /// The handler was never started: the claim got no answer and was abandoned. Only the abandon of
    /// a claim that set `first_claimed_at` writes this.
    NotStarted,
}

impl AttemptEnd {
    /// Returns the value of the record's `last_end` attribute.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Retryable => "retryable",
            Self::Panic => "panic",
            Self::Deadline => "deadline",
            Self::NotStarted => "not_started",
        }
    }

    /// Parses a value of the record's `last_end` attribute. Returns `None` for unknown values.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        let all = [
            Self::Retryable,
            Self::Panic,
            Self::Deadline,
            Self::NotStarted,
        ];
        all.into_iter().find(|end| end.name() == name)
    }
}

/// The item for one key in the idempotency table.
///
/// A record of another program (see `Layout::powertools`) may
/// lack the owner, the message and the times. Without an owner, no worker can settle the record.
///
/// An attempt is *open* if it may have had its effect and no record confirms or denies the effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Status of the operation.
    pub state: State,
    /// Owner token of the current or last claim.
    pub owner: Option<Owner>,
    /// End of the retention, in seconds since the epoch. Afterwards the record counts as absent,
    /// deleted or not: DynamoDB's TTL deletes expired items "within a few days".
    pub expires_at: u64,
    /// Fingerprint that later payloads must have.
    pub fingerprint: Option<Fingerprint>,
    /// Message of the current or last claim.
    pub message_id: Option<String>,
    /// Number of claims since the record was created. 0 if another program wrote the record.
    pub attempts: u64,
    /// Claim time of the earliest open attempt. `None` if no attempt is open; 0 if the time is
    /// unknown.
    pub first_claimed_at: Option<Timestamp>,
    /// End of the last attempt. `None` if unknown, as after a crash.
    pub last_end: Option<AttemptEnd>,
    /// Attempts in a row that ran alone and have no recorded end
    /// ([`isolation`](super::isolation)).
    pub exclusive_attempts: u64,
    /// Text of the last permanent failure. A record in progress keeps the text of an earlier
    /// message.
    pub error: Option<String>,
    /// Messages that failed permanently under this key, at most [`MAX_FAILED_MESSAGES`].
    pub failed_message_ids: BTreeSet<String>,
    /// Creation time of the record.
    pub created_at: Option<Timestamp>,
    /// Time of the record's last change.
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
            exclusive_attempts: 0,
            error: None,
            failed_message_ids: BTreeSet::new(),
            created_at: None,
            updated_at: None,
        }
    }

    /// Returns whether the record is past `expires_at` and so counts as absent.
    #[must_use]
    pub const fn is_expired(&self, now: Timestamp) -> bool {
        self.expires_at < now.as_secs()
    }

    /// Returns whether another program, or an earlier version of this crate, made the claim.
    ///
    /// Every claim of this version counts attempts, so a record without attempts has another
    /// origin. No worker of this version can settle that record.
    pub const fn is_foreign_claim(&self) -> bool {
        matches!(self.state, State::InProgress { .. }) && self.attempts == 0
    }
}

/// The contents of one claim.
///
/// The worker reads the clock before it sends the request. So a slow answer shortens the lease and
/// never extends the lease.
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
    /// End of the record's retention, in seconds since the epoch.
    pub expires_at: u64,
    /// Effect of a `FAILED` record on another message.
    pub after_failure: AfterFailure,
}

/// The effect of a `FAILED` record on another message with the same key.
///
/// A message that failed permanently itself gets the stored error again in both cases.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AfterFailure {
    /// Another message (sent anew, or redriven from the dead-letter queue) runs the handler, until
    /// [`MAX_FAILED_MESSAGES`] messages have failed.
    #[default]
    Retry,
    /// Another message gets the stored error while the record is kept.
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

    /// Returns the record after this claim. `replaces` is the record before the claim, and is
    /// `None` if that record was expired.
    ///
    /// The new record keeps the messages that failed, the last permanent failure, the creation time,
    /// the claim time of the earliest open attempt and the count of attempts alone.
    #[must_use]
    pub fn record(&self, replaces: Option<&Record>) -> Record {
        let first_claimed_at = match replaces {
            // Another program made the claim, so the time of its attempt is unknown.
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
            exclusive_attempts: replaces.map_or(0, |r| r.exclusive_attempts),
            error: replaces.and_then(|r| r.error.clone()),
            failed_message_ids: replaces
                .map_or_else(BTreeSet::new, |r| r.failed_message_ids.clone()),
            created_at: replaces.and_then(|r| r.created_at).or(Some(self.now)),
            updated_at: Some(self.now),
        }
    }

    /// Returns the condition of this claim's later writes.
    #[must_use]
    pub fn fence(&self) -> Fence {
        Fence {
            key: self.key.clone(),
            owner: self.owner.clone(),
            lease_until: None,
            first_claimed_at: None,
        }
    }
}

/// The condition of every write after the claim: the record still has this owner and is still
/// `IN_PROGRESS`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fence {
    /// Key of the operation.
    pub key: Key,
    /// Owner token of the claim.
    pub owner: Owner,
    /// End of the lease that the record must have. `None` accepts every lease.
    ///
    /// Renewals set it. A renewal that arrives after the worker ended the lease changes nothing.
    pub lease_until: Option<Timestamp>,
    /// Claim time of the earliest open attempt that the record must have. `None` accepts every time.
    ///
    /// The abandon of a claim without an answer sets it to the time of that claim, and so records
    /// [`AttemptEnd::NotStarted`] only where no earlier attempt is open.
    pub first_claimed_at: Option<Timestamp>,
}

impl Fence {
    /// Returns this fence for records whose lease ends at `lease_until`.
    #[must_use]
    pub fn with_lease(self, lease_until: Timestamp) -> Self {
        Self {
            lease_until: Some(lease_until),
            ..self
        }
    }

    /// Returns this fence for records whose earliest open attempt was claimed at `first_claimed_at`.
    #[must_use]
    pub fn with_first_claim(self, first_claimed_at: Timestamp) -> Self {
        Self {
            first_claimed_at: Some(first_claimed_at),
            ..self
        }
    }
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

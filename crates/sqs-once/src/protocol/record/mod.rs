//! [`Record`]: the table item for one key. [`FencingToken`]: the fencing token of a claim.

mod claim;
mod result;
mod timestamp;

use std::{collections::BTreeSet, fmt};

pub use claim::{AfterFailure, ClaimRequest, FencingToken, expires_at, takeover_after};
pub use result::{ResultPointer, StoredResult};
pub use timestamp::Timestamp;

use super::key::Fingerprint;

/// Maximum size of a DynamoDB item in bytes, attribute names and values together (*Amazon DynamoDB
/// Developer Guide*, "Constraints in Amazon DynamoDB").
pub const MAX_ITEM_BYTES: usize = 400 * 1024;

/// Maximum size of a handler's output in a record, in bytes of JSON.
///
/// We leave the rest of [`MAX_ITEM_BYTES`] for the key (at most 2 KB), a message id and the other attributes.
pub const MAX_RESULT_BYTES: usize = MAX_ITEM_BYTES - 8 * 1024;

/// Maximum size of a failure's text in a record, in bytes. Longer texts are cut.
pub const MAX_ERROR_BYTES: usize = 4 * 1024;

/// Maximum number of messages that may fail permanently under one key while the record is kept.
/// Further messages with this key do not run.
pub const MAX_FAILED_MESSAGES: usize = 20;

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

/// The status of an operation.
///
/// ```
/// use sqs_once::protocol::{State, Timestamp};
///
/// assert_eq!(State::InProgress { lease_until: Timestamp::now() }.name(), "IN_PROGRESS");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// A worker holds a claim, or left it without a settlement.
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
    /// The handler returned a permanent failure, for an earlier message under the key. Never written: the
    /// status of the record says it.
    Permanent,
    /// The worker never started the handler: the claim got no response and the worker abandoned it. Only
    /// written if the abandoned claim set `first_claimed_at`.
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
            Self::Permanent => "permanent",
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
/// An attempt is *open* if it may have had its effect, and the record does not say whether it did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Status of the operation.
    pub state: State,
    /// Owner token of the current or last claim.
    pub owner: Option<Owner>,
    /// End of the retention, in seconds since the epoch. From then on we treat the record as absent, deleted
    /// or not: DynamoDB's TTL deletes expired items "within a few days".
    pub expires_at: u64,
    /// Fingerprint that later payloads must have.
    pub fingerprint: Option<Fingerprint>,
    /// Message of the current or last claim.
    pub message_id: Option<String>,
    /// Number of claims since the record was created.
    pub attempts: u64,
    /// Claim time of the earliest open attempt. `None` if no attempt is open; 0 if the time is
    /// unknown.
    pub first_claimed_at: Option<Timestamp>,
    /// End of the last attempt. `None` if unknown, as after a crash.
    pub last_end: Option<AttemptEnd>,
    /// Number of attempts in a row that ran alone and have no recorded end (isolation after a crash).
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
    /// Creates a record with this status and nothing else. A [`Store`](crate::store::Store) that reads a
    /// record sets the other fields from its table.
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

    /// Returns whether the record is past `expires_at`, so that claims treat it as absent.
    #[must_use]
    pub const fn is_expired(&self, now: Timestamp) -> bool {
        self.expires_at < now.as_secs()
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
    fn name_of_an_end_is_read_back() {
        let names = ["retryable", "panic", "deadline", "not_started"];
        let read = names.map(|name| AttemptEnd::from_name(name).unwrap().name());
        assert_eq!(read, names);
        assert_eq!(AttemptEnd::from_name("succeeded"), None);
    }

    #[test]
    fn stored_texts_are_limited() {
        assert_eq!((MAX_RESULT_BYTES, MAX_ERROR_BYTES), (392 * 1024, 4096));
    }
}

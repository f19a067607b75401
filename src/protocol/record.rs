//! What is remembered of an operation ([`Record`]), and who may change it ([`Fence`]).

use std::{
    fmt,
    time::{Duration, SystemTime},
};

use super::key::{Fingerprint, Key};

/// The most bytes a DynamoDB item may have, names and values together (*Amazon DynamoDB
/// Developer Guide*, "Constraints in Amazon DynamoDB").
pub const MAX_ITEM_BYTES: usize = 400 * 1024;

/// The most bytes of a handler's output that are stored.
///
/// What is left of [`MAX_ITEM_BYTES`] when the key (at most 2 KB), a message id and the
/// other attributes have had their room.
pub const MAX_RESULT_BYTES: usize = MAX_ITEM_BYTES - 8 * 1024;

/// The most bytes of a failure's text that are stored: it is for people to read.
pub const MAX_ERROR_BYTES: usize = 4 * 1024;

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

    /// What the system's clock says. Before 1970 it says 0.
    #[must_use]
    pub fn now() -> Self {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        Self(u64::try_from(since.unwrap_or_default().as_millis()).unwrap_or(u64::MAX))
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

/// Who holds a claim: a random token, a fresh one per claim.
///
/// ```
/// use sqs_once::protocol::Owner;
///
/// assert_ne!(Owner::fresh(), Owner::fresh());
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Owner(String);

impl Owner {
    /// A new token, from the operating system's random numbers: a process that was
    /// forked or restored from a snapshot never repeats one.
    #[must_use]
    pub fn fresh() -> Self {
        Self(uuid::Uuid::new_v4().simple().to_string())
    }

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

/// How far an operation is.
///
/// ```
/// use sqs_once::protocol::{State, Timestamp};
///
/// assert_eq!(State::InProgress { lease_until: Timestamp::now() }.name(), "IN_PROGRESS");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// Somebody holds a claim on it, or held one and was cut off.
    InProgress {
        /// The claim is dead after this.
        lease_until: Timestamp,
    },
    /// It is done, for as long as the record is kept.
    Completed {
        /// What the handler returned.
        result: StoredResult,
    },
    /// It failed for good.
    Failed {
        /// Why, in the handler's words.
        error: String,
    },
}

impl State {
    /// [`State::Failed`], its text cut to [`MAX_ERROR_BYTES`] at a character's edge.
    #[must_use]
    pub fn failed(mut error: String) -> Self {
        error.truncate(error.floor_char_boundary(MAX_ERROR_BYTES));
        Self::Failed { error }
    }

    /// The word that stands in the record's `status`.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::InProgress { .. } => "IN_PROGRESS",
            Self::Completed { .. } => "COMPLETED",
            Self::Failed { .. } => "FAILED",
        }
    }
}

/// The row for one key in the idempotency table.
///
/// What another program wrote (see [`Layout::powertools`](crate::store::Layout::powertools))
/// may have no owner, no message and no times. Without an owner it is nobody's to settle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// How far the operation is.
    pub state: State,
    /// Who holds, or held, the claim.
    pub owner: Option<Owner>,
    /// Seconds since the epoch: after it, the record counts as gone, deleted or not
    /// (DynamoDB's TTL deletes "within a few days").
    pub expires_at: u64,
    /// What the payload must be for this key.
    pub fingerprint: Option<Fingerprint>,
    /// The message that made this record.
    pub message_id: Option<String>,
    /// When this claim was made.
    pub created_at: Option<Timestamp>,
    /// When this record last changed.
    pub updated_at: Option<Timestamp>,
}

/// What one claim asks for.
///
/// All its times were taken before the request is sent, so a slow answer shortens the
/// lease and never lengthens it.
///
/// See [`Store`](crate::store::Store) for one in use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimRequest {
    /// The operation.
    pub key: Key,
    /// Who asks.
    pub owner: Owner,
    /// What its payload is.
    pub fingerprint: Option<Fingerprint>,
    /// The message that carries it.
    pub message_id: String,
    /// The asker's clock.
    pub now: Timestamp,
    /// Until when the claim is to be exclusive.
    pub lease_until: Timestamp,
    /// Seconds since the epoch until which the record is kept at least.
    pub expires_at: u64,
    /// What a FAILED record does to another message.
    pub after_failure: AfterFailure,
}

/// What a FAILED record does to another message with its key. To its own message, redelivered,
/// it always answers with the stored error.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AfterFailure {
    /// A new send, or a redrive from the dead-letter queue, may try again.
    #[default]
    Retry,
    /// The failure is replayed for as long as the record is kept.
    Replay,
}

impl ClaimRequest {
    /// The record that this claim writes.
    #[must_use]
    pub fn record(&self) -> Record {
        Record {
            state: State::InProgress {
                lease_until: self.lease_until,
            },
            owner: Some(self.owner.clone()),
            expires_at: self.expires_at,
            fingerprint: self.fingerprint.clone(),
            message_id: Some(self.message_id.clone()),
            created_at: Some(self.now),
            updated_at: Some(self.now),
        }
    }

    /// What this claim's later writes are conditional on.
    #[must_use]
    pub fn fence(&self) -> Fence {
        Fence {
            key: self.key.clone(),
            owner: self.owner.clone(),
        }
    }
}

/// What every write after the claim is conditional on: the record is still this owner's
/// and still `IN_PROGRESS`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fence {
    /// The operation.
    pub key: Key,
    /// Who claimed it.
    pub owner: Owner,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_owner_is_thirty_two_hexadecimal_digits_and_never_the_same() {
        let (one, other) = (Owner::fresh(), Owner::fresh());
        assert_ne!(one, other);
        assert_eq!(one.to_string(), one.as_str());
        assert_eq!(one.as_str().len(), 32);
        assert!(one.as_str().chars().all(|c| c.is_ascii_hexdigit()));
    }

    #[test]
    fn what_is_stored_has_its_limits() {
        assert_eq!((MAX_RESULT_BYTES, MAX_ERROR_BYTES), (392 * 1024, 4096));
    }
}

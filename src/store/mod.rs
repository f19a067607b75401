//! Where records live: the [`Store`] trait and its two implementations.
//!
//! A store makes single conditional writes and says what became of them. What that
//! *means* is decided by [`crate::protocol::decision`], so a further backend has two
//! methods and no rules of its own to get wrong; the suite in
//! `tests/store_conformance.rs` tells whether it got the conditions right.

pub(crate) mod dynamodb;
mod memory;
mod transaction;

use std::error::Error;

#[doc(hidden)]
pub use dynamodb::Field;
pub use dynamodb::{DynamoStore, Layout};
pub use memory::MemoryStore;
#[doc(hidden)]
pub use transaction::{Commit, CommitAnswer, RecordWrite, TransactionalStore};

use crate::protocol::{ClaimRequest, Fence, Key, Record, Settlement, Timestamp, Unavailability};

/// A table of [`Record`]s that can be written under a condition.
///
/// Both writes are atomic: the condition is checked against, and the write applied to, the
/// record as it is at one moment.
///
/// ```
/// use sqs_once::protocol::{ClaimRequest, Key, Namespace, Owner, Settlement, Timestamp};
/// use sqs_once::store::{ClaimAnswer, MemoryStore, SettleAnswer, Store};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let store = MemoryStore::default();
/// let now = Timestamp::now();
/// let key = Key::new(&Namespace::new("payments")?, ["order-1"])?;
/// let lease_until = now + std::time::Duration::from_secs(30);
/// let expires_at = now.as_secs() + 3600;
/// let request = ClaimRequest::new(key, Owner::fresh(), "m-1", now, lease_until, expires_at);
/// assert_eq!(store.claim(&request).await?, ClaimAnswer::Applied { replaced: None });
/// assert_eq!(store.claim(&request).await?, ClaimAnswer::Refused(request.record(None)));
/// let ended = store.settle(&request.fence(), &Settlement::EndLease { last_end: None }, now).await?;
/// assert_eq!(ended, SettleAnswer::Applied);
/// # Ok(()) }
/// ```
pub trait Store: Send + Sync + 'static {
    /// Writes [`ClaimRequest::record`] if [`may_claim`](crate::protocol::decision::may_claim)
    /// admits it.
    ///
    /// # Errors
    ///
    /// [`StoreError`], after this store's own retries.
    /// [`may_have_been_applied`](StoreError::may_have_been_applied) tells whether the claim can
    /// have been made all the same.
    fn claim(
        &self,
        request: &ClaimRequest,
    ) -> impl Future<Output = Result<ClaimAnswer, StoreError>> + Send;

    /// Applies `settlement` if [`may_settle`](crate::protocol::decision::may_settle) admits it.
    ///
    /// `now` becomes the record's `updated_at`. The caller repeats a settlement that got no answer,
    /// or was throttled, until its deadline: a store does not retry it.
    ///
    /// # Errors
    ///
    /// [`StoreError`]. The settlement may have been applied all the same.
    fn settle(
        &self,
        fence: &Fence,
        settlement: &Settlement,
        now: Timestamp,
    ) -> impl Future<Output = Result<SettleAnswer, StoreError>> + Send;
}

/// The answer to a claim. There is no third: a conditional write is applied or refused.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "a claim that was refused must not run"]
pub enum ClaimAnswer {
    /// The claim was made.
    Applied {
        /// The record that it replaced; `None` if there was no record, or only an expired one.
        replaced: Option<Record>,
    },
    /// This record refused the claim.
    Refused(Record),
}

/// The answer to a settlement.
#[expect(
    clippy::large_enum_variant,
    reason = "one answer lives at a time, and is taken apart at once"
)]
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "a settlement that was refused is not recorded"]
pub enum SettleAnswer {
    /// The settlement was made.
    Applied,
    /// This record refused the settlement, or there is no record.
    Refused(Option<Record>),
}

/// The reason why a store gave no answer.
///
/// ```
/// use sqs_once::store::StoreError;
///
/// let error = StoreError::OutOfTime { action: "claim", key: "payments#order-1".into() };
/// assert_eq!(error.to_string(), "could not claim key `payments#order-1`: no answer before the deadline");
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The request was not sent: the item would be too large.
    #[error(
        "the record of key `{key}` would have {bytes} bytes, and at most {limit} are left for it in a DynamoDB item: shorten the message id"
    )]
    ItemTooLarge {
        /// The key.
        key: String,
        /// Its size.
        bytes: usize,
        /// The most there may be.
        limit: usize,
    },
    /// The store cannot be reached, throttles or rejects the request.
    #[error("could not {action} key `{key}` in {store}: {reason}")]
    Unavailable {
        /// The effect of the request, and the use of repeating it.
        #[doc(hidden)]
        kind: Unavailability,
        /// The request, in a word.
        action: &'static str,
        /// On which key.
        key: String,
        /// Where.
        store: String,
        /// The reason, and what can be done about it.
        reason: String,
        /// The cause.
        #[source]
        source: Box<dyn Error + Send + Sync>,
    },
    /// The table rejects the write, or it met contention until no time was left.
    #[error("could not {action} key `{key}`: {reason}")]
    Rejected {
        /// The request, in a word.
        action: &'static str,
        /// On which key.
        key: String,
        /// The reason.
        reason: String,
    },
    /// There was no answer before the deadline.
    #[error("could not {action} key `{key}`: no answer before the deadline")]
    OutOfTime {
        /// The request, in a word.
        action: &'static str,
        /// On which key.
        key: String,
    },
    /// A record was found that does not say what a record must.
    #[error(
        "the record of key `{key}` in {store} can't be read: {reason}. Was it written by another program, or edited by hand? Mend or delete it"
    )]
    Unreadable {
        /// The key.
        key: String,
        /// Where.
        store: String,
        /// The reason: it names the attribute.
        reason: String,
    },
}

impl StoreError {
    /// A request without an answer, or with one that cannot be read: it may have been applied.
    ///
    /// `action` is the request in a word, `store` a name of the store for people, and `reason` holds
    /// no payload.
    ///
    /// ```
    /// use sqs_once::protocol::{Key, Namespace};
    /// use sqs_once::store::StoreError;
    ///
    /// let key = Key::new(&Namespace::new("payments")?, ["order-1"])?;
    /// let error = StoreError::unanswered("claim", &key, "table `records`", "connection reset");
    /// assert!(error.may_have_been_applied());
    /// assert_eq!(
    ///     error.to_string(),
    ///     "could not claim key `payments#order-1` in table `records`: connection reset",
    /// );
    /// # Ok::<(), sqs_once::protocol::KeyError>(())
    /// ```
    #[must_use]
    pub fn unanswered(
        action: &'static str,
        key: &Key,
        store: impl Into<String>,
        reason: impl Into<Box<dyn Error + Send + Sync>>,
    ) -> Self {
        Self::unavailable(Unavailability::Unanswered, action, key, store, reason)
    }

    /// A request that was throttled, or met another write: it was not applied, and may succeed when
    /// it is repeated. The arguments are those of [`unanswered`](Self::unanswered).
    #[must_use]
    pub fn contended(
        action: &'static str,
        key: &Key,
        store: impl Into<String>,
        reason: impl Into<Box<dyn Error + Send + Sync>>,
    ) -> Self {
        Self::unavailable(Unavailability::Contended, action, key, store, reason)
    }

    /// A request that was denied, not valid or sent to no such table: it was not applied, and a
    /// repetition would fail again. The arguments are those of [`unanswered`](Self::unanswered).
    #[must_use]
    pub fn denied(
        action: &'static str,
        key: &Key,
        store: impl Into<String>,
        reason: impl Into<Box<dyn Error + Send + Sync>>,
    ) -> Self {
        Self::unavailable(Unavailability::Rejected, action, key, store, reason)
    }

    fn unavailable(
        kind: Unavailability,
        action: &'static str,
        key: &Key,
        store: impl Into<String>,
        reason: impl Into<Box<dyn Error + Send + Sync>>,
    ) -> Self {
        let source = reason.into();
        Self::Unavailable {
            kind,
            action,
            key: key.to_string(),
            store: store.into(),
            reason: source.to_string(),
            source,
        }
    }

    /// Returns whether the request can have been applied although it failed.
    #[must_use]
    pub const fn may_have_been_applied(&self) -> bool {
        match self {
            Self::ItemTooLarge { .. } | Self::Rejected { .. } => false,
            Self::Unavailable { kind, .. } => matches!(kind, Unavailability::Unanswered),
            Self::OutOfTime { .. } | Self::Unreadable { .. } => true,
        }
    }

    /// The same error of a request that was sent before, got no answer, and may have been applied.
    pub(crate) fn into_unanswered(mut self) -> Self {
        if let Self::Unavailable { kind, .. } = &mut self {
            *kind = Unavailability::Unanswered;
        }
        self
    }

    /// Returns whether the request met contention: it was throttled, or in conflict with a transaction
    /// on the same item.
    #[must_use]
    pub const fn is_throttled(&self) -> bool {
        let kind = self.kind();
        matches!(kind, Some(Unavailability::Contended))
    }

    /// Returns whether a repetition may succeed.
    pub(crate) const fn may_pass(&self) -> bool {
        let kind = self.kind();
        matches!(
            kind,
            Some(Unavailability::Contended | Unavailability::Unanswered)
        )
    }

    const fn kind(&self) -> Option<Unavailability> {
        match self {
            Self::Unavailable { kind, .. } => Some(*kind),
            _ => None,
        }
    }
}

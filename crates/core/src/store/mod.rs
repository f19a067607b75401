//! Storage of records: the [`Store`] trait and its implementations.
//!
//! A store makes single conditional writes and returns their answers. The functions in
//! [`crate::protocol::decision`] interpret the answers. A further store therefore needs two methods
//! and no rules of its own. The suite in `tests/store_conformance.rs` checks the conditions of a
//! store.

pub mod admin;
mod context;
mod memory;
mod results;

use std::error::Error;

pub use admin::{RecordFilter, RecordPage, RecordStatus, StoredRecord};
pub use context::RequestContext;
pub use memory::MemoryStore;
pub use results::{OutputStore, Results};

use crate::protocol::{ClaimRequest, Fence, Key, Record, Settlement, Timestamp, Unavailability};

/// A table of [`Record`]s with conditional writes.
///
/// Both writes are atomic: no other write comes between the condition check and the write. A store
/// repeats no write. The caller does, for as long as the error's class and its time allow.
///
/// ```
/// use sqs_once::protocol::{ClaimRequest, Key, Namespace, Owner, Settlement, Timestamp};
/// use sqs_once::store::{ClaimAnswer, MemoryStore, RequestContext, SettleAnswer, Store};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let (store, context) = (MemoryStore::default(), RequestContext::default());
/// let now = Timestamp::now();
/// let key = Key::new(&Namespace::new("payments")?, ["order-1"])?;
/// let lease_until = now + std::time::Duration::from_secs(30);
/// let expires_at = now.as_secs() + 3600;
/// let request = ClaimRequest::new(key, Owner::fresh(), "m-1", now, lease_until, expires_at);
/// assert_eq!(store.claim(&request, &context).await?, ClaimAnswer::Applied { replaced: None });
/// assert_eq!(store.claim(&request, &context).await?, ClaimAnswer::Refused(request.record(None)));
/// let end = Settlement::EndLease { last_end: None };
/// let ended = store.settle(&request.fence(), &end, now, &context).await?;
/// assert_eq!(ended, SettleAnswer::Applied);
/// # Ok(()) }
/// ```
pub trait Store: Send + Sync + 'static {
    /// Writes [`ClaimRequest::record`] if [`may_claim`](crate::protocol::decision::may_claim)
    /// returns true.
    ///
    /// # Errors
    ///
    /// [`StoreError`]. The claim may have been applied nevertheless: see
    /// [`may_have_been_applied`](StoreError::may_have_been_applied).
    fn claim(
        &self,
        request: &ClaimRequest,
        context: &RequestContext,
    ) -> impl Future<Output = Result<ClaimAnswer, StoreError>> + Send;

    /// Applies `settlement` if [`may_settle`](crate::protocol::decision::may_settle) returns true.
    ///
    /// `now` becomes the record's `updated_at`.
    ///
    /// # Errors
    ///
    /// [`StoreError`]. The settlement may have been applied nevertheless: see
    /// [`may_have_been_applied`](StoreError::may_have_been_applied).
    fn settle(
        &self,
        fence: &Fence,
        settlement: &Settlement,
        now: Timestamp,
        context: &RequestContext,
    ) -> impl Future<Output = Result<SettleAnswer, StoreError>> + Send;
}

/// The answer to a claim. There is no third: a conditional write is applied or refused.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "a claim that was refused must not run"]
pub enum ClaimAnswer {
    /// The claim succeeded.
    Applied {
        /// The record before the claim. `None` if no record existed, or only an expired one.
        replaced: Option<Record>,
    },
    /// The claim was refused because of this record.
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
    /// The settlement succeeded.
    Applied,
    /// The settlement was refused because of this record, or because no record exists (`None`).
    Refused(Option<Record>),
}

/// The reason why a request to a store failed.
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
    /// The item would be too large, so the request was not sent.
    #[error(
        "the record of key `{key}` would have {bytes} bytes; the limit is {limit}: shorten the result, the error or the message id"
    )]
    ItemTooLarge {
        /// Key of the record.
        key: String,
        /// Size in bytes.
        bytes: usize,
        /// Limit in bytes.
        limit: usize,
    },
    /// The store is unreachable, or throttled or rejected the request.
    #[error("could not {action} key `{key}` in {store}: {reason}")]
    Unavailable {
        /// Class of the failure: whether the request was applied, and whether a repetition may help.
        #[doc(hidden)]
        kind: Unavailability,
        /// The request, as a verb.
        action: &'static str,
        /// Key of the record.
        key: String,
        /// Name of the store, with the table.
        store: String,
        /// Reason and remedy.
        reason: String,
        /// The SDK's error.
        #[source]
        source: Box<dyn Error + Send + Sync>,
    },
    /// The table rejected the write, or contention lasted until the deadline.
    #[error("could not {action} key `{key}`: {reason}")]
    Rejected {
        /// The request, as a verb.
        action: &'static str,
        /// Key of the record.
        key: String,
        /// Reason of the failure.
        reason: String,
    },
    /// No answer arrived before the deadline.
    #[error("could not {action} key `{key}`: no answer before the deadline")]
    OutOfTime {
        /// The request, as a verb.
        action: &'static str,
        /// Key of the record.
        key: String,
    },
    /// The item under this key is not a valid record.
    #[error(
        "the record of key `{key}` in {store} is invalid: {reason}; another program may have written it: correct or delete the record"
    )]
    Unreadable {
        /// Key of the record.
        key: String,
        /// Name of the store, with the table.
        store: String,
        /// Reason, with the attribute's name.
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

    /// A request that was denied, or sent to no such table: it was not applied, and a repetition can
    /// succeed once that is corrected. The arguments are those of [`unanswered`](Self::unanswered).
    #[must_use]
    pub fn denied(
        action: &'static str,
        key: &Key,
        store: impl Into<String>,
        reason: impl Into<Box<dyn Error + Send + Sync>>,
    ) -> Self {
        Self::unavailable(Unavailability::Denied, action, key, store, reason)
    }

    /// A request that is not valid: it was not applied, and a repetition fails again. The arguments are
    /// those of [`unanswered`](Self::unanswered).
    #[must_use]
    pub fn invalid(
        action: &'static str,
        key: &Key,
        store: impl Into<String>,
        reason: impl Into<Box<dyn Error + Send + Sync>>,
    ) -> Self {
        Self::unavailable(Unavailability::Invalid, action, key, store, reason)
    }

    /// A request that was not answered as it should be.
    #[must_use]
    pub fn unavailable(
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

    /// Returns whether the store may have applied the failed request.
    #[must_use]
    pub const fn may_have_been_applied(&self) -> bool {
        match self {
            Self::ItemTooLarge { .. } | Self::Rejected { .. } => false,
            Self::Unavailable { kind, .. } => matches!(kind, Unavailability::Unanswered),
            Self::OutOfTime { .. } | Self::Unreadable { .. } => true,
        }
    }

    /// Returns whether the request met contention: DynamoDB throttled the request, or another write
    /// to the same item was in progress.
    #[must_use]
    pub const fn is_throttled(&self) -> bool {
        matches!(self.kind(), Some(Unavailability::Contended))
    }

    /// The class of a failed request. `None` if no repetition can help.
    pub(crate) const fn kind(&self) -> Option<Unavailability> {
        match self {
            Self::Unavailable { kind, .. } => Some(*kind),
            _ => None,
        }
    }
}

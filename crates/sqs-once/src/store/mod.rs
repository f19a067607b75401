//! Storage of records: the [`Store`] trait and its implementations.
//!
//! A store reads records, and compares and swaps them. Every rule is in [`crate::protocol`]. The cases in
//! [`crate::store::conformance`] check a store.

#[cfg(feature = "testing")]
pub mod conformance;
mod context;
mod memory;
mod results;

use std::{convert::Infallible, error::Error, fmt::Debug};

// Stores from other modules, where users look for them.
pub use crate::dynamo::store::{Batched, DynamoStore, Layout};
#[cfg(feature = "s3")]
pub use crate::s3::S3Results;
pub use crate::settings::any_store::AnyStore;
pub use context::RequestContext;
pub use memory::MemoryStore;
pub use results::{ResultStore, Results};

use crate::protocol::{Key, Record, RequestErrorKind, Swap};

/// A table of [`Record`]s. Each call is one request. A store never retries. The caller does, as long as the kind of error
/// and the time allow it.
///
/// ```
/// use sqs_once::protocol::{Claim, Expect, Key, Namespace, Owner, Record, Swap, Timestamp};
/// use sqs_once::store::{MemoryStore, RequestContext, Store, Swapped};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let (store, context) = (MemoryStore::default(), RequestContext::default());
/// let key = Key::new(&Namespace::new("payments")?, ["order-1"])?;
/// let now = Timestamp::now();
/// let lease_until = now + std::time::Duration::from_secs(30);
/// let claim = Claim::new(Owner::fresh(), "m-1", now, lease_until, now.as_secs() + 3600);
/// let swap = Swap {
///     key,
///     expect: Expect::Absent,
///     to: Record::claimed(&claim, 1, None, None),
/// };
/// assert_eq!(store.swap(&swap, &(), &context).await?, Swapped::Applied);
/// // A copy finds the record.
/// assert_eq!(store.swap(&swap, &(), &context).await?, Swapped::Found(Some(swap.to)));
/// # Ok(()) }
/// ```
pub trait Store: Send + Sync + 'static {
    /// Writes that this store can commit together with a record: `()` if there are none. A store that wraps another uses
    /// the other's type, and passes `with` on.
    type With: With;

    /// Sets the outbox table (`OUTBOX_TABLE_NAME`) in a store that publishes events, unless the store already has one.
    #[doc(hidden)]
    #[must_use]
    fn with_outbox(self, table: Option<String>) -> Self
    where
        Self: Sized,
    {
        let _ = table;
        self
    }

    /// Reads the record of a key. The read is strongly consistent.
    ///
    /// # Errors
    ///
    /// Returns a [`StoreError`]. If the item is not a valid record, this is [`StoreError::Unreadable`], not `Ok(None)`.
    fn get(
        &self,
        key: &Key,
        context: &RequestContext,
    ) -> impl Future<Output = Result<Option<Record>, StoreError>> + Send;

    /// Writes [`Swap::to`] together with `with`, all or nothing, if the record is as [`Swap::expect`] says. If the caller sends a
    /// swap twice, the store applies it and `with` only once.
    ///
    /// # Errors
    ///
    /// Returns a [`StoreError`]. The swap may still have been applied: see
    /// [`may_have_been_applied`](StoreError::may_have_been_applied).
    fn swap(
        &self,
        swap: &Swap,
        with: &Self::With,
        context: &RequestContext,
    ) -> impl Future<Output = Result<SwappedIn<Self>, StoreError>> + Send;
}

/// Writes that can commit together with a record.
pub trait With: Default + Send + Sync + 'static {
    /// Why the store refuses these writes, although the record is as expected.
    type Refused: Debug + PartialEq + Send;

    /// Returns whether the record commits alone.
    fn is_empty(&self) -> bool;
}

impl With for () {
    type Refused = Infallible;

    fn is_empty(&self) -> bool {
        true
    }
}

/// The answer to a swap in the store `S`.
pub type SwappedIn<S> = Swapped<<<S as Store>::With as With>::Refused>;

/// The answer to a swap.
#[expect(
    clippy::large_enum_variant,
    reason = "one answer lives at a time, and is taken apart at once"
)]
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "a swap that was not applied is not recorded"]
pub enum Swapped<R = Infallible> {
    /// The record is now [`Swap::to`].
    Applied,
    /// The record differs from what was expected. Contains the record, or `None` if there is none.
    Found(Option<Record>),
    /// The record is as expected, but the store refuses what would commit with it. Nothing was written.
    Refused(R),
}

impl Swapped {
    /// Converts the answer to the type of a store that can refuse.
    pub fn widened<R>(self) -> Swapped<R> {
        match self {
            Self::Applied => Swapped::Applied,
            Self::Found(found) => Swapped::Found(found),
            Self::Refused(never) => match never {},
        }
    }
}

/// Why a request to a store failed.
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
    /// The store is unreachable, or it throttled or rejected the request.
    #[error("could not {action} key `{key}` in {store}: {reason}")]
    Unavailable {
        /// The kind of failure: it says whether the request was applied, and whether a retry may help.
        #[doc(hidden)]
        kind: RequestErrorKind,
        /// The request, as a verb.
        action: &'static str,
        /// Key of the record.
        key: String,
        /// Name of the store, with the table.
        store: String,
        /// The reason, and what to do.
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
        /// Why the request failed.
        reason: String,
    },
    /// No response arrived before the deadline.
    #[error("could not {action} key `{key}`: no answer before the deadline")]
    OutOfTime {
        /// The request, as a verb.
        action: &'static str,
        /// Key of the record.
        key: String,
    },
    /// The item under this key is not a valid record.
    #[error(
        "the record of key `{key}` in {store} is invalid: {reason}; another program or a newer version may have written it: `sqs-once record show '{key}'` prints it, `sqs-once record delete '{key}'` deletes it"
    )]
    Unreadable {
        /// Key of the record.
        key: String,
        /// Name of the store, with the table.
        store: String,
        /// The reason, with the attribute's name.
        reason: String,
    },
}

impl StoreError {
    /// Creates the error of a request that got no response, or a response that can't be read. The request may have been applied.
    ///
    /// `action` is a verb for the request, `store` names the store for people, and `reason` must not contain payload.
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
        Self::unavailable(RequestErrorKind::Unanswered, action, key, store, reason)
    }

    /// Creates the error of a request that was throttled or collided with another write. The request was not applied, and a
    /// retry may succeed. The arguments are those of [`unanswered`](Self::unanswered).
    #[must_use]
    pub fn contended(
        action: &'static str,
        key: &Key,
        store: impl Into<String>,
        reason: impl Into<Box<dyn Error + Send + Sync>>,
    ) -> Self {
        Self::unavailable(RequestErrorKind::Contended, action, key, store, reason)
    }

    /// Creates the error of a request that was denied, or whose table does not exist. The request was not applied, and a
    /// retry can succeed once somebody fixes the cause. The arguments are those of [`unanswered`](Self::unanswered).
    #[must_use]
    pub fn denied(
        action: &'static str,
        key: &Key,
        store: impl Into<String>,
        reason: impl Into<Box<dyn Error + Send + Sync>>,
    ) -> Self {
        Self::unavailable(RequestErrorKind::Denied, action, key, store, reason)
    }

    /// Creates the error of a request that is not valid. The request was not applied, and a retry would also fail. The
    /// arguments are those of [`unanswered`](Self::unanswered).
    #[must_use]
    pub fn invalid(
        action: &'static str,
        key: &Key,
        store: impl Into<String>,
        reason: impl Into<Box<dyn Error + Send + Sync>>,
    ) -> Self {
        Self::unavailable(RequestErrorKind::Invalid, action, key, store, reason)
    }

    /// Creates the error of a request that the store did not process.
    #[must_use]
    pub fn unavailable(
        kind: RequestErrorKind,
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

    /// Returns whether the store may have applied the failed request. Also true for an unreadable answer, because a write
    /// may have been applied.
    #[must_use]
    pub const fn may_have_been_applied(&self) -> bool {
        matches!(self, Self::Unreadable { .. }) || self.is_unanswered()
    }

    /// Returns whether the store did not respond.
    pub(crate) const fn is_unanswered(&self) -> bool {
        match self {
            Self::ItemTooLarge { .. } | Self::Rejected { .. } | Self::Unreadable { .. } => false,
            Self::Unavailable { kind, .. } => matches!(kind, RequestErrorKind::Unanswered),
            Self::OutOfTime { .. } => true,
        }
    }

    /// Returns whether the request met contention: DynamoDB throttled it, or another write to the same item was in progress.
    #[must_use]
    pub const fn is_contended(&self) -> bool {
        matches!(self.kind(), Some(RequestErrorKind::Contended))
    }

    /// Returns the kind of a failed request, or `None` if the error is not `Unavailable`.
    pub(crate) const fn kind(&self) -> Option<RequestErrorKind> {
        match self {
            Self::Unavailable { kind, .. } => Some(*kind),
            _ => None,
        }
    }
}

//! Where records live: the [`Store`] trait and its two implementations.
//!
//! A store makes single conditional writes and says what became of them. What that
//! *means* is decided by [`crate::protocol::decision`], so a further backend has two
//! methods and no rules of its own to get wrong; the suite in
//! `tests/store_conformance.rs` tells whether it got the conditions right.

mod dynamodb;
mod item;
mod layout;
mod memory;
mod transaction;
mod write;

use std::error::Error;

pub use dynamodb::{DynamoStore, PrimeError};
pub(crate) use dynamodb::{explain, with_answers};
pub(crate) use item::{Item, number, sizes, string};
pub use layout::{Field, Layout, LayoutError};
pub use memory::MemoryStore;
pub use transaction::{
    Commit, CommitAnswer, MAX_WRITES, RecordWrite, Refused, RefusedWrite, TransactionalStore,
};
pub use write::{Action, IntoWrite, Keyed, Write};
pub(crate) use write::{put_item, update_item};

use crate::protocol::{ClaimRequest, Fence, Record, Settlement, Timestamp};

/// A table of [`Record`]s that can be written under a condition.
///
/// Both writes are atomic: the condition is checked against, and the write applied to, the
/// record as it is at one moment.
///
/// ```
/// use sqs_once::protocol::{AfterFailure, ClaimRequest, Key, Namespace, Owner, Settlement, Timestamp};
/// use sqs_once::store::{ClaimAnswer, MemoryStore, SettleAnswer, Store};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let store = MemoryStore::default();
/// let now = Timestamp::now();
/// let request = ClaimRequest {
///     key: Key::new(&Namespace::new("payments")?, ["order-1"])?,
///     owner: Owner::fresh(),
///     fingerprint: None,
///     message_id: "m-1".into(),
///     now,
///     lease_until: now + std::time::Duration::from_secs(30),
///     expires_at: now.as_secs() + 3600,
///     after_failure: AfterFailure::Retry,
/// };
/// assert_eq!(store.claim(&request).await?, ClaimAnswer::Applied { replaced: None });
/// assert_eq!(store.claim(&request).await?, ClaimAnswer::Refused(request.record()));
/// let released = store.settle(&request.fence(), &Settlement::Release, now).await?;
/// assert_eq!(released, SettleAnswer::Applied);
/// # Ok(()) }
/// ```
pub trait Store: Send + Sync + 'static {
    /// Writes [`ClaimRequest::record`] if [`may_claim`](crate::protocol::decision::may_claim)
    /// says so.
    ///
    /// # Errors
    ///
    /// [`StoreError`], after this store's own retries. The claim may have been applied all
    /// the same, unless it is [`StoreError::ItemTooLarge`].
    fn claim(
        &self,
        request: &ClaimRequest,
    ) -> impl Future<Output = Result<ClaimAnswer, StoreError>> + Send;

    /// Applies `settlement` if [`may_settle`](crate::protocol::decision::may_settle) says so.
    ///
    /// `now` becomes the record's `updated_at`.
    ///
    /// # Errors
    ///
    /// [`StoreError`], after this store's own retries. The settlement may have been applied
    /// all the same.
    fn settle(
        &self,
        fence: &Fence,
        settlement: &Settlement,
        now: Timestamp,
    ) -> impl Future<Output = Result<SettleAnswer, StoreError>> + Send;
}

/// What became of a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClaimAnswer {
    /// It was written, over this record if there was one.
    Applied {
        /// The record that was replaced.
        replaced: Option<Record>,
    },
    /// It was refused by this record.
    Refused(Record),
}

/// What became of a settlement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SettleAnswer {
    /// It was written.
    Applied,
    /// It was refused by this record, or because there is none.
    Refused(Option<Record>),
}

/// Why a store gave no answer.
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
    /// The store is out of reach, throttled or refuses us.
    #[error("could not {action} key `{key}` in {store}: {reason}")]
    Unavailable {
        /// What was tried.
        action: &'static str,
        /// On which key.
        key: String,
        /// Where.
        store: String,
        /// What went wrong, and what can be done about it.
        reason: String,
        /// The cause.
        #[source]
        source: Box<dyn Error + Send + Sync>,
    },
    /// There was no answer before the deadline.
    #[error("could not {action} key `{key}`: no answer before the deadline")]
    OutOfTime {
        /// What was tried.
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
        /// What is wrong with it.
        reason: String,
    },
}

// Temporary: by the words of `reason`, until the store classifies its errors itself.
impl StoreError {
    /// DynamoDB throttled the request: it is at work, and the table too small or too new.
    ///
    /// ```
    /// use sqs_once::store::StoreError;
    ///
    /// let error = StoreError::OutOfTime { action: "claim", key: "payments#order-1".into() };
    /// assert!(!error.is_throttled());
    /// ```
    #[must_use]
    pub fn is_throttled(&self) -> bool {
        const CODES: [&str; 3] = [
            "ProvisionedThroughputExceededException",
            "ThrottlingException",
            "RequestLimitExceeded",
        ];
        match self {
            Self::Unavailable { reason, .. } => CODES.iter().any(|code| reason.starts_with(code)),
            _ => false,
        }
    }
}

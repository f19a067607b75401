//! [`TransactionalStore`]: records that commit together with other writes.

use std::sync::OnceLock;

use aws_sdk_dynamodb::types::TransactWriteItem;

use super::{Store, StoreError};
use crate::dynamodb::{refused::Refused, write::Write};
use crate::protocol::{ClaimRequest, Fence, Key, Record, Settlement, Timestamp};

/// A [`Store`] whose records commit together with other writes, all or nothing.
///
/// [`DynamoStore`](super::DynamoStore) is the one there is: what a [`Commit`] holds can't be read
/// outside of this crate. To test a handler, run it on DynamoDB Local or one like it. What the
/// answers *mean* is decided by [`crate::protocol::decision`], as with a [`Store`]'s.
pub trait TransactionalStore: Store {
    /// Reads a record. It may be of some moments ago, so this is a look, not a decision.
    ///
    /// # Errors
    ///
    /// [`StoreError`], after this store's own retries.
    fn look(&self, key: &Key) -> impl Future<Output = Result<Option<Record>, StoreError>> + Send;

    /// Makes the record's write and all others, or none of them. A commit sent again is the
    /// same commit: it is applied once.
    ///
    /// # Errors
    ///
    /// [`StoreError`]. [`may_have_been_applied`](StoreError::may_have_been_applied) tells whether the
    /// commit can have been made all the same. The caller repeats it until its deadline.
    fn commit(
        &self,
        commit: &Commit,
    ) -> impl Future<Output = Result<CommitAnswer, StoreError>> + Send;
}

/// One write to a record, and the writes that go with it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Commit {
    /// The record's write.
    pub record: RecordWrite,
    /// The others, [`MAX_WRITES`](crate::MAX_WRITES) at most.
    pub writes: Vec<Write<TransactWriteItem>>,
    /// Separates this commit from every other: at most 35 characters.
    pub token: String,
    /// The record's write as it was sent. A commit that is sent again is the same to the byte.
    pub(crate) sent: OnceLock<TransactWriteItem>,
    /// The record's write in place of `sent`, over a record that only a put can replace.
    pub(crate) sent_over: OnceLock<TransactWriteItem>,
}

/// The record's write in a [`Commit`].
#[derive(Clone, Debug)]
pub enum RecordWrite {
    /// A claim is held, and ends.
    Settle {
        /// Whose it is.
        fence: Fence,
        /// The end of the claim; it keeps the record.
        settlement: Settlement,
        /// The asker's clock.
        now: Timestamp,
    },
    /// There was no claim: the record is written as a claim and its settlement would leave it, if
    /// `request` may claim. `first_claimed_at` stays as it is.
    Insert {
        /// The claim. Its lease is not used.
        request: ClaimRequest,
        /// [`Settlement::Complete`] or [`Settlement::Fail`].
        settlement: Settlement,
    },
}

impl RecordWrite {
    /// The record's key.
    #[must_use]
    pub const fn key(&self) -> &Key {
        match self {
            Self::Settle { fence, .. } => &fence.key,
            Self::Insert { request, .. } => &request.key,
        }
    }
}

/// The answer to a [`Commit`].
#[derive(Clone, Debug, PartialEq)]
pub enum CommitAnswer {
    /// All was written, now or when it was sent before.
    Applied,
    /// Nothing was written: the record's condition is not met by this record, or because there
    /// is none.
    Refused(Option<Record>),
    /// Nothing was written: these conditions are not met.
    Cancelled(Refused),
    /// Nothing was written: it never can be.
    Invalid(String),
}

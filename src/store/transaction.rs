//! [`TransactionalStore`]: records that commit together with other writes.

use std::{borrow::Cow, collections::HashMap, fmt, sync::OnceLock};

use aws_sdk_dynamodb::types::{AttributeValue, TransactWriteItem};

use super::{Store, StoreError, Write, write::Place};
use crate::protocol::{ClaimRequest, Fence, Key, Record, Settlement, Timestamp};

/// The most writes that commit together with a record: a DynamoDB transaction has at most 100
/// actions (*Amazon DynamoDB Developer Guide*, "Amazon DynamoDB Transactions: How it works"),
/// and the record is one of them.
pub const MAX_WRITES: usize = 99;

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
    /// The others, [`MAX_WRITES`] at most.
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
    /// It collided with another write to one of its items, or was throttled. Sent again, it
    /// may pass.
    Contended(String),
    /// Nothing was written: it never can be.
    Invalid(String),
}

/// The writes whose conditions were not met. Nothing was written.
///
/// Its text names each by its place, its label and its table.
#[derive(Clone, Debug, PartialEq)]
pub struct Refused(Vec<RefusedWrite>);

/// One of [`Refused`].
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct RefusedWrite {
    /// Its place among the writes, from 0.
    pub index: usize,
    /// Its label.
    pub label: Option<Cow<'static, str>>,
    /// The table.
    pub table: String,
    /// The item as it is, where the write asked for it ([`Write::return_item`]) and there is one.
    pub item: Option<HashMap<String, AttributeValue>>,
}

impl Refused {
    pub(crate) fn new(writes: Vec<RefusedWrite>) -> Self {
        Self(writes)
    }

    /// Each of them.
    #[must_use]
    pub fn writes(&self) -> &[RefusedWrite] {
        &self.0
    }

    /// The first with this label.
    #[must_use]
    pub fn get(&self, label: &str) -> Option<&RefusedWrite> {
        let mut writes = self.0.iter();
        writes.find(|write| write.label.as_deref() == Some(label))
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, write) in self.0.iter().enumerate() {
            let comma = if n == 0 { "" } else { "; " };
            let place = Place {
                index: write.index,
                label: write.label.as_deref(),
                table: &write.table,
            };
            write!(f, "{comma}the condition of {place} is not met")?;
        }
        Ok(())
    }
}

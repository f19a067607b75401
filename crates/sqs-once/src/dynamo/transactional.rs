//! [`TransactionalStore`]: commits records together with other writes.

use std::sync::OnceLock;

use aws_sdk_dynamodb::types::TransactWriteItem;

use crate::{
    dynamo::{condition_failed::ConditionFailed, write::Write},
    protocol::{Record, Swap},
    store::{RequestContext, Store, StoreError},
};

/// A [`Store`] that commits records together with other writes, all or nothing.
///
/// [`DynamoStore`](crate::dynamo::store::DynamoStore) and [`Batched`](crate::dynamo::store::Batched) implement it. Other
/// crates cannot, because the fields of a [`Commit`] are private; test handlers on DynamoDB Local or another
/// emulator.
pub trait TransactionalStore: Store {
    /// Applies the record's write and all other writes, or none of them. A commit that is sent twice is
    /// applied once.
    ///
    /// # Errors
    ///
    /// [`StoreError`]. The commit may have been applied nevertheless: see
    /// [`may_have_been_applied`](StoreError::may_have_been_applied). The caller retries until its deadline.
    fn commit(
        &self,
        commit: &Commit,
        context: &RequestContext,
    ) -> impl Future<Output = Result<CommitResponse, StoreError>> + Send;
}

/// One write to a record, and the other writes of the same transaction.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Commit {
    /// The record's swap.
    pub record: Swap,
    /// The other writes, at most [`MAX_WRITES`](crate::dynamo::write::MAX_WRITES).
    pub writes: Vec<Write<TransactWriteItem>>,
    /// Basis of the `ClientRequestToken`, unique to this commit. At most 35 characters.
    pub token: String,
    /// The record's write as it was first sent. Each retry sends identical bytes.
    pub(crate) sent: OnceLock<TransactWriteItem>,
}

/// The response to a [`Commit`].
#[derive(Clone, Debug, PartialEq)]
pub enum CommitResponse {
    /// All writes were applied, by this request or an earlier one.
    Applied,
    /// No write was applied, because the record differs from what was expected. Holds the record,
    /// or `None` if there is no record.
    Found(Option<Record>),
    /// No write was applied, because condition checks of the other writes failed.
    Cancelled(ConditionFailed),
    /// No write was applied, because the transaction is invalid. A retry would fail again.
    Invalid(String),
}

//! [`AnyStore`]: the store that the environment selects.

use crate::{
    dynamodb::{
        store::{Batched, DynamoStore},
        transactional::{Commit, CommitAnswer, TransactionalStore},
    },
    protocol::{ClaimRequest, Fence, Key, Record, Settlement, Timestamp},
    store::{ClaimAnswer, MemoryStore, RequestContext, SettleAnswer, Store, StoreError},
};

/// The store that `Settings::once` selects. On AWS it is never [`Memory`](Self::Memory).
///
/// In memory, DynamoDB writes of a handler ([`Done`](crate::Done)) are refused: the operation fails,
/// and the error names the missing table.
///
/// ```
/// use sqs_once::{Once, store::{AnyStore, MemoryStore}};
///
/// let once = Once::new(AnyStore::Memory(MemoryStore::default()));
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum AnyStore {
    /// Records in a DynamoDB table.
    DynamoDb(DynamoStore),
    /// Records in a DynamoDB table, whose concurrent writes share requests.
    Batched(Batched),
    /// Records in the memory of the process, for first trials under `cargo lambda watch`.
    Memory(MemoryStore),
}

impl Store for AnyStore {
    async fn claim(
        &self,
        request: &ClaimRequest,
        context: &RequestContext,
    ) -> Result<ClaimAnswer, StoreError> {
        match self {
            Self::DynamoDb(store) => store.claim(request, context).await,
            Self::Batched(store) => store.claim(request, context).await,
            Self::Memory(store) => store.claim(request, context).await,
        }
    }

    async fn settle(
        &self,
        fence: &Fence,
        settlement: &Settlement,
        now: Timestamp,
        context: &RequestContext,
    ) -> Result<SettleAnswer, StoreError> {
        match self {
            Self::DynamoDb(store) => store.settle(fence, settlement, now, context).await,
            Self::Batched(store) => store.settle(fence, settlement, now, context).await,
            Self::Memory(store) => store.settle(fence, settlement, now, context).await,
        }
    }
}

impl TransactionalStore for AnyStore {
    async fn look(
        &self,
        key: &Key,
        context: &RequestContext,
    ) -> Result<Option<Record>, StoreError> {
        match self {
            Self::DynamoDb(store) => store.look(key, context).await,
            Self::Batched(store) => store.look(key, context).await,
            Self::Memory(store) => Ok(store.get(key)),
        }
    }

    async fn commit(
        &self,
        commit: &Commit,
        context: &RequestContext,
    ) -> Result<CommitAnswer, StoreError> {
        match self {
            Self::DynamoDb(store) => store.commit(commit, context).await,
            Self::Batched(store) => store.commit(commit, context).await,
            Self::Memory(_) => Ok(CommitAnswer::Invalid(
                "DynamoDB writes need a table of records: set IDEMPOTENCY_TABLE_NAME".to_owned(),
            )),
        }
    }
}

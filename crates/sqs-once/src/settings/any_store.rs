//! [`AnyStore`]: the store that the environment selects.

use crate::{
    dynamo::{
        store::{Batched, DynamoStore},
        transactional::{Commit, CommitResponse, TransactionalStore},
    },
    protocol::{ClaimRequest, FencingToken, Settlement, Timestamp},
    store::{ClaimResponse, MemoryStore, RequestContext, SettleResponse, Store, StoreError},
};

/// The store that the environment selects. On AWS it is never [`Memory`](Self::Memory).
///
/// With records in memory, a handler cannot return DynamoDB writes ([`Done`](crate::Done)): the operation
/// fails, and the error names the missing table.
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
    /// Records in a DynamoDB table, with batched writes.
    Batched(Batched),
    /// Records in the memory of the process, for a first try under `cargo lambda watch`.
    Memory(MemoryStore),
}

impl Store for AnyStore {
    async fn claim(
        &self,
        request: &ClaimRequest,
        context: &RequestContext,
    ) -> Result<ClaimResponse, StoreError> {
        match self {
            Self::DynamoDb(store) => store.claim(request, context).await,
            Self::Batched(store) => store.claim(request, context).await,
            Self::Memory(store) => store.claim(request, context).await,
        }
    }

    async fn settle(
        &self,
        fence: &FencingToken,
        settlement: &Settlement,
        now: Timestamp,
        context: &RequestContext,
    ) -> Result<SettleResponse, StoreError> {
        match self {
            Self::DynamoDb(store) => store.settle(fence, settlement, now, context).await,
            Self::Batched(store) => store.settle(fence, settlement, now, context).await,
            Self::Memory(store) => store.settle(fence, settlement, now, context).await,
        }
    }
}

impl TransactionalStore for AnyStore {
    async fn commit(
        &self,
        commit: &Commit,
        context: &RequestContext,
    ) -> Result<CommitResponse, StoreError> {
        match self {
            Self::DynamoDb(store) => store.commit(commit, context).await,
            Self::Batched(store) => store.commit(commit, context).await,
            Self::Memory(_) => Ok(CommitResponse::Invalid(
                "DynamoDB writes need a table of records: set IDEMPOTENCY_TABLE_NAME".to_owned(),
            )),
        }
    }
}

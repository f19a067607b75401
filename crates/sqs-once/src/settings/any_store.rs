//! [`AnyStore`]: the store that the environment selects.

use crate::{
    dynamo::{
        store::{Batched, DynamoStore},
        writes::{Refused, Writes},
    },
    protocol::{Key, Record, Swap},
    store::{MemoryStore, RequestContext, Store, StoreError, Swapped, With as _},
};

/// The store that the environment selects. On AWS it is never [`Memory`](Self::Memory).
///
/// With records in memory, a handler cannot return DynamoDB writes ([`Done`](crate::Done)): the operation fails, and the
/// error says to set `IDEMPOTENCY_TABLE_NAME`.
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
    /// Records in the process's memory, for a first try under `cargo lambda watch`.
    Memory(MemoryStore),
}

impl Store for AnyStore {
    type With = Writes;

    fn with_outbox(self, table: Option<String>) -> Self {
        match self {
            Self::DynamoDb(store) => Self::DynamoDb(store.with_outbox(table)),
            Self::Batched(store) => Self::Batched(store.with_outbox(table)),
            Self::Memory(_) => self,
        }
    }

    async fn get(&self, key: &Key, context: &RequestContext) -> Result<Option<Record>, StoreError> {
        match self {
            Self::DynamoDb(store) => store.get(key, context).await,
            Self::Batched(store) => store.get(key, context).await,
            Self::Memory(store) => store.get(key, context).await,
        }
    }

    async fn swap(
        &self,
        swap: &Swap,
        with: &Writes,
        context: &RequestContext,
    ) -> Result<Swapped<Refused>, StoreError> {
        match self {
            Self::DynamoDb(store) => store.swap(swap, with, context).await,
            Self::Batched(store) => store.swap(swap, with, context).await,
            Self::Memory(store) if with.is_empty() => Ok(store.apply(swap).widened()),
            Self::Memory(_) => Ok(Swapped::Refused(Refused::Invalid(
                "DynamoDB writes need a table of records: set IDEMPOTENCY_TABLE_NAME".to_owned(),
            ))),
        }
    }
}

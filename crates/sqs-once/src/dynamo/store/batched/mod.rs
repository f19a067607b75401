//! [`Batched`]: batched writes, which send the claims and settlements of concurrent messages in one request.

mod queue;
mod response;
mod state;

use queue::Batcher;
use response::BatchResult;

use super::{DynamoStore, Request, swap::statement};
use crate::{
    dynamo::writes::{Refused, Writes},
    protocol::{Key, Record, State, StoredResult, Swap},
    store::{RequestContext, Store, StoreError, Swapped, With as _},
};

/// A [`DynamoStore`] with batched writes: it sends up to 25 claims and settlements of concurrent messages in
/// one request (`BatchExecuteStatement`).
///
/// | write | in a batched write |
/// | --- | --- |
/// | claim, if there is no record | `INSERT` |
/// | claim over a record, completion, permanent failure | `UPDATE` of what differs, with the same condition |
/// | release of a lease, results over 16 KB, transactions | never |
///
/// If an `INSERT` finds a record, the store reads that record.
///
/// - A call waits for one turn of the runtime and shares a request with the calls of that turn. If there are
///   no others, it goes out as an ordinary request.
/// - Claims and completions have separate batches. While four requests of a kind are in flight, a batch that is not full waits
///   for more calls, but at most 100 ms. With less than 400 ms left, a call is sent on its own.
/// - A call waits for its batch for at most half of the time that it has left. If a batch gets no response, it goes out once
///   more as a batch, and after that its calls go out as ordinary requests.
/// - The role needs `dynamodb:PartiQLInsert` and `dynamodb:PartiQLUpdate`.
/// - After DynamoDB has denied access, sent a response of an unknown form, or refused three batches or statements in a row
///   but accepted the same writes as ordinary requests, the store sends only ordinary requests for an hour. The store logs
///   a warning each time.
///
/// ```no_run
/// use sqs_once::store::{Batched, DynamoStore};
///
/// # fn store(client: aws_sdk_dynamodb::Client) {
/// let store = Batched::new(DynamoStore::new(client, "idempotency"));
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Batched {
    store: DynamoStore,
    batcher: Batcher,
}

impl Batched {
    /// Adds batched writes to `store`, and keeps its settings.
    #[must_use]
    pub fn new(store: DynamoStore) -> Self {
        Self::from(store, 2)
    }

    /// Sends even a single call as a batch, for tests.
    #[doc(hidden)]
    #[must_use]
    pub fn with_lone_calls(store: DynamoStore) -> Self {
        Self::from(store, 1)
    }

    fn from(store: DynamoStore, smallest: usize) -> Self {
        let batcher = Batcher::new(&store, smallest);
        Self { store, batcher }
    }
}

/// Swaps with a longer result go out as ordinary requests. A large write gains little from batching, and
/// would delay the others.
const MAX_BYTES: usize = 16 * 1024;

/// Returns whether a swap may share a request. A release may not, because it is rare.
fn shares(swap: &Swap) -> bool {
    let bytes = match &swap.to.state {
        State::InProgress { .. } if !swap.to.is_claim() => return false,
        State::Completed {
            result: StoredResult::Json(text) | StoredResult::Omitted(text),
        } => text.len(),
        _ => 0,
    };
    bytes <= MAX_BYTES
}

impl Store for Batched {
    type With = Writes;

    fn with_outbox(self, table: Option<String>) -> Self {
        Self {
            store: self.store.with_outbox(table),
            ..self
        }
    }

    async fn get(&self, key: &Key, context: &RequestContext) -> Result<Option<Record>, StoreError> {
        self.store.get(key, context).await
    }

    async fn swap(
        &self,
        swap: &Swap,
        with: &Writes,
        context: &RequestContext,
    ) -> Result<Swapped<Refused>, StoreError> {
        if !with.is_empty() {
            return self.store.swap(swap, with, context).await;
        }
        self.store.check_swap(swap)?;
        let DynamoStore { layout, table, .. } = &self.store;
        let kind = Request::of(swap);
        let tried = if shares(swap) {
            let statement = statement(layout, table, swap);
            (self.batcher)
                .send(kind, swap.key.as_str(), statement, context)
                .await
        } else {
            BatchResult::Ordinary(None)
        };
        let (place, refused) = match tried {
            BatchResult::Applied => return Ok(Swapped::Applied),
            BatchResult::ConditionFailed(item) => {
                let found = self.store.found(&swap.key, Some(&item))?;
                return Ok(Swapped::Found(found));
            }
            // An `INSERT` found an item, but the response doesn't contain it.
            BatchResult::Duplicate => {
                return Ok(Swapped::Found(self.store.get(&swap.key, context).await?));
            }
            BatchResult::Ordinary(place) => (place, None),
            BatchResult::Refused(why) => (None, Some(why)),
            BatchResult::Failed(error, why) => {
                let action = swap.to.action();
                return Err(self.store.failed(error, action, &swap.key, &why));
            }
        };
        let answer = self.store.swap_in(place, swap).await;
        if let (Some(why), Ok(_)) = (refused, &answer) {
            self.batcher.refused(kind, why, context);
        }
        answer
    }
}

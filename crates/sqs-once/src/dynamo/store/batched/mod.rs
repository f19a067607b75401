//! [`Batched`]: batched writes, which send the claims and settlements of concurrent messages in one request.

mod queue;
mod response;
mod standing;
mod statement;

use queue::Batcher;
use response::BatchResult;

use super::{DynamoStore, Request};
use crate::{
    dynamo::transactional::{Commit, CommitResponse, TransactionalStore},
    protocol::{ClaimRequest, FencingToken, Settlement, Timestamp},
    store::{ClaimResponse, RequestContext, SettleResponse, Store, StoreError},
};

/// A [`DynamoStore`] with batched writes: it sends up to 25 claims and settlements of concurrent messages in
/// one request (`BatchExecuteStatement`).
///
/// | write | in a batched write |
/// | --- | --- |
/// | claim of a message at its first receive | `INSERT` |
/// | completion, permanent failure | `UPDATE` with the fencing token as its condition |
/// | claim at a later receive, other settlements, results over 16 KB, transactions | never |
///
/// If an `INSERT` finds a record, the ordinary request follows. So a second message with the same key
/// consumes two write units instead of one.
///
/// - A call waits for one turn of the runtime and shares a request with the calls of that turn. If there are
///   no others, it goes out as the ordinary request.
/// - Claims and completions have batches of their own. While four of a kind are in flight, a batch that is not full
///   waits for further calls, for at most 100 ms. With less than 400 ms left, a call goes alone.
/// - A call waits for its batch at most half of its time left. If a batch gets no response, it goes out once
///   more as a batch, and after that its calls go out as ordinary requests.
/// - The role needs `dynamodb:PartiQLInsert` and `dynamodb:PartiQLUpdate`. If DynamoDB denies access, its
///   response has an unknown form, or it refuses three batches or statements in a row whose ordinary requests
///   succeed, the store logs a warning and sends only ordinary requests for an hour.
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
    /// Adds batched writes to `store`, whose settings stay as they are.
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

impl Store for Batched {
    async fn claim(
        &self,
        request: &ClaimRequest,
        context: &RequestContext,
    ) -> Result<ClaimResponse, StoreError> {
        self.store.check_claim(request)?;
        let tried = if context.expects_record() {
            BatchResult::Ordinary(None)
        } else {
            let item = self.store.layout.item(&request.key, &request.record(None));
            let insert = statement::claim(&self.store.table, item);
            let key = request.key.as_str();
            self.batcher
                .send(Request::Claim, key, insert, context)
                .await
        };
        let (place, refused) = match tried {
            BatchResult::Applied => return Ok(ClaimResponse::Applied { replaced: None }),
            // The condition never fails, because an `INSERT` has none.
            BatchResult::Duplicate | BatchResult::ConditionFailed(_) => (None, None),
            BatchResult::Ordinary(place) => (place, None),
            BatchResult::Refused(why) => (None, Some(why)),
            BatchResult::Failed(kind, why) => {
                return Err(self.store.unanswered(kind, "claim", &request.key, &why));
            }
        };
        let answer = self.store.claim_in(place, request).await;
        if let (Some(why), Ok(_)) = (refused, &answer) {
            self.batcher.refused(Request::Claim, why, context);
        }
        answer
    }

    async fn settle(
        &self,
        fence: &FencingToken,
        settlement: &Settlement,
        now: Timestamp,
        context: &RequestContext,
    ) -> Result<SettleResponse, StoreError> {
        self.store.check_settlement(fence, settlement)?;
        let DynamoStore { layout, table, .. } = &self.store;
        let tried = match statement::settle(layout, table, fence, settlement, now) {
            Some(update) => {
                let key = fence.key.as_str();
                self.batcher
                    .send(Request::Other, key, update, context)
                    .await
            }
            None => BatchResult::Ordinary(None),
        };
        let (place, refused) = match tried {
            BatchResult::Applied => return Ok(SettleResponse::Applied),
            BatchResult::ConditionFailed(item) => {
                return self.store.condition_failed(fence, Some(&item));
            }
            // No `UPDATE` finds a duplicate.
            BatchResult::Duplicate => (None, None),
            BatchResult::Ordinary(place) => (place, None),
            BatchResult::Refused(why) => (None, Some(why)),
            BatchResult::Failed(kind, why) => {
                let action = settlement.name();
                return Err(self.store.unanswered(kind, action, &fence.key, &why));
            }
        };
        let answer = self.store.settle_in(place, fence, settlement, now).await;
        if let (Some(why), Ok(_)) = (refused, &answer) {
            self.batcher.refused(Request::Other, why, context);
        }
        answer
    }
}

impl TransactionalStore for Batched {
    async fn commit(
        &self,
        commit: &Commit,
        context: &RequestContext,
    ) -> Result<CommitResponse, StoreError> {
        self.store.commit(commit, context).await
    }
}

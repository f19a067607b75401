//! [`Batched`]: claims and settlements of concurrent messages in common requests.

mod answer;
mod queue;
mod statement;

use queue::{Groups, Tried};
use sqs_once_core::{
    protocol::{ClaimRequest, Fence, Key, Record, Settlement, Timestamp},
    store::{ClaimAnswer, RequestContext, SettleAnswer, Store, StoreError},
};

use super::{DynamoStore, Request};
use crate::transactional::{Commit, CommitAnswer, TransactionalStore};

/// A [`DynamoStore`] that sends claims and settlements of concurrent messages in batches
/// (`BatchExecuteStatement`): one request instead of up to 25.
///
/// | write | in a batch |
/// | --- | --- |
/// | claim of a message at its first receive | `INSERT` |
/// | completion, permanent failure | `UPDATE` with the fence as its condition |
/// | claim at a later receive, other settlements, results over 16 KB, transactions | never |
///
/// An `INSERT` that finds a record is followed by the ordinary request. So a second message with the same key
/// consumes two write units instead of one.
///
/// - A call waits for one turn of the runtime, and shares a request with the calls of that turn.
///   A call without company goes as the ordinary request.
/// - While four requests are in flight, a batch that is not full waits for further calls, for at most
///   100 ms.
/// - A call waits for its batch at most half of its time left. A batch that gets no answer goes out
///   once more as a batch; after that, its calls go out as ordinary requests.
/// - Needs the permissions `dynamodb:PartiQLInsert` and `dynamodb:PartiQLUpdate`. If DynamoDB
///   denies access, or sends an answer of an unknown form, the store logs a warning, and sends ordinary
///   requests from then on.
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
    groups: Groups,
}

impl Batched {
    /// Batches the writes of `store`, whose settings stay as they are.
    #[must_use]
    pub fn new(store: DynamoStore) -> Self {
        Self::from(store, 2)
    }

    /// Sends even a call without company as a batch, for tests.
    #[doc(hidden)]
    #[must_use]
    pub fn with_lone_calls(store: DynamoStore) -> Self {
        Self::from(store, 1)
    }

    fn from(store: DynamoStore, smallest: usize) -> Self {
        let groups = Groups::new(&store, smallest);
        Self { store, groups }
    }
}

impl Store for Batched {
    async fn claim(
        &self,
        request: &ClaimRequest,
        context: &RequestContext,
    ) -> Result<ClaimAnswer, StoreError> {
        self.store.check_claim(request)?;
        let place = if context.expects_record() {
            None
        } else {
            let item = self.store.layout.item(&request.key, &request.record(None));
            let insert = statement::claim(&self.store.table, item);
            let key = request.key.as_str();
            match self.groups.send(Request::Claim, key, insert, context).await {
                Tried::Applied => return Ok(ClaimAnswer::Applied { replaced: None }),
                // Never seen: an `INSERT` carries no condition.
                Tried::Refused(_) | Tried::RefusedWithoutItem => None,
                Tried::Ordinary(place) => place,
                Tried::Failed(kind, why) => {
                    return Err(self.store.unanswered(kind, "claim", &request.key, &why));
                }
            }
        };
        let answer = self.store.claim_in(place, request, context).await;
        self.groups.dispatch();
        answer
    }

    async fn settle(
        &self,
        fence: &Fence,
        settlement: &Settlement,
        now: Timestamp,
        context: &RequestContext,
    ) -> Result<SettleAnswer, StoreError> {
        self.store.check_settlement(fence, settlement)?;
        let DynamoStore { layout, table, .. } = &self.store;
        let tried = match statement::settle(layout, table, fence, settlement, now) {
            Some(update) => {
                let key = fence.key.as_str();
                self.groups.send(Request::Other, key, update, context).await
            }
            None => Tried::Ordinary(None),
        };
        let (place, lacks_item) = match tried {
            Tried::Applied => return Ok(SettleAnswer::Applied),
            Tried::Refused(item) => return self.store.refused(fence, Some(&item)),
            Tried::RefusedWithoutItem => (None, true),
            Tried::Ordinary(place) => (place, false),
            Tried::Failed(kind, why) => {
                let action = settlement.name();
                return Err(self.store.unanswered(kind, action, &fence.key, &why));
            }
        };
        let answer = self
            .store
            .settle_in(place, fence, settlement, now, context)
            .await;
        if lacks_item && matches!(answer, Ok(SettleAnswer::Refused(Some(_)))) {
            self.groups.item_is_missing(context);
        }
        self.groups.dispatch();
        answer
    }
}

impl TransactionalStore for Batched {
    async fn look(
        &self,
        key: &Key,
        context: &RequestContext,
    ) -> Result<Option<Record>, StoreError> {
        let found = self.store.look(key, context).await;
        self.groups.dispatch();
        found
    }

    async fn commit(
        &self,
        commit: &Commit,
        context: &RequestContext,
    ) -> Result<CommitAnswer, StoreError> {
        let answer = self.store.commit(commit, context).await;
        self.groups.dispatch();
        answer
    }
}

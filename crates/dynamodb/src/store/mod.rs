//! [`DynamoStore`]: records in a DynamoDB table.

mod admin;
mod batched;
mod expressions;
mod item;
mod layout;
mod places;
mod transaction;

use std::{
    pin::{Pin, pin},
    time::Duration,
};

use aws_sdk_dynamodb::{
    Client,
    error::{ProvideErrorMetadata, SdkError},
    operation::{
        delete_item::DeleteItemError, put_item::PutItemError, update_item::UpdateItemError,
    },
    types::{ReturnConsumedCapacity, ReturnValue},
};

pub use batched::Batched;
pub use layout::{Field, Layout};
pub(crate) use places::{Place, Places, Request};

use super::{
    empty_response::reject_empty_responses,
    explain::{explain, kind},
    item::{self as items, Item},
    without_retries,
    write::{delete_item, put_item, update_item},
};
use crate::write::add_write_units;
use sqs_once_core::{
    protocol::{
        ClaimRequest, Fence, Key, Record, Settlement, StoredResult, Timestamp, Unavailability,
        decision::may_claim,
        record::{MAX_ITEM_BYTES, MAX_RESULT_BYTES},
    },
    store::{ClaimAnswer, SettleAnswer, Store, StoreError},
};

/// Records in a DynamoDB table.
///
/// # Table
///
/// Key schema: partition key `id` (string), no sort key. TTL attribute: `expires_at`.
///
/// ```sh
/// aws dynamodb create-table --table-name idempotency --billing-mode PAY_PER_REQUEST \
///     --attribute-definitions AttributeName=id,AttributeType=S \
///     --key-schema AttributeName=id,KeyType=HASH
/// aws dynamodb wait table-exists --table-name idempotency
/// aws dynamodb update-time-to-live --table-name idempotency \
///     --time-to-live-specification Enabled=true,AttributeName=expires_at
/// ```
///
/// | attribute | type | meaning |
/// | --- | --- | --- |
/// | `id` | S | the [`Key`] |
/// | `status` | S | `IN_PROGRESS`, `COMPLETED` or `FAILED` |
/// | `owner` | S | random token of the current or last claim |
/// | `lease_until` | N | end of the lease in epoch milliseconds; a takeover can follow |
/// | `expires_at` | N | end of the retention in epoch seconds; TTL |
/// | `fingerprint` | S | SHA-256 of the payload, lower-case hex |
/// | `fingerprint_scheme` | S | the part that was hashed, and how; absent if unknown |
/// | `message_id` | S | message of the current or last claim |
/// | `attempts` | N | number of claims since the record was created |
/// | `first_claimed_at` | N | claim time of the earliest open attempt in epoch ms; 0 if unknown |
/// | `last_end` | S | last attempt ended as `retryable`, `panic`, `deadline` or `not_started`; absent if unknown |
/// | `exclusive_attempts` | N | attempts in a row that ran alone and have no recorded end |
/// | `failed_message_ids` | SS | messages that failed permanently, at most 20 |
/// | `result` | S | the handler's output as JSON |
/// | `result_in_s3` | S | object in S3 that holds the output ([`Results`](sqs_once_core::store::Results)): bucket, key, SHA-256 and length, as JSON |
/// | `result_omitted` | S | reason why the output was not stored |
/// | `error` | S | text of the last permanent failure |
/// | `created_at`, `updated_at` | N | epoch milliseconds |
///
/// [`layout`](Self::layout) sets other attribute names, a sort key, or the record format of
/// Powertools for AWS Lambda.
///
/// # Protocol
///
/// 1. A claim is one `UpdateItem`, with the condition of
///    [`may_claim`]. If the record is past `expires_at`, or
///    another program wrote it, a `PutItem` follows.
/// 2. Every write after the claim is one `UpdateItem` or `DeleteItem`. Its condition is that the
///    record still has this owner and is `IN_PROGRESS`.
/// 3. DynamoDB returns the record when a condition check fails
///    (`ReturnValuesOnConditionCheckFailure`). So no decision needs a separate read.
///
/// # Limits
///
/// | limit | value |
/// | --- | --- |
/// | partition key | 2048 bytes; [`Key`] hashes longer keys |
/// | item | 400 KB, checked before a request is sent |
///
/// # Permissions
///
/// | use | actions |
/// | --- | --- |
/// | every consumer | `dynamodb:PutItem`, `UpdateItem`, `DeleteItem` |
/// | [`prime`](Self::prime), [`first_look`](crate::inbox::Inbox::first_look) | `dynamodb:GetItem` |
/// | [`Batched`] | `dynamodb:PartiQLInsert`, `PartiQLUpdate` |
///
/// Writes that commit with a record need `PutItem`, `UpdateItem`, `DeleteItem` or
/// `ConditionCheckItem` on their own tables. IAM has no separate permission for transactions.
///
/// # Guarantee
///
/// DynamoDB serialises the writes to one item, so of two claims one is refused. This holds for any
/// difference between the workers' clocks. Clocks only decide when a lease expires.
///
/// The guarantee holds within one Region. A global table with eventual consistency checks
/// conditions in each Region separately. Let the consumers of **one Region** write to a table, and
/// move all consumers at once. A global table with strong consistency has no transactions and no
/// TTL.
///
/// ```no_run
/// # async fn run() {
/// use sqs_once::{Once, aws, store::DynamoStore};
///
/// let client = aws_sdk_dynamodb::Client::new(&aws::config().await);
/// let once = Once::new(DynamoStore::new(client, "idempotency"));
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct DynamoStore {
    /// Client for reads, which the SDK retries.
    client: Client,
    /// Client for writes, without the SDK's retries. The store sees each answer, and throttled
    /// claims cannot use up the retry quota of settlements.
    pub(crate) writing: Client,
    pub(crate) table: String,
    pub(crate) layout: Layout,
    /// `Some` asks DynamoDB for the consumed capacity of writes.
    pub(crate) capacity: Option<ReturnConsumedCapacity>,
    pub(crate) places: Places,
}

impl DynamoStore {
    /// Creates a store for records in `table`.
    ///
    /// `aws::config` sets timeouts that suit a Lambda function.
    #[must_use]
    pub fn new(client: Client, table: impl Into<String>) -> Self {
        let client = reject_empty_responses(client);
        Self {
            writing: without_retries(&client),
            client,
            table: table.into(),
            layout: Layout::native(),
            capacity: None,
            places: Places::default(),
        }
    }

    /// Sets attribute names, status words and key schema of the table.
    ///
    /// ```no_run
    /// # fn store(client: aws_sdk_dynamodb::Client) {
    /// use sqs_once::store::{DynamoStore, Layout};
    ///
    /// let store = DynamoStore::new(client, "idempotency").layout(Layout::powertools());
    /// # }
    /// ```
    #[must_use]
    pub fn layout(self, layout: Layout) -> Self {
        Self { layout, ..self }
    }

    /// Asks DynamoDB for the consumed write units of each write (`ReturnConsumedCapacity`), for the
    /// metric `WriteUnits`. Off by default.
    ///
    /// Known gap: DynamoDB reports no units of refused writes, although these consume units.
    ///
    /// ```no_run
    /// # fn store(client: aws_sdk_dynamodb::Client) {
    /// let store = sqs_once::store::DynamoStore::new(client, "idempotency").write_units(true);
    /// # }
    /// ```
    #[must_use]
    pub fn write_units(self, write_units: bool) -> Self {
        Self {
            capacity: write_units.then_some(ReturnConsumedCapacity::Total),
            ..self
        }
    }

    /// Sends a request in `place`, or when there is one.
    async fn in_place<T>(
        &self,
        place: Option<Place>,
        kind: Request,
        request: Pin<&mut impl Future<Output = T>>,
    ) -> T {
        match place {
            Some(_place) => request.await,
            None => self.places.run(kind, request).await,
        }
    }

    /// Opens the connection and checks read access to the table.
    ///
    /// Sends one eventually consistent `GetItem` for a record that never exists, and waits at most
    /// `timeout`.
    ///
    /// Call this method in Lambda's init phase. The first message then needs no TLS handshake, and
    /// a wrong table name or a missing permission shows before the first message.
    ///
    /// # Errors
    ///
    /// The reason, if the table could not be read. Log the error and start the consumer nevertheless.
    ///
    /// ```no_run
    /// # async fn run(store: sqs_once::store::DynamoStore) {
    /// if let Err(error) = store.prime(std::time::Duration::from_secs(2)).await {
    ///     tracing::warn!(%error, "starting without a warm connection");
    /// }
    /// # }
    /// ```
    pub async fn prime(&self, timeout: Duration) -> Result<(), PrimeError> {
        let read = self
            .client
            .get_item()
            .table_name(&self.table)
            // Escaped keys never contain `\p`, so no operation has this id.
            .set_key(Some(self.layout.primary_key("\\prime")))
            .projection_expression("#id")
            .expression_attribute_names("#id", self.layout.name(Field::Id))
            .send();
        let reason = match tokio::time::timeout(timeout, read).await {
            Ok(Ok(_)) => return Ok(()),
            Ok(Err(error)) => self.explain(&error, "dynamodb:GetItem"),
            Err(_) => format!("no answer within {timeout:?}"),
        };
        Err(PrimeError {
            table: self.table.clone(),
            reason,
        })
    }

    /// The error of a request that got no good answer, for this reason.
    pub(crate) fn unanswered(
        &self,
        kind: Unavailability,
        action: &'static str,
        key: &Key,
        why: &str,
    ) -> StoreError {
        StoreError::unavailable(kind, action, key, self.place(), why)
    }

    fn place(&self) -> String {
        format!("DynamoDB table `{}`", self.table)
    }

    fn unavailable<E>(
        &self,
        action: &'static str,
        needs: &str,
        key: &Key,
        error: SdkError<E>,
    ) -> StoreError
    where
        E: ProvideErrorMetadata + std::error::Error + Send + Sync + 'static,
    {
        StoreError::Unavailable {
            kind: kind(&error),
            action,
            key: key.to_string(),
            store: self.place(),
            reason: self.explain(&error, needs),
            source: error.into(),
        }
    }

    /// Explains a failed request, and the key that the table must have where that is the reason.
    fn explain<E>(&self, error: &SdkError<E>, needs: &str) -> String
    where
        E: ProvideErrorMetadata + std::error::Error + 'static,
    {
        let why = explain(error, needs);
        // "The provided key element does not match the schema", "Missing the key id in the item".
        if !(why.contains("key element") || why.contains("Missing the key")) {
            return why;
        }
        let keys = self.layout.primary_key("");
        let mut names: Vec<_> = keys.keys().map(|name| format!("`{name}`")).collect();
        names.sort_unstable();
        format!(
            "{why}; the table must have the primary key {}: name its own in IDEMPOTENCY_ATTRIBUTES or `Layout::rename`, or create another table",
            names.join(" and ")
        )
    }

    fn read(&self, key: &Key, item: &Item) -> Result<Record, StoreError> {
        self.layout
            .record(item)
            .map_err(|reason| StoreError::Unreadable {
                key: key.to_string(),
                store: self.place(),
                reason,
            })
    }

    /// Reads the record that refused a settlement.
    pub(crate) fn refused(
        &self,
        fence: &Fence,
        item: Option<&Item>,
    ) -> Result<SettleAnswer, StoreError> {
        let record = item.map(|item| self.read(&fence.key, item)).transpose()?;
        Ok(SettleAnswer::Refused(record))
    }

    async fn delete(&self, fence: &Fence) -> Result<SettleAnswer, StoreError> {
        let delete = expressions::delete(&self.layout, &self.table, fence);
        let delete = delete_item(&self.writing, delete);
        let delete = delete.set_return_consumed_capacity(self.capacity.clone());
        let sent = pin!(delete.send());
        match self.in_place(None, Request::Other, sent).await {
            Ok(answer) => {
                add_write_units(answer.consumed_capacity());
                Ok(SettleAnswer::Applied)
            }
            Err(error) => match error.as_service_error() {
                Some(DeleteItemError::ConditionalCheckFailedException(refusal)) => {
                    self.refused(fence, refusal.item())
                }
                _ => Err(self.unavailable("restore", "dynamodb:DeleteItem", &fence.key, error)),
            },
        }
    }

    /// Claims in one request, or in two if only a put can replace the record, which is expired or
    /// another program's.
    async fn claim_once(&self, request: &ClaimRequest) -> Result<ClaimAnswer, StoreError> {
        let (record, item) = match self.claim_by_update(request).await? {
            Claim::Applied(replaced) => return Ok(ClaimAnswer::Applied { replaced }),
            Claim::Refused(record, item) => (record, item),
        };
        if !may_claim(Some(&record), request) {
            return Ok(ClaimAnswer::Refused(record));
        }
        match self.claim_by_put(request, record, &item).await? {
            // The new record admits the claim.
            ClaimAnswer::Refused(record) if may_claim(Some(&record), request) => {
                Err(StoreError::contended(
                    "claim",
                    &request.key,
                    self.place(),
                    "another worker changed the record before this write",
                ))
            }
            answer => Ok(answer),
        }
    }

    async fn claim_by_update(&self, request: &ClaimRequest) -> Result<Claim, StoreError> {
        let update = expressions::claim(&self.layout, &self.table, request);
        let update = update_item(&self.writing, update).return_values(ReturnValue::AllOld);
        let update = update.set_return_consumed_capacity(self.capacity.clone());
        match update.send().await {
            Ok(answer) => {
                add_write_units(answer.consumed_capacity());
                // An emulator returns only the key if no record existed.
                let status = self.layout.name(Field::Status);
                let replaced = answer.attributes().filter(|old| old.contains_key(status));
                let replaced = replaced.map(|old| self.read(&request.key, old));
                Ok(Claim::Applied(replaced.transpose()?))
            }
            Err(error) => match error.as_service_error() {
                Some(UpdateItemError::ConditionalCheckFailedException(refusal)) => {
                    // An emulator that ignores `ReturnValuesOnConditionCheckFailure` returns no
                    // item.
                    let item = refusal.item().cloned().unwrap_or_default();
                    let record = self.read(&request.key, &item)?;
                    Ok(Claim::Refused(record, item))
                }
                _ => Err(self.unavailable("claim", "dynamodb:UpdateItem", &request.key, error)),
            },
        }
    }

    /// Replaces the record `found`, which is expired or another program's, by a claim.
    async fn claim_by_put(
        &self,
        request: &ClaimRequest,
        found: Record,
        item: &Item,
    ) -> Result<ClaimAnswer, StoreError> {
        let replaced = Some(found).filter(|found| !found.is_expired(request.now));
        let record = self
            .layout
            .item(&request.key, &request.record(replaced.as_ref()));
        let put = expressions::put_over(&self.layout, &self.table, item, record);
        let put = put_item(&self.writing, put);
        let put = put.set_return_consumed_capacity(self.capacity.clone());
        match put.send().await {
            Ok(answer) => {
                add_write_units(answer.consumed_capacity());
                Ok(ClaimAnswer::Applied { replaced })
            }
            Err(error) => match error.as_service_error() {
                Some(PutItemError::ConditionalCheckFailedException(refusal)) => {
                    let record = self.read(&request.key, refusal.item().unwrap_or(&Item::new()))?;
                    Ok(ClaimAnswer::Refused(record))
                }
                _ => Err(self.unavailable("claim", "dynamodb:PutItem", &request.key, error)),
            },
        }
    }
}

/// The answer to a claim by `UpdateItem`.
enum Claim {
    Applied(Option<Record>),
    Refused(Record, Item),
}

impl DynamoStore {
    /// Rejects a claim whose record would leave no room for a result, which must fit after the effect.
    pub(crate) fn check_claim(&self, request: &ClaimRequest) -> Result<(), StoreError> {
        let room = MAX_ITEM_BYTES - MAX_RESULT_BYTES;
        if self.layout.largest_claim(request) <= room {
            return Ok(());
        }
        let item = self.layout.item(&request.key, &request.record(None));
        check_size(&request.key, items::size(&item), room)
    }

    /// Rejects a result that is too large, before a request is sent.
    pub(crate) fn check_settlement(
        &self,
        fence: &Fence,
        settlement: &Settlement,
    ) -> Result<(), StoreError> {
        check_result(&fence.key, settlement)
    }

    /// Claims in `place`, or when there is one.
    pub(crate) async fn claim_in(
        &self,
        place: Option<Place>,
        request: &ClaimRequest,
    ) -> Result<ClaimAnswer, StoreError> {
        let claim = pin!(self.claim_once(request));
        self.in_place(place, Request::Claim, claim).await
    }

    /// Settles in `place`, or when there is one.
    pub(crate) async fn settle_in(
        &self,
        place: Option<Place>,
        fence: &Fence,
        settlement: &Settlement,
        now: Timestamp,
    ) -> Result<SettleAnswer, StoreError> {
        let update = expressions::settle(&self.layout, &self.table, fence, settlement, now);
        let Some(update) = update else {
            return self.delete(fence).await;
        };
        let update = update_item(&self.writing, update);
        let update = update.set_return_consumed_capacity(self.capacity.clone());
        let sent = pin!(update.send());
        match self.in_place(place, Request::Other, sent).await {
            Ok(answer) => {
                add_write_units(answer.consumed_capacity());
                Ok(SettleAnswer::Applied)
            }
            Err(error) => match error.as_service_error() {
                Some(UpdateItemError::ConditionalCheckFailedException(refusal)) => {
                    self.refused(fence, refusal.item())
                }
                _ => {
                    let action = settlement.name();
                    Err(self.unavailable(action, "dynamodb:UpdateItem", &fence.key, error))
                }
            },
        }
    }
}

impl Store for DynamoStore {
    async fn claim(&self, request: &ClaimRequest) -> Result<ClaimAnswer, StoreError> {
        self.check_claim(request)?;
        self.claim_in(None, request).await
    }

    async fn settle(
        &self,
        fence: &Fence,
        settlement: &Settlement,
        now: Timestamp,
    ) -> Result<SettleAnswer, StoreError> {
        self.check_settlement(fence, settlement)?;
        self.settle_in(None, fence, settlement, now).await
    }
}

/// Rejects a result over [`MAX_RESULT_BYTES`] before a request is sent ([`StoredResult::fit`]
/// limits results).
fn check_result(key: &Key, settlement: &Settlement) -> Result<(), StoreError> {
    let bytes = match settlement {
        Settlement::Complete {
            result: StoredResult::Json(text) | StoredResult::Omitted(text),
            ..
        }
        | Settlement::Fail { error: text, .. } => text.len(),
        // A pointer has a few hundred bytes.
        Settlement::Complete {
            result: StoredResult::InS3(_),
            ..
        }
        | Settlement::EndLease { .. }
        | Settlement::Restore(_)
        | Settlement::Renew { .. } => 0,
    };
    check_size(key, bytes, MAX_RESULT_BYTES)
}

fn check_size(key: &Key, bytes: usize, limit: usize) -> Result<(), StoreError> {
    if bytes <= limit {
        return Ok(());
    }
    Err(StoreError::ItemTooLarge {
        key: key.to_string(),
        bytes,
        limit,
    })
}

/// The reason why [`DynamoStore::prime`] could not read the table.
#[derive(Clone, Debug, thiserror::Error)]
#[error("DynamoDB table `{table}` did not answer the warm-up read: {reason}")]
pub struct PrimeError {
    table: String,
    reason: String,
}

#[cfg(test)]
mod tests {
    use super::*;
    use sqs_once_core::protocol::{AfterFailure, Fingerprint, Namespace, Owner};

    fn request() -> ClaimRequest {
        ClaimRequest {
            key: Key::new(&Namespace::new("ns").unwrap(), ["key"]).unwrap(),
            owner: Owner::fresh(),
            fingerprint: None,
            message_id: "m-1".to_owned(),
            now: Timestamp::now(),
            lease_until: Timestamp::now(),
            expires_at: 0,
            after_failure: AfterFailure::Retry,
        }
    }

    #[test]
    fn size_limit_of_claims_is_never_too_low() {
        let layouts = [
            Layout::native(),
            Layout::powertools(),
            Layout::native()
                .sort_key("SK", "p".repeat(1024))
                .unwrap()
                .rename([("message_id", "m".repeat(255).as_str())])
                .unwrap(),
        ];
        for layout in layouts {
            for length in [1, 100, 2000] {
                let part = "k".repeat(length);
                let mut request = request();
                request.key = Key::new(&Namespace::new("ns").unwrap(), [&*part]).unwrap();
                request.message_id = "x".repeat(length);
                request.fingerprint = Some(Fingerprint::of(b""));
                let item = layout.item(&request.key, &request.record(None));
                assert!(layout.largest_claim(&request) >= items::size(&item));
            }
        }
    }

    #[tokio::test]
    async fn item_over_400_kb_is_refused_before_sending() {
        // A client without an endpoint: the error can only come from the library's own check.
        let config = aws_sdk_dynamodb::Config::builder()
            .behavior_version(aws_sdk_dynamodb::config::BehaviorVersion::latest())
            .build();
        let store = DynamoStore::new(Client::from_conf(config), "table");
        let mut request = request();
        request.message_id = "x".repeat(MAX_ITEM_BYTES - MAX_RESULT_BYTES);
        let refused = store.claim(&request).await.unwrap_err();
        assert!(
            matches!(refused, StoreError::ItemTooLarge { .. }),
            "{refused}"
        );

        request.message_id.clear();
        let not_sent = store.claim(&request).await.unwrap_err().to_string();
        let wanted = "could not claim key `ns#key` in DynamoDB table `table`: could not ";
        assert!(not_sent.starts_with(wanted), "{not_sent}");

        let result = StoredResult::Json("x".repeat(MAX_RESULT_BYTES + 1));
        let complete = Settlement::Complete {
            result,
            expires_at: 0,
        };
        let refused = store
            .settle(&request.fence(), &complete, request.now)
            .await
            .unwrap_err();
        assert!(
            matches!(refused, StoreError::ItemTooLarge { .. }),
            "{refused}"
        );
    }
}

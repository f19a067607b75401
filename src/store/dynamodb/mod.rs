//! [`DynamoStore`]: records in a DynamoDB table.

mod expressions;
mod item;
mod layout;
mod transaction;

use std::time::Duration;

use aws_sdk_dynamodb::{
    Client,
    error::{ProvideErrorMetadata, SdkError},
    operation::{
        delete_item::DeleteItemError, put_item::PutItemError, update_item::UpdateItemError,
    },
    types::ReturnValue,
};

pub use layout::{Field, Layout};

use super::{ClaimAnswer, SettleAnswer, Store, StoreError};
use crate::{
    dynamodb::{
        empty_response::reject_empty_responses,
        explain::{explain, kind},
        item::{self as items, Item},
        without_retries,
        write::{delete_item, put_item, update_item},
    },
    protocol::{
        ClaimRequest, Fence, Key, Record, Settlement, StoredResult, Timestamp, Unavailability,
        decision::may_claim,
        record::{MAX_ITEM_BYTES, MAX_RESULT_BYTES},
    },
};

/// Records in a DynamoDB table.
///
/// # The table
///
/// A partition key `id` (string), no sort key, and TTL on `expires_at`:
///
/// ```sh
/// aws dynamodb create-table --table-name idempotency --billing-mode PAY_PER_REQUEST \
///     --attribute-definitions AttributeName=id,AttributeType=S \
///     --key-schema AttributeName=id,KeyType=HASH
/// aws dynamodb update-time-to-live --table-name idempotency \
///     --time-to-live-specification Enabled=true,AttributeName=expires_at
/// ```
///
/// | attribute | type | meaning |
/// | --- | --- | --- |
/// | `id` | S | the [`Key`] |
/// | `status` | S | `IN_PROGRESS`, `COMPLETED` or `FAILED` |
/// | `owner` | S | random token of the current or last claim |
/// | `lease_until` | N | epoch milliseconds; after it the claim can be taken over |
/// | `expires_at` | N | epoch seconds; TTL |
/// | `fingerprint` | S | SHA-256 of the payload, lower-case hex |
/// | `message_id` | S | message of the current or last claim |
/// | `attempts` | N | claims made since the record was created |
/// | `first_claimed_at` | N | epoch milliseconds of the earliest open attempt; 0 if its time is not known |
/// | `last_end` | S | how the last attempt ended: `retryable`, `panic`, `deadline`; absent after a crash |
/// | `failed_message_ids` | SS | messages that failed permanently, at most 20 |
/// | `result` | S | the handler's output as JSON |
/// | `result_omitted` | S | the reason why the output was not stored |
/// | `error` | S | the last permanent failure |
/// | `created_at`, `updated_at` | N | epoch milliseconds |
///
/// Other names, a sort key, or the record of Powertools for AWS Lambda: [`layout`](Self::layout).
///
/// # The protocol
///
/// 1. A claim is one `UpdateItem`, on condition that there is no record; or its lease has ended and
///    its payload is the same; or it FAILED for other messages. Over a record past its
///    `expires_at`, or one of another program, a `PutItem` follows.
/// 2. Every write after the claim is one `UpdateItem` or `DeleteItem`, on condition that the record
///    still has this owner and is `IN_PROGRESS`.
/// 3. A refused write is answered with the record (`ReturnValuesOnConditionCheckFailure`), so
///    no decision reads by a request of its own.
///
/// # Limits
///
/// A key has at most 2048 bytes (a longer one is hashed by [`Key`]) and an item 400 KB, which
/// is checked before the request is sent. The role needs `dynamodb:PutItem`, `UpdateItem` and
/// `DeleteItem`, and `GetItem` for [`prime`](Self::prime) and
/// [`first_look`](crate::Inbox::first_look). Writes that commit with a record need `PutItem`,
/// `UpdateItem`, `DeleteItem` or `ConditionCheckItem` on their own tables; there is no
/// permission for transactions.
///
/// # Guarantee
///
/// DynamoDB serialises the writes to one item, so of two claims one is refused, whatever
/// their clocks say. The clocks matter only for when a lease has ended.
///
/// That holds within one Region. A global table with eventual consistency checks conditions in
/// each Region by itself: let consumers of **one Region** write to a table, and move all of them
/// at once. A global table with strong consistency has no transactions and no TTL.
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
    /// For reads: the SDK retries them.
    client: Client,
    /// For writes. The SDK does not retry them, so each answer is seen, and a storm of throttled
    /// claims cannot use up the retry quota of settlements.
    writing: Client,
    table: String,
    layout: Layout,
}

impl DynamoStore {
    /// Records in `table`, through `client` (see [`crate::aws::config`] for one whose
    /// timeouts suit a Lambda).
    #[must_use]
    pub fn new(client: Client, table: impl Into<String>) -> Self {
        let client = reject_empty_responses(client);
        Self {
            writing: without_retries(&client),
            client,
            table: table.into(),
            layout: Layout::native(),
        }
    }

    /// Other names than the native ones, or a sort key.
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

    /// Opens the connection and looks whether the table can be read: one eventually
    /// consistent `GetItem` of a record that is never there, bounded by `timeout`.
    ///
    /// Meant for Lambda's init phase, where it saves the first message the handshake and
    /// tells of a misspelt table or a missing permission before a message is at stake.
    ///
    /// # Errors
    ///
    /// The reason in words, if the table could not be read. It is advice: go on and start.
    ///
    /// ```no_run
    /// # async fn run(store: sqs_once::store::DynamoStore) {
    /// if let Err(error) = store.prime(std::time::Duration::from_secs(2)).await {
    ///     tracing::warn!(%error, "started all the same");
    /// }
    /// # }
    /// ```
    pub async fn prime(&self, timeout: Duration) -> Result<(), PrimeError> {
        let read = self
            .client
            .get_item()
            .table_name(&self.table)
            // `\p` cannot come out of a key's escaping: no operation's record has this id.
            .set_key(Some(self.layout.primary_key("\\prime")))
            .projection_expression("#id")
            .expression_attribute_names("#id", self.layout.name(Field::Id))
            .send();
        let reason = match tokio::time::timeout(timeout, read).await {
            Ok(Ok(_)) => return Ok(()),
            Ok(Err(error)) => explain(&error, "dynamodb:GetItem"),
            Err(_) => format!("no answer within {timeout:?}"),
        };
        Err(PrimeError {
            table: self.table.clone(),
            reason,
        })
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
            reason: explain(&error, needs),
            source: error.into(),
        }
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
    fn refused(&self, fence: &Fence, item: Option<&Item>) -> Result<SettleAnswer, StoreError> {
        let record = item.map(|item| self.read(&fence.key, item)).transpose()?;
        Ok(SettleAnswer::Refused(record))
    }

    async fn delete(&self, fence: &Fence) -> Result<SettleAnswer, StoreError> {
        let delete = expressions::delete(&self.layout, &self.table, fence);
        match delete_item(&self.writing, delete).send().await {
            Ok(_) => Ok(SettleAnswer::Applied),
            Err(error) => match error.as_service_error() {
                Some(DeleteItemError::ConditionalCheckFailedException(refusal)) => {
                    self.refused(fence, refusal.item())
                }
                _ => Err(self.unavailable("restore", "dynamodb:DeleteItem", &fence.key, error)),
            },
        }
    }

    /// Claims in one request, or in two over a record that only a put can replace.
    async fn claim_once(&self, request: &ClaimRequest) -> Result<ClaimAnswer, StoreError> {
        for _ in 0..MOST_CHANGES {
            let (record, item) = match self.claim_by_update(request).await? {
                Claim::Applied(replaced) => return Ok(ClaimAnswer::Applied { replaced }),
                Claim::Refused(record, item) => (record, item),
            };
            if !may_claim(Some(&record), request) {
                return Ok(ClaimAnswer::Refused(record));
            }
            match self.claim_by_put(request, record, &item).await? {
                // Another worker replaced it meanwhile, and its record admits the claim.
                ClaimAnswer::Refused(record) if may_claim(Some(&record), request) => {}
                answer => return Ok(answer),
            }
        }
        Err(StoreError::Unavailable {
            kind: Unavailability::Contended,
            action: "claim",
            key: request.key.to_string(),
            store: self.place(),
            reason: "other workers changed the record each time before it was written".into(),
            source: "too many changes".into(),
        })
    }

    async fn claim_by_update(&self, request: &ClaimRequest) -> Result<Claim, StoreError> {
        let update = expressions::claim(&self.layout, &self.table, request);
        let update = update_item(&self.writing, update).return_values(ReturnValue::AllOld);
        match update.send().await {
            Ok(answer) => {
                // Without a status there was no record: an emulator answers the bare key then.
                let status = self.layout.name(Field::Status);
                let replaced = answer.attributes().filter(|old| old.contains_key(status));
                let replaced = replaced.map(|old| self.read(&request.key, old));
                Ok(Claim::Applied(replaced.transpose()?))
            }
            Err(error) => match error.as_service_error() {
                Some(UpdateItemError::ConditionalCheckFailedException(refusal)) => {
                    // No item: an emulator that ignores ReturnValuesOnConditionCheckFailure.
                    let item = refusal.item().cloned().unwrap_or_default();
                    let record = self.read(&request.key, &item)?;
                    Ok(Claim::Refused(record, item))
                }
                _ => Err(self.unavailable("claim", "dynamodb:UpdateItem", &request.key, error)),
            },
        }
    }

    /// Claims over a record that only a put can replace.
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
        match put_item(&self.writing, put).send().await {
            Ok(_) => Ok(ClaimAnswer::Applied { replaced }),
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

/// How often a claim that is not answered, or meets contention, is sent; as often as the SDK would.
const CLAIM_ATTEMPTS: u32 = 4;
/// Pauses between them: a random time up to the first, doubled each time, up to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);
/// How often other workers may change a record between the two requests of one claim.
const MOST_CHANGES: usize = 3;

/// The answer to a claim that is an update.
enum Claim {
    Applied(Option<Record>),
    Refused(Record, Item),
}

impl Store for DynamoStore {
    async fn claim(&self, request: &ClaimRequest) -> Result<ClaimAnswer, StoreError> {
        // The rest of the item is for the outcome: that must fit when the effect has happened.
        let room = MAX_ITEM_BYTES - MAX_RESULT_BYTES;
        let largest = self.layout.item(&request.key, &request.record(None));
        check_size(&request.key, items::size(&largest), room)?;
        let (mut attempt, mut longest) = (1, FIRST_PAUSE);
        let mut may_have_been_applied = false;
        loop {
            let error = match self.claim_once(request).await {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            may_have_been_applied |= error.may_have_been_applied();
            if attempt == CLAIM_ATTEMPTS || !error.may_pass() {
                return Err(if may_have_been_applied {
                    error.into_unanswered()
                } else {
                    error
                });
            }
            tokio::time::sleep(longest.mul_f64(crate::system::random_fraction())).await;
            (attempt, longest) = (attempt + 1, (longest * 2).min(LONGEST_PAUSE));
        }
    }

    async fn settle(
        &self,
        fence: &Fence,
        settlement: &Settlement,
        now: Timestamp,
    ) -> Result<SettleAnswer, StoreError> {
        check_result(&fence.key, settlement)?;
        let update = expressions::settle(&self.layout, &self.table, fence, settlement, now);
        let Some(update) = update else {
            return self.delete(fence).await;
        };
        match update_item(&self.writing, update).send().await {
            Ok(_) => Ok(SettleAnswer::Applied),
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

/// A result that was not cut to size ([`StoredResult::fit`]) is refused before it is sent.
fn check_result(key: &Key, settlement: &Settlement) -> Result<(), StoreError> {
    let bytes = match settlement {
        Settlement::Complete {
            result: StoredResult::Json(text) | StoredResult::Omitted(text),
            ..
        }
        | Settlement::Fail { error: text, .. } => text.len(),
        Settlement::EndLease { .. } | Settlement::Restore(_) => 0,
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

/// Why the table could not be looked at when the process started.
#[derive(Clone, Debug, thiserror::Error)]
#[error("DynamoDB table `{table}` did not answer the warm-up read: {reason}")]
pub struct PrimeError {
    table: String,
    reason: String,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{AfterFailure, Namespace, Owner};

    #[tokio::test]
    async fn item_over_400_kb_is_refused_before_sending() {
        // A client without an endpoint: the error can only come from the library's own check.
        let config = aws_sdk_dynamodb::Config::builder()
            .behavior_version(aws_sdk_dynamodb::config::BehaviorVersion::latest())
            .build();
        let store = DynamoStore::new(Client::from_conf(config), "table");
        let mut request = ClaimRequest {
            key: Key::new(&Namespace::new("ns").unwrap(), ["key"]).unwrap(),
            owner: Owner::fresh(),
            fingerprint: None,
            message_id: "x".repeat(MAX_ITEM_BYTES - MAX_RESULT_BYTES),
            now: Timestamp::now(),
            lease_until: Timestamp::now(),
            expires_at: 0,
            after_failure: AfterFailure::Retry,
        };
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

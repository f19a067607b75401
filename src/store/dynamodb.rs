//! [`DynamoStore`]: records in a DynamoDB table. The only file with condition expressions.

use std::time::Duration;

use aws_sdk_dynamodb::{
    Client,
    error::{ProvideErrorMetadata, SdkError},
    operation::{
        RequestId,
        delete_item::DeleteItemError,
        put_item::PutItemError,
        update_item::{UpdateItemError, builders::UpdateItemFluentBuilder},
    },
    types::{ReturnValue, ReturnValuesOnConditionCheckFailure},
};

use super::{
    ClaimAnswer, SettleAnswer, Store, StoreError,
    item::{self, Item, millis, number, string},
    layout::{Field, Layout},
};
use crate::protocol::{
    AfterFailure, ClaimRequest, Fence, Key, Record, Settlement, StoredResult, Timestamp,
    record::{MAX_ITEM_BYTES, MAX_RESULT_BYTES},
};

/// The claim's condition, by its parts. The rule they write down is
/// [`may_claim`](crate::protocol::decision::may_claim).
///
/// A layout may have one word for in progress and failed; then the error tells them apart.
mod claimable {
    pub(super) const NEW: &str = "attribute_not_exists(#id)";
    pub(super) const EXPIRED: &str = "#expires_at < :now_s";
    pub(super) const DEAD: &str =
        "#status = :in_progress AND attribute_not_exists(#error) AND #lease_until < :now_ms";
    pub(super) const SAME_PAYLOAD: &str =
        "(attribute_not_exists(#fingerprint) OR #fingerprint = :fingerprint)";
    pub(super) const FAILED_FOR_ANOTHER: &str =
        "#status = :failed AND attribute_exists(#error) AND #message_id <> :message_id";
}

/// The fence. The rule it writes down is
/// [`may_settle`](crate::protocol::decision::may_settle).
const MINE: &str = "#owner = :me AND #status = :in_progress AND attribute_not_exists(#error)";

/// What completing and failing have in common.
const SETTLE: &str =
    "SET #status = :status, #outcome = :outcome, #expires_at = :expires_at, #updated_at = :now";

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
/// | `owner` | S | who holds (or held) the claim |
/// | `lease_until` | N | epoch milliseconds; the claim is dead after it |
/// | `expires_at` | N | epoch seconds; TTL |
/// | `fingerprint` | S | SHA-256 of the payload, lower-case hex |
/// | `message_id` | S | the message that made this record |
/// | `result` | S | the handler's output as JSON, or |
/// | `result_omitted` | S | why it is not here |
/// | `error` | S | why it FAILED |
/// | `created_at`, `updated_at` | N | epoch milliseconds |
///
/// Other names, a sort key, or the record of Powertools for AWS Lambda: [`layout`](Self::layout).
///
/// # The protocol
///
/// 1. A claim is one `PutItem`, on condition that there is no record, or it is past its
///    `expires_at`, or its lease is over and its payload the same, or it FAILED for another
///    message.
/// 2. Every write after it is one `UpdateItem` or `DeleteItem`, on condition that the record
///    is still this owner's and `IN_PROGRESS`.
/// 3. A refused write is answered with the record (`ReturnValuesOnConditionCheckFailure`), so
///    nothing is ever read by a request of its own.
///
/// # Limits
///
/// A key has at most 2048 bytes (a longer one is hashed by [`Key`]) and an item 400 KB, which
/// is checked before the request is sent. The role needs `dynamodb:PutItem`, `UpdateItem` and
/// `DeleteItem`, and `GetItem` for [`prime`](Self::prime).
///
/// # Guarantee
///
/// DynamoDB serialises the writes to one item, so of two claims one is refused, whatever
/// their clocks say. The clocks matter only for when a lease is over.
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
    client: Client,
    table: String,
    layout: Layout,
}

impl DynamoStore {
    /// Records in `table`, through `client` (see [`crate::aws::config`] for one whose
    /// timeouts suit a Lambda).
    #[must_use]
    pub fn new(client: Client, table: impl Into<String>) -> Self {
        Self {
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
    /// [`PrimeError`], in words. It is advice: go on and start.
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

    /// What a refused settlement was refused by.
    fn refused(&self, fence: &Fence, item: Option<&Item>) -> Result<SettleAnswer, StoreError> {
        let record = item.map(|item| self.read(&fence.key, item)).transpose()?;
        Ok(SettleAnswer::Refused(record))
    }

    async fn delete(&self, fence: &Fence) -> Result<SettleAnswer, StoreError> {
        let delete = self
            .client
            .delete_item()
            .table_name(&self.table)
            .set_key(Some(self.layout.primary_key(fence.key.as_str())))
            .condition_expression(MINE)
            .expression_attribute_names("#owner", self.layout.name(Field::Owner))
            .expression_attribute_names("#status", self.layout.name(Field::Status))
            .expression_attribute_names("#error", self.layout.name(Field::Error))
            .expression_attribute_values(":me", string(fence.owner.as_str()))
            .expression_attribute_values(":in_progress", string(&*self.layout.words.in_progress))
            .return_values_on_condition_check_failure(ReturnValuesOnConditionCheckFailure::AllOld);
        match delete.send().await {
            Ok(_) => Ok(SettleAnswer::Applied),
            Err(error) => match error.as_service_error() {
                Some(DeleteItemError::ConditionalCheckFailedException(refusal)) => {
                    self.refused(fence, refusal.item())
                }
                _ => Err(self.unavailable("release", "dynamodb:DeleteItem", &fence.key, error)),
            },
        }
    }

    async fn update(
        &self,
        fence: &Fence,
        settlement: &Settlement,
        now: Timestamp,
    ) -> Result<SettleAnswer, StoreError> {
        let update = self
            .client
            .update_item()
            .table_name(&self.table)
            .set_key(Some(self.layout.primary_key(fence.key.as_str())))
            .condition_expression(MINE)
            .expression_attribute_names("#owner", self.layout.name(Field::Owner))
            .expression_attribute_names("#status", self.layout.name(Field::Status))
            .expression_attribute_names("#error", self.layout.name(Field::Error))
            .expression_attribute_names("#lease_until", self.layout.name(Field::LeaseUntil))
            .expression_attribute_names("#updated_at", self.layout.name(Field::UpdatedAt))
            .expression_attribute_values(":me", string(fence.owner.as_str()))
            .expression_attribute_values(":in_progress", string(&*self.layout.words.in_progress))
            .expression_attribute_values(":now", millis(now))
            .return_values_on_condition_check_failure(ReturnValuesOnConditionCheckFailure::AllOld);
        let words = &self.layout.words;
        let (status, outcome, text, expires_at) = match settlement {
            Settlement::Complete {
                result: StoredResult::Json(json),
                expires_at,
            } => (&words.completed, Field::Result, json.as_str(), *expires_at),
            Settlement::Complete {
                result: StoredResult::Omitted(why),
                expires_at,
            } => (
                &words.completed,
                Field::ResultOmitted,
                why.as_str(),
                *expires_at,
            ),
            Settlement::Fail { error, expires_at } => {
                (&words.failed, Field::Error, error.as_str(), *expires_at)
            }
            Settlement::Abandon | Settlement::Release => {
                let update = update
                    .update_expression("SET #lease_until = :zero, #updated_at = :now")
                    .expression_attribute_values(":zero", number(0));
                return self.send(update, fence, settlement).await;
            }
        };
        check_size(&fence.key, text.len(), MAX_RESULT_BYTES)?;
        // Who takes a failed record for one in progress must not wait for it.
        let update = if *status == words.in_progress {
            update
                .update_expression(format!("{SETTLE}, #lease_until = :zero"))
                .expression_attribute_values(":zero", number(0))
        } else {
            update.update_expression(format!("{SETTLE} REMOVE #lease_until"))
        };
        let update = update
            .expression_attribute_names("#outcome", self.layout.name(outcome))
            .expression_attribute_names("#expires_at", self.layout.name(Field::ExpiresAt))
            .expression_attribute_values(":status", string(&**status))
            .expression_attribute_values(":outcome", string(text))
            .expression_attribute_values(":expires_at", number(expires_at));
        self.send(update, fence, settlement).await
    }

    async fn send(
        &self,
        update: UpdateItemFluentBuilder,
        fence: &Fence,
        settlement: &Settlement,
    ) -> Result<SettleAnswer, StoreError> {
        match update.send().await {
            Ok(_) => Ok(SettleAnswer::Applied),
            Err(error) => match error.as_service_error() {
                Some(UpdateItemError::ConditionalCheckFailedException(refusal)) => {
                    self.refused(fence, refusal.item())
                }
                _ => Err(self.unavailable(
                    settlement.name(),
                    "dynamodb:UpdateItem",
                    &fence.key,
                    error,
                )),
            },
        }
    }
}

impl Store for DynamoStore {
    async fn claim(&self, request: &ClaimRequest) -> Result<ClaimAnswer, StoreError> {
        let item = self.layout.claim_item(request);
        // The rest of the item is for the outcome: that must fit when the effect has happened.
        check_size(
            &request.key,
            item::size(&item),
            MAX_ITEM_BYTES - MAX_RESULT_BYTES,
        )?;
        let mut dead = claimable::DEAD.to_owned();
        let mut put = self
            .client
            .put_item()
            .table_name(&self.table)
            .set_item(Some(item))
            .expression_attribute_names("#id", self.layout.name(Field::Id))
            .expression_attribute_names("#expires_at", self.layout.name(Field::ExpiresAt))
            .expression_attribute_names("#status", self.layout.name(Field::Status))
            .expression_attribute_names("#error", self.layout.name(Field::Error))
            .expression_attribute_names("#lease_until", self.layout.name(Field::LeaseUntil))
            .expression_attribute_values(":now_s", number(request.now.as_secs()))
            .expression_attribute_values(":now_ms", millis(request.now))
            .expression_attribute_values(":in_progress", string(&*self.layout.words.in_progress))
            .return_values(ReturnValue::AllOld)
            .return_values_on_condition_check_failure(ReturnValuesOnConditionCheckFailure::AllOld);
        if let Some(fingerprint) = &request.fingerprint {
            dead = format!("{dead} AND {}", claimable::SAME_PAYLOAD);
            put = put
                .expression_attribute_names("#fingerprint", self.layout.name(Field::Fingerprint))
                .expression_attribute_values(":fingerprint", string(fingerprint.as_str()));
        }
        let mut condition = format!("{} OR {} OR ({dead})", claimable::NEW, claimable::EXPIRED);
        if request.after_failure == AfterFailure::Retry {
            condition = format!("{condition} OR ({})", claimable::FAILED_FOR_ANOTHER);
            put = put
                .expression_attribute_names("#message_id", self.layout.name(Field::MessageId))
                .expression_attribute_values(":failed", string(&*self.layout.words.failed))
                .expression_attribute_values(":message_id", string(&request.message_id));
        }
        let put = put.condition_expression(condition);
        match put.send().await {
            Ok(answer) => {
                let replaced = answer.attributes().map(|old| self.read(&request.key, old));
                Ok(ClaimAnswer::Applied {
                    replaced: replaced.transpose()?,
                })
            }
            Err(error) => match error.as_service_error() {
                Some(PutItemError::ConditionalCheckFailedException(refusal)) => {
                    // No item: an emulator that ignores ReturnValuesOnConditionCheckFailure.
                    let record = self.read(&request.key, refusal.item().unwrap_or(&Item::new()))?;
                    Ok(ClaimAnswer::Refused(record))
                }
                _ => Err(self.unavailable("claim", "dynamodb:PutItem", &request.key, error)),
            },
        }
    }

    async fn settle(
        &self,
        fence: &Fence,
        settlement: &Settlement,
        now: Timestamp,
    ) -> Result<SettleAnswer, StoreError> {
        match settlement {
            Settlement::Release => self.delete(fence).await,
            _ => self.update(fence, settlement, now).await,
        }
    }
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

/// What went wrong and what to do, without the request or the response: they hold payload.
fn explain<E>(error: &SdkError<E>, permission: &str) -> String
where
    E: ProvideErrorMetadata + std::error::Error + 'static,
{
    let Some(service) = error.as_service_error() else {
        return match error {
            SdkError::TimeoutError(_) => "no answer in time".into(),
            // A connector's errors hold addresses and causes, no bodies.
            SdkError::DispatchFailure(failure) => format!(
                "could not connect; check the endpoint, the region and the network ({})",
                failure
                    .as_connector_error()
                    .map_or_else(String::new, |error| causes(error))
            ),
            SdkError::ConstructionFailure(_) => {
                format!("could not make the request ({})", causes(error))
            }
            _ => "the answer could not be read".into(),
        };
    };
    let code = service.code().unwrap_or("unknown error");
    let advice = match code {
        "ResourceNotFoundException" => {
            "there is no such table in this account and region; check its name".into()
        }
        "AccessDeniedException" => format!("this role may not {permission} on it; grant it"),
        "UnrecognizedClientException" | "InvalidSignatureException" | "ExpiredTokenException" => {
            "the credentials are not valid (any more)".into()
        }
        "ProvisionedThroughputExceededException"
        | "ThrottlingException"
        | "RequestLimitExceeded" => {
            "throttled; raise the table's capacity or lower the concurrency".into()
        }
        _ => service.message().unwrap_or("no further word").to_owned(),
    };
    let request_id = error.request_id().unwrap_or("none");
    format!("{code}: {advice} (request id {request_id})")
}

/// An error and its causes, in one line.
fn causes(error: &(dyn std::error::Error + 'static)) -> String {
    std::iter::successors(Some(error), |error| error.source())
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join(": ")
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
    use crate::protocol::{Namespace, Owner};

    #[tokio::test]
    async fn an_item_over_400_kb_is_refused_before_it_is_sent() {
        // A client that has nowhere to send to: the error can only be ours.
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

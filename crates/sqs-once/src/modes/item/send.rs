//! Sends changes and reads, and interprets the responses.

use aws_sdk_dynamodb::{
    Client,
    error::{ProvideErrorMetadata, SdkError},
    operation::{put_item::PutItemError, update_item::UpdateItemError},
    types::{Put, Update},
};

use crate::{
    deadline::Deadline,
    dynamo::{
        empty_response::reject_empty_responses,
        explain::{explain, unavailable},
        item::Item,
        store::{Request, Slots},
        without_retries,
        write::{put_item, update_item},
    },
    meter::Meter,
    modes::{
        Operation, Outcome,
        repeat::{Answered, GivenUp, Patience, repeat},
    },
    protocol::{Key, RequestErrorKind},
    store::{RequestContext, StoreError},
    system::timeout_at,
};

/// The result of sending a change, after retries.
pub(super) enum SentChange {
    Applied,
    /// The condition check failed. `item` is the item that it found, or `None` if there was none.
    ConditionFailed {
        item: Option<Item>,
        /// The error of an earlier try that got no response. DynamoDB may still apply that request.
        unanswered: Option<StoreError>,
    },
    /// The change is invalid. A retry would fail again.
    Invalid(String),
    /// Contention lasted until the deadline. The change was not applied.
    Contended(String),
    /// The change may have been applied.
    Unknown(StoreError),
    /// The change was rejected and not applied.
    Unwritten(StoreError),
}

/// DynamoDB's response to one request of a change.
enum WriteResponse {
    Applied,
    ConditionFailed(Option<Item>),
    Invalid(String),
}

/// The clients of the mode, which its operations share.
#[derive(Clone, Debug)]
pub(super) struct ItemClient {
    /// For reads, which the SDK retries.
    reading: Client,
    /// For changes, without the SDK's retries. The mode retries changes until the deadline.
    changing: Client,
    /// Limits the changes in flight.
    slots: Slots,
}

impl ItemClient {
    pub(super) fn new(client: Client) -> Self {
        let reading = reject_empty_responses(client);
        Self {
            changing: without_retries(&reading),
            reading,
            slots: Slots::default(),
        }
    }

    pub(super) const fn requests<'a>(&'a self, operation: &'a Operation) -> ItemRequests<'a> {
        ItemRequests {
            client: self,
            key: &operation.key,
            deadline: operation.deadline,
            meter: &operation.meter,
        }
    }
}

/// Sends the requests of one operation.
pub(super) struct ItemRequests<'a> {
    client: &'a ItemClient,
    pub(super) key: &'a Key,
    pub(super) deadline: Deadline,
    meter: &'a Meter,
}

impl ItemRequests<'_> {
    pub(super) async fn put(&self, put: &Put) -> SentChange {
        let table = &put.table_name;
        let request = || put_item(&self.client.changing, put.clone()).send();
        self.send(table, "dynamodb:PutItem", request).await
    }

    pub(super) async fn update_item(&self, update: &Update) -> SentChange {
        let table = &update.table_name;
        let request = || update_item(&self.client.changing, update.clone()).send();
        self.send(table, "dynamodb:UpdateItem", request).await
    }

    /// Sends a change, and retries it if a retry can help and time is left. An applied change stores its key on
    /// the item, so a copy is harmless.
    async fn send<T, E, F>(&self, table: &str, needs: &str, request: impl Fn() -> F) -> SentChange
    where
        F: Future<Output = Result<T, SdkError<E>>>,
        E: ConditionError + ProvideErrorMetadata + std::error::Error + Send + Sync + 'static,
    {
        let send = async || {
            let _slot = self.client.slots.take(Request::Other).await;
            match request().await {
                Ok(_) => Ok(WriteResponse::Applied),
                Err(error) => self.answer(table, needs, error),
            }
        };
        let context = RequestContext::until(self.deadline.write_until(), self.meter);
        match repeat(Patience::Commit, &context, "change", self.key, send).await {
            Ok(Answered {
                answer, unanswered, ..
            }) => match (answer, unanswered) {
                (WriteResponse::Applied, _) => SentChange::Applied,
                (WriteResponse::ConditionFailed(item), unanswered) => {
                    SentChange::ConditionFailed { item, unanswered }
                }
                // Whether a change is valid depends on the item, so the copy that got no response may still be applied.
                (WriteResponse::Invalid(_), Some(unanswered)) => SentChange::Unknown(unanswered),
                (WriteResponse::Invalid(why), None) => SentChange::Invalid(why),
            },
            Err(GivenUp {
                error,
                may_have_been_applied: true,
            }) => SentChange::Unknown(error),
            Err(GivenUp { error, .. }) => match error {
                StoreError::Unavailable {
                    kind: RequestErrorKind::Contended,
                    reason,
                    ..
                } => SentChange::Contended(reason),
                error => SentChange::Unwritten(error),
            },
        }
    }

    fn answer<E>(
        &self,
        table: &str,
        needs: &str,
        error: SdkError<E>,
    ) -> Result<WriteResponse, StoreError>
    where
        E: ConditionError + ProvideErrorMetadata + std::error::Error + Send + Sync + 'static,
    {
        let why = explain(&error, needs);
        let service = error.as_service_error();
        if let Some(item) = service.and_then(ConditionError::item) {
            return Ok(WriteResponse::ConditionFailed(item.cloned()));
        }
        match service.and_then(ProvideErrorMetadata::code) {
            // "Item size has exceeded ...", "Item size to update has exceeded ...".
            Some("ValidationException") if why.contains("Item size") => {
                Ok(WriteResponse::Invalid(too_large(table)))
            }
            Some("ValidationException" | "ItemCollectionSizeLimitExceededException") => {
                Ok(WriteResponse::Invalid(why))
            }
            _ => Err(unavailable("change", self.key, table, why, error)),
        }
    }

    /// Reads the item with strong consistency.
    pub(super) async fn read(&self, table: &str, key: &Item) -> Result<Option<Item>, Outcome> {
        let get = (self.client.reading)
            .get_item()
            .table_name(table)
            .set_key(Some(key.clone()))
            .consistent_read(true);
        let error = match (self.meter)
            .timed(timeout_at(self.deadline.handler_cutoff(), get.send()))
            .await
        {
            Ok(Ok(found)) => return Ok(found.item),
            Ok(Err(error)) => {
                let why = explain(&error, "dynamodb:GetItem");
                unavailable("read the item for", self.key, table, why, error)
            }
            Err(_elapsed) => StoreError::OutOfTime {
                action: "read the item for",
                key: self.key.to_string(),
            },
        };
        Err(Outcome::StoreUnavailable(error.into()))
    }
}

/// An error of a conditional write.
trait ConditionError {
    /// Returns the item whose condition check failed: `Some(None)` if no item exists, and `None` for any
    /// other error.
    fn item(&self) -> Option<Option<&Item>>;
}

impl ConditionError for PutItemError {
    fn item(&self) -> Option<Option<&Item>> {
        match self {
            Self::ConditionalCheckFailedException(failed) => Some(failed.item()),
            _ => None,
        }
    }
}

impl ConditionError for UpdateItemError {
    fn item(&self) -> Option<Option<&Item>> {
        match self {
            Self::ConditionalCheckFailedException(failed) => Some(failed.item()),
            _ => None,
        }
    }
}

fn too_large(table: &str) -> String {
    format!(
        "the item of table `{table}` would exceed DynamoDB's limit of 400 KB, its processed keys included \
         (`processed_events`). If they are large, shorten the retention; otherwise split the item"
    )
}

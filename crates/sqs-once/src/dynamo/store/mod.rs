//! [`DynamoStore`]: records in a DynamoDB table.

pub(crate) mod admin;
mod batched;
mod errors;
mod layout;
mod slots;
pub(crate) mod swap;
mod transaction;

use std::time::Duration;

use aws_sdk_dynamodb::Client;

pub use batched::Batched;
pub use layout::Layout;
pub(crate) use slots::{Request, Slot, Slots};

use crate::{
    dynamo::{empty_response::reject_empty_responses, without_retries},
    system,
};

/// Records in a DynamoDB table.
///
/// # Table
///
/// The table has the partition key `id` (a string), no sort key, and the TTL attribute `expires_at`.
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
/// The other attributes are those of the [`Record`](crate::protocol::Record): see `docs/protocol.md`.
///
/// With [`layout`](Self::layout), you can give the key and the TTL attribute other names, and set a sort key.
///
/// # Requests
///
/// The first write of a record is a `PutItem`, which fails if the record already exists. Every later write is an `UpdateItem`
/// of the attributes that differ, which fails unless owner and version are as expected. After a failed condition, DynamoDB
/// returns the record (`ReturnValuesOnConditionCheckFailure`).
///
/// # Limits
///
/// | limit | value |
/// | --- | --- |
/// | partition key | 2048 bytes; [`Key`](crate::protocol::Key) hashes longer keys |
/// | item | 400 KB, checked before a request is sent |
///
/// # Permissions
///
/// | use | actions |
/// | --- | --- |
/// | every consumer | `dynamodb:GetItem`, `PutItem`, `UpdateItem` |
/// | [`Batched`] | `dynamodb:PartiQLInsert`, `PartiQLUpdate` |
///
/// Writes that commit with a record need `PutItem`, `UpdateItem`, `DeleteItem` or `ConditionCheckItem` on
/// their own tables. IAM has no separate permission for transactions.
///
/// # Guarantee
///
/// DynamoDB serializes the writes to one item. If two workers claim a key, one of them fails, however much their clocks differ.
/// Clocks only decide when a lease expires.
///
/// The guarantee holds within one Region. A global table with eventual consistency checks conditions in each
/// Region separately. Let the consumers of **one Region** write to a table, and move all consumers at once. A
/// global table with strong consistency has no transactions and no TTL.
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
    /// Client for writes, without the SDK's retries. So the store sees each response, and throttled claims cannot use up the
    /// retry quota of settlements.
    pub(crate) writing: Client,
    pub(crate) table: String,
    pub(crate) layout: Layout,
    pub(crate) slots: Slots,
    /// The table for published events.
    pub(crate) outbox: Option<String>,
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
            slots: Slots::default(),
            outbox: None,
        }
    }

    /// Sets the key schema and the TTL attribute of the table.
    ///
    /// ```no_run
    /// # fn store(client: aws_sdk_dynamodb::Client) -> Result<(), sqs_once::InvalidValue> {
    /// use sqs_once::store::{DynamoStore, Layout};
    ///
    /// let layout = Layout::native().rename([("id", "PK")])?;
    /// let store = DynamoStore::new(client, "idempotency").layout(layout);
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn layout(self, layout: Layout) -> Self {
        Self { layout, ..self }
    }

    /// Sets the table for the events that handlers publish (`Done::publish`). The table has the partition key `group`, the
    /// sort key `sequence` and the TTL attribute `expires_at`; see `docs/outbox.md`. With `None`, the default, a handler
    /// that publishes events can't commit its writes.
    ///
    /// ```no_run
    /// # fn store(client: aws_sdk_dynamodb::Client) {
    /// use sqs_once::store::DynamoStore;
    ///
    /// let store = DynamoStore::new(client, "idempotency").outbox("orders-outbox".to_owned());
    /// # }
    /// ```
    #[must_use]
    pub fn outbox(self, table: impl Into<Option<String>>) -> Self {
        Self {
            outbox: table.into(),
            ..self
        }
    }

    /// Opens the connection and checks read access to the table.
    ///
    /// Sends one eventually consistent `GetItem` for a record that never exists, and waits at most `timeout`.
    ///
    /// Call this method in Lambda's init phase. The first message then needs no TLS handshake, and you see a
    /// wrong table name or a missing permission before the first message.
    ///
    /// # Errors
    ///
    /// Fails if the table could not be read. Log the error, and start the consumer anyway.
    ///
    /// ```no_run
    /// # async fn run(store: sqs_once::store::DynamoStore) {
    /// if let Err(error) = store.warm_up(std::time::Duration::from_secs(2)).await {
    ///     tracing::warn!(%error, "starting without a warm connection");
    /// }
    /// # }
    /// ```
    pub async fn warm_up(&self, timeout: Duration) -> Result<(), WarmUpError> {
        let read = self
            .client
            .get_item()
            .table_name(&self.table)
            // Escaped keys never contain `\p`, so no operation has this id.
            .set_key(Some(self.layout.primary_key("\\prime")))
            .projection_expression("#id")
            .expression_attribute_names("#id", self.layout.named("id"))
            .send();
        let reason = match system::timeout(timeout, read).await {
            Ok(Ok(_)) => return Ok(()),
            Ok(Err(error)) => self.explain(&error, "dynamodb:GetItem"),
            Err(_) => format!("no answer within {timeout:?}"),
        };
        Err(WarmUpError {
            table: self.table.clone(),
            reason,
        })
    }
}

/// Why [`DynamoStore::warm_up`] could not read the table.
#[derive(Clone, Debug, thiserror::Error)]
#[error("DynamoDB table `{table}` did not respond to the warm-up read: {reason}")]
pub struct WarmUpError {
    table: String,
    reason: String,
}

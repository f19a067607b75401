//! Consumers in the DynamoDB modes.

use std::time::Duration;

use aws_config::SdkConfig;
use aws_sdk_dynamodb::Client;
use futures_util::future::join;

use super::{Settings, SettingsError, any_store::AnyStore};
use crate::{
    dynamo::store::{Batched, DynamoStore},
    handler::Handler,
    modes::{Inbox, Mode, Once, item::ItemMode},
    settings::variables::table::{CONSUMER_VISIBILITY, IDEMPOTENCY_NAMESPACE},
    sqs::Consumer,
    store::{MemoryStore, Store},
};

/// Time limit of the read at start. Lambda's init phase ends after 10 seconds.
const WARM_UP_TIMEOUT: Duration = Duration::from_secs(2);

impl Settings {
    /// Creates a consumer in [`Once`] mode. `handler` is the handler, or an error in its variables. Reads the table once,
    /// and logs if that [read](Self::warm_up) fails. Records are in the table, or [in memory](Self::in_memory).
    ///
    /// # Errors
    ///
    /// Returns every error in the variables of the handler and the consumer.
    pub async fn once<H: Handler>(
        mut self,
        handler: Result<H, SettingsError>,
    ) -> Result<Consumer<Once<AnyStore>, H>, SettingsError>
    where
        Once<AnyStore>: Mode<H::Output>,
    {
        let table = if self.in_memory() {
            // Messages from an event file aren't in a queue.
            self.set_default(CONSUMER_VISIBILITY.name, "off");
            // The records are lost when the process ends, and no other consumer sees them.
            self.set_default(IDEMPOTENCY_NAMESPACE.name, "local");
            Ok(None)
        } else {
            self.records_table().map(Some)
        };
        let (handler, shared) = self.read(handler)?;
        let table = table?;
        let config = if table.is_some() || shared.calls_aws() {
            self.config().await
        } else {
            // Without this, the SDK would look for a Region, which takes seconds on a machine outside AWS.
            SdkConfig::builder().build()
        };
        let (store, to_read) = match table {
            Some(table) => {
                let batched_writes = table.batched_writes;
                let store = table.store(&config);
                let to_read = self.warm_up.then(|| store.clone());
                let store = if batched_writes {
                    AnyStore::Batched(Batched::new(store))
                } else {
                    AnyStore::DynamoDb(store)
                };
                (store, to_read)
            }
            None => {
                tracing::warn!(
                    "IDEMPOTENCY_TABLE_NAME is not set: records are in memory, and no record survives a restart"
                );
                (AnyStore::Memory(MemoryStore::default()), None)
            }
        };
        let concurrency = shared.concurrency_of_claims();
        let once = shared.once(store, &config);
        if shared.values.concurrency.is_none() {
            tracing::info!(
                handlers = concurrency.small_messages(),
                "CONSUMER_CONCURRENCY is `auto`: at most this many handlers of one batch run at a time, or fewer with long bodies"
            );
        }
        let build = || shared.consumer(once, handler, concurrency, &config);
        Ok(while_reading(to_read, build).await)
    }

    /// Creates a consumer in [`Once`] mode with records in your own [`Store`] or in PostgreSQL. Otherwise it is like
    /// [`once`](Self::once), but it reads neither `IDEMPOTENCY_TABLE_NAME` nor the other variables of the table.
    ///
    /// # Errors
    ///
    /// Returns every error in the variables of the handler and the consumer.
    ///
    /// ```no_run
    /// use sqs_once::{Handler, Settings, store::MemoryStore};
    ///
    /// # async fn main_<H: Handler<Output = String>>(handler: H) -> Result<(), lambda_runtime::Error> {
    /// let consumer = Settings::from_env().once_in(MemoryStore::default(), Ok(handler)).await?;
    /// # sqs_once::run(consumer).await }
    /// ```
    pub async fn once_in<S: Store, H: Handler>(
        mut self,
        store: S,
        handler: Result<H, SettingsError>,
    ) -> Result<Consumer<Once<S>, H>, SettingsError>
    where
        Once<S>: Mode<H::Output>,
    {
        let (handler, shared) = self.read(handler)?;
        let config = self.config().await;
        let concurrency = shared.concurrency_of_claims();
        let once = shared.once(store, &config);
        Ok(shared.consumer(once, handler, concurrency, &config))
    }

    /// Creates a consumer in [`Inbox`] mode. Otherwise it is like [`once`](Self::once).
    ///
    /// # Errors
    ///
    /// Returns every error in the variables of the handler and the consumer.
    ///
    /// ```no_run
    /// use sqs_once::{Done, Handler, Settings};
    ///
    /// # async fn main_<H: Handler<Output = Done<String>>>(handler: H) -> Result<(), lambda_runtime::Error> {
    /// let consumer = Settings::from_env().inbox(Ok(handler)).await?;
    /// # sqs_once::run(consumer).await }
    /// ```
    pub async fn inbox<H: Handler>(
        mut self,
        handler: Result<H, SettingsError>,
    ) -> Result<Consumer<Inbox<DynamoStore>, H>, SettingsError>
    where
        Inbox<DynamoStore>: Mode<H::Output>,
    {
        let table = self.records_table();
        let (handler, shared) = self.read(handler)?;
        let table = table?;
        let config = self.config().await;
        let store = table.store(&config);
        let to_read = self.warm_up.then(|| store.clone());
        let inbox = shared.once(store, &config).inbox();
        let concurrency = shared.concurrency();
        let build = || shared.consumer(inbox, handler, concurrency, &config);
        Ok(while_reading(to_read, build).await)
    }

    /// Creates a consumer in [`ItemMode`]. Otherwise it is like [`once`](Self::once), but needs no table of records.
    ///
    /// # Errors
    ///
    /// Returns every error in the variables of the handler and the consumer.
    ///
    /// ```no_run
    /// use sqs_once::{Change, Handler, Settings};
    ///
    /// # async fn main_<H: Handler<Output = Change<()>>>(handler: H) -> Result<(), lambda_runtime::Error> {
    /// let consumer = Settings::from_env().item_mode(Ok(handler)).await?;
    /// # sqs_once::run(consumer).await }
    /// ```
    pub async fn item_mode<H: Handler>(
        mut self,
        handler: Result<H, SettingsError>,
    ) -> Result<Consumer<ItemMode, H>, SettingsError>
    where
        ItemMode: Mode<H::Output>,
    {
        let (handler, shared) = self.read(handler)?;
        let config = self.config().await;
        let item_mode = ItemMode::new(Client::new(&config)).retention(shared.values.retention);
        let concurrency = shared.concurrency();
        Ok(shared.consumer(item_mode, handler, concurrency, &config))
    }
}

/// Reads the table of `store` once, and calls `build` meanwhile. Logs if the read fails.
pub(super) async fn while_reading<T>(store: Option<DynamoStore>, build: impl FnOnce() -> T) -> T {
    let Some(store) = store else {
        return build();
    };
    // The first poll of `warm_up` starts the connection, and `build` runs during its round trips.
    let (read, built) = join(store.warm_up(WARM_UP_TIMEOUT), async { build() }).await;
    if let Err(error) = read {
        tracing::warn!(%error, "could not read the table at start: messages fail until DynamoDB responds");
    }
    built
}

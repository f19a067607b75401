//! Settings of the records and their table.

use aws_config::SdkConfig;
use aws_sdk_dynamodb::Client;

use super::{
    Settings, SettingsError,
    batches::Batches,
    parse::{bucket, of_s3, rename},
};
use crate::{
    dynamo::store::{DynamoStore, Layout},
    modes::Once,
    protocol::AfterFailure,
    settings::variables::{
        parse::on_or_off,
        table::{
            IDEMPOTENCY_AFTER_FAILURE, IDEMPOTENCY_ATTRIBUTES, IDEMPOTENCY_BATCHED_WRITES,
            IDEMPOTENCY_NAMESPACE, IDEMPOTENCY_RESULT_BUCKET, IDEMPOTENCY_SORT_KEY,
            IDEMPOTENCY_TABLE_NAME, OUTBOX_TABLE_NAME,
        },
    },
    store::{Results, Store},
};

impl Settings {
    pub(super) fn table(&mut self) -> Result<Table, SettingsError> {
        let name = self.required(
            IDEMPOTENCY_TABLE_NAME.name,
            "DynamoDB table of the records; on your own machine, `make watch` sets it",
            str::parse,
        );
        let layout = self.layout();
        let grouping = self.setting(&IDEMPOTENCY_BATCHED_WRITES, on_or_off);
        Ok(Table {
            name: name?,
            layout: layout?,
            grouping: grouping?,
        })
    }

    pub(super) fn records(&mut self) -> Result<Records, SettingsError> {
        let after_failure = self.after_failure();
        let outbox = self.value(OUTBOX_TABLE_NAME.name);
        let results = self.results();
        Ok(Records {
            outbox,
            after_failure: after_failure?,
            results: results?,
        })
    }

    pub(super) fn after_failure(&mut self) -> Result<AfterFailure, SettingsError> {
        self.setting(&IDEMPOTENCY_AFTER_FAILURE, |text| match text {
            "retry" => Ok(AfterFailure::Retry),
            "replay" => Ok(AfterFailure::Replay),
            _ => Err("must be `retry` or `replay`"),
        })
    }

    /// Reads the bucket for large outputs. `None`: every output is in its record.
    pub(super) fn results(&mut self) -> Result<ResultPlace, SettingsError> {
        let some = of_s3(|name| bucket(name).map(Some));
        self.changed(IDEMPOTENCY_RESULT_BUCKET.name, None, some)
            .map(|bucket| ResultPlace { bucket })
    }

    /// Creates the store that [`once`](Self::once) uses, for programs that read its table.
    ///
    /// # Errors
    ///
    /// Every error in the table's variables.
    pub fn store(&mut self, config: &SdkConfig) -> Result<DynamoStore, SettingsError> {
        let table = self.table();
        let table = self.check(table)?;
        Ok(DynamoStore::new(Client::new(config), table.name).layout(table.layout))
    }

    fn layout(&mut self) -> Result<Layout, SettingsError> {
        let renamed = self.changed(IDEMPOTENCY_ATTRIBUTES.name, Layout::native(), rename);
        // After an error we go on with the native names, so that the next variable is read too.
        let layout = renamed.clone().unwrap_or_default();
        // `batches` reports a missing namespace.
        let namespace = self.value(IDEMPOTENCY_NAMESPACE.name).unwrap_or_default();
        let sorted = self.changed(IDEMPOTENCY_SORT_KEY.name, layout, |layout, text| {
            let partition = format!("idempotency#{namespace}");
            let (name, partition) = text.split_once('=').unwrap_or((text, &partition));
            let layout = layout.sort_key(name, partition);
            layout.map_err(|error| error.to_string())
        });
        renamed.and(sorted)
    }
}

/// Settings of the table of records.
#[derive(Debug)]
pub(super) struct Table {
    pub(super) name: String,
    pub(super) layout: Layout,
    pub(super) grouping: bool,
}

impl Table {
    pub(super) fn store(self, config: &SdkConfig) -> DynamoStore {
        DynamoStore::new(Client::new(config), self.name).layout(self.layout)
    }
}

/// Settings of the records, in a table or in memory.
#[derive(Debug)]
pub(super) struct Records {
    pub(super) outbox: Option<String>,
    pub(super) after_failure: AfterFailure,
    pub(super) results: ResultPlace,
}

/// Where outputs are stored: in the record, and large ones in the bucket if there is one.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ResultPlace {
    pub(super) bucket: Option<String>,
}

impl ResultPlace {
    pub(super) const fn call_s3(&self) -> bool {
        self.bucket.is_some()
    }

    #[cfg_attr(
        not(feature = "s3"),
        expect(unused_variables, reason = "read by the feature")
    )]
    pub(super) fn results(self, config: &SdkConfig) -> Results {
        match self.bucket {
            #[cfg(feature = "s3")]
            Some(bucket) => Results::outside(crate::s3_results::S3Results::new(config, bucket)),
            _ => Results::inline(),
        }
    }
}

impl Records {
    pub(super) fn once<S: Store>(self, store: S, batches: &Batches, config: &SdkConfig) -> Once<S> {
        let once = Once::new(store)
            .retention(batches.retention)
            .after_failure(self.after_failure)
            .outbox(self.outbox)
            .results(self.results.results(config))
            .crash_waits(batches.crash_waits());
        match batches.memory_of_messages() {
            Some(memory) => once.output_memory(memory / 2),
            None => once,
        }
    }
}

//! Settings of the records and their table.

use std::time::Duration;

use aws_config::SdkConfig;
use aws_sdk_dynamodb::Client;
use sqs_once_core::settings::parse::{duration, on_or_off};

use super::{
    Settings, SettingsError,
    batches::Batches,
    parse::{bucket, inline_limit, rename},
};
use crate::{
    dynamodb::store::{DynamoStore, Layout},
    once::Once,
    protocol::AfterFailure,
    store::{Results, Store},
};

impl Settings {
    pub(super) fn table(&mut self) -> Result<Table, SettingsError> {
        let name = self.required(
            "IDEMPOTENCY_TABLE_NAME",
            "DynamoDB table of the records; on your own machine, `make watch` sets it",
            str::parse,
        );
        let layout = self.layout();
        let grouping = self.optional("IDEMPOTENCY_GROUPING", "off", on_or_off);
        let prime = self.optional("CONSUMER_PRIME", "on", on_or_off);
        let write_units = self.optional("CONSUMER_METRICS_WRITE_UNITS", "off", on_or_off);
        Ok(Table {
            name: name?,
            layout: layout?,
            grouping: grouping?,
            prime: prime?,
            write_units: write_units?,
        })
    }

    pub(super) fn records(&mut self) -> Result<Records, SettingsError> {
        let after_failure = self.after_failure();
        let lease_margin = self.optional("IDEMPOTENCY_LEASE_MARGIN", "1s", duration);
        let outbox = self.value("OUTBOX_TABLE_NAME");
        let results = self.results();
        Ok(Records {
            outbox,
            after_failure: after_failure?,
            lease_margin: lease_margin?,
            results: results?,
        })
    }

    pub(super) fn after_failure(&mut self) -> Result<AfterFailure, SettingsError> {
        self.optional("IDEMPOTENCY_AFTER_FAILURE", "retry", |text| match text {
            "retry" => Ok(AfterFailure::Retry),
            "replay" => Ok(AfterFailure::Replay),
            _ => Err("must be `retry` or `replay`"),
        })
    }

    pub(super) fn results(&mut self) -> Result<ResultPlace, SettingsError> {
        // `None`: in S3, at the place that the other two variables give.
        let place = |text: &str| match text {
            "none" => Ok(Some(ResultPlace::Nowhere)),
            "inline" => Ok(Some(ResultPlace::InRecord)),
            "s3" if cfg!(feature = "s3") => Ok(None),
            "s3" => Err("`s3` needs the feature `s3` of the crate sqs-once"),
            _ => Err("must be `none`, `inline` or `s3`"),
        };
        let place = self.optional("IDEMPOTENCY_RESULTS", "inline", place);
        let limit = self.optional("IDEMPOTENCY_RESULT_INLINE_LIMIT", "65536", inline_limit);
        let name = "IDEMPOTENCY_RESULT_BUCKET";
        let bucket = if place == Ok(None) {
            self.required(name, "S3 bucket of large outputs", bucket)
        } else {
            self.changed(name, String::new(), |_, text| bucket(text))
        };
        let (bucket, inline_limit) = (bucket?, limit?);
        Ok(place?.unwrap_or(ResultPlace::InS3 {
            bucket,
            inline_limit,
        }))
    }

    /// The table of records that [`once`](Self::once) uses, for programs that read it.
    ///
    /// # Errors
    ///
    /// Every error of the table's variables.
    pub fn store(&mut self, config: &SdkConfig) -> Result<DynamoStore, SettingsError> {
        let table = self.table();
        let table = self.check(table)?;
        Ok(DynamoStore::new(Client::new(config), table.name).layout(table.layout))
    }

    fn layout(&mut self) -> Result<Layout, SettingsError> {
        // After an error the native layout stands in, so that the next variables are read too.
        let preset = self.optional("IDEMPOTENCY_LAYOUT", "native", |text| match text {
            "native" => Ok(Layout::native()),
            "powertools" => Ok(Layout::powertools()),
            _ => Err("must be `native` or `powertools`"),
        });
        let layout = preset.clone().unwrap_or_default();
        let renamed = self.changed("IDEMPOTENCY_ATTRIBUTES", layout, rename);
        let layout = renamed.clone().unwrap_or_default();
        let function = self.function();
        let sorted = self.changed("IDEMPOTENCY_SORT_KEY", layout, |layout, text| {
            let partition = format!("idempotency#{function}");
            let (name, partition) = text.split_once('=').unwrap_or((text, &partition));
            let layout = layout.sort_key(name, partition);
            layout.map_err(|error| error.to_string())
        });
        preset.and(renamed).and(sorted)
    }
}

/// Settings of the table of records.
#[derive(Debug)]
pub(super) struct Table {
    pub(super) name: String,
    pub(super) layout: Layout,
    pub(super) grouping: bool,
    pub(super) prime: bool,
    pub(super) write_units: bool,
}

impl Table {
    /// The store, and the same again if the table is to be read at start.
    pub(super) fn store(self, config: &SdkConfig) -> (DynamoStore, Option<DynamoStore>) {
        let store = DynamoStore::new(Client::new(config), self.name)
            .layout(self.layout)
            .write_units(self.write_units);
        let to_read = self.prime.then(|| store.clone());
        (store, to_read)
    }
}

/// Settings of the records, in a table or in memory.
#[derive(Debug)]
pub(super) struct Records {
    pub(super) outbox: Option<String>,
    pub(super) after_failure: AfterFailure,
    pub(super) lease_margin: Duration,
    pub(super) results: ResultPlace,
}

/// The place of outputs.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ResultPlace {
    Nowhere,
    InRecord,
    /// Without the feature `s3`, no setting selects it.
    InS3 {
        bucket: String,
        inline_limit: usize,
    },
}

impl ResultPlace {
    pub(super) const fn call_s3(&self) -> bool {
        matches!(self, Self::InS3 { .. })
    }

    #[cfg_attr(
        not(feature = "s3"),
        expect(unused_variables, reason = "read by the feature")
    )]
    pub(super) fn results(self, config: &SdkConfig) -> Results {
        match self {
            Self::Nowhere => Results::none(),
            #[cfg(feature = "s3")]
            Self::InS3 {
                bucket,
                inline_limit,
            } => Results::outside(crate::s3_results::S3Results::new(config, bucket))
                .inline_limit(inline_limit),
            _ => Results::inline(),
        }
    }
}

impl Records {
    pub(super) fn once<S: Store>(self, store: S, batches: &Batches, config: &SdkConfig) -> Once<S> {
        let once = Once::new(store)
            .after_failure(self.after_failure)
            .lease_margin(self.lease_margin)
            .outbox(self.outbox)
            .results(self.results.results(config))
            .crash_waits(batches.crash_waits.clone())
            .heartbeat(batches.heartbeat);
        match batches.retention {
            Some(retention) => once.retention(retention),
            None => once,
        }
    }
}

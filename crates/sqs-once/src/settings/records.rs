//! Settings of the table of records.

use aws_config::SdkConfig;
use aws_sdk_dynamodb::Client;

use super::{Settings, SettingsError, parse::on_or_off};
use crate::{
    dynamo::store::{DynamoStore, Layout},
    entries::entries,
    settings::variables::table::{
        IDEMPOTENCY_ATTRIBUTES, IDEMPOTENCY_BATCHED_WRITES, IDEMPOTENCY_NAMESPACE,
        IDEMPOTENCY_SORT_KEY, IDEMPOTENCY_TABLE_NAME,
    },
};

impl Settings {
    pub(super) fn records_table(&mut self) -> Result<TableSettings, SettingsError> {
        let name = self.required(
            IDEMPOTENCY_TABLE_NAME.name,
            "DynamoDB table of the records; on your own machine, `make dev` sets it",
            str::parse,
        );
        let layout = self.layout();
        let batched_writes = self.setting(&IDEMPOTENCY_BATCHED_WRITES, on_or_off);
        Ok(TableSettings {
            name: name?,
            layout: layout?,
            batched_writes: batched_writes?,
        })
    }

    /// Creates the store that [`once`](Self::once) uses, for other programs that read its table.
    ///
    /// # Errors
    ///
    /// Returns every error in the table's variables.
    pub fn store(&mut self, config: &SdkConfig) -> Result<DynamoStore, SettingsError> {
        let table = self.records_table();
        let table = self.check(table)?;
        Ok(table.store(config))
    }

    fn layout(&mut self) -> Result<Layout, SettingsError> {
        let renamed = self.changed(IDEMPOTENCY_ATTRIBUTES.name, Layout::native(), rename);
        // After an error we continue with the native names, so that we also read the next variable.
        let layout = renamed.clone().unwrap_or_default();
        // `shared` reports a missing namespace.
        let namespace = self.value(IDEMPOTENCY_NAMESPACE.name).unwrap_or_default();
        let sorted = self.changed(IDEMPOTENCY_SORT_KEY.name, layout, |layout, text| {
            let partition = format!("idempotency#{namespace}");
            let (name, partition) = text.split_once('=').unwrap_or((text, &partition));
            let layout = layout.sort_key(name.trim(), partition.trim());
            layout.map_err(|error| error.to_string())
        });
        renamed.and(sorted)
    }
}

/// Renames the key and the TTL attribute. The text pairs native names with new ones, as in `id=PK,expires_at=ttl`.
fn rename(layout: Layout, text: &str) -> Result<Layout, String> {
    let pair = |pair: &str| {
        let (field, name) = pair
            .split_once('=')
            .ok_or_else(|| format!("`{pair}` is not of the form id=PK"))?;
        Ok((field.trim().to_owned(), name.trim().to_owned()))
    };
    let names = entries(text, "").into_iter().map(pair);
    let names = names.collect::<Result<Vec<_>, String>>()?;
    layout.rename(names).map_err(|error| error.to_string())
}

#[derive(Debug)]
pub(super) struct TableSettings {
    pub(super) name: String,
    pub(super) layout: Layout,
    pub(super) batched_writes: bool,
}

impl TableSettings {
    pub(super) fn store(self, config: &SdkConfig) -> DynamoStore {
        DynamoStore::new(Client::new(config), self.name).layout(self.layout)
    }
}

//! The table of records that a command reads.

use aws_config::SdkConfig;
use clap::Args;
use sqs_once::{Settings, store::DynamoStore};

use crate::{aws, output::Error};

/// The table of records. The options' defaults are the consumer's variables.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Table of the records")]
pub(crate) struct TableArgs {
    /// DynamoDB table of the records.
    #[arg(long, env = "IDEMPOTENCY_TABLE_NAME", value_name = "NAME")]
    table: Option<String>,
    /// Other names of the key and of the TTL attribute, as in `id=PK,expires_at=ttl`.
    #[arg(long, env = "IDEMPOTENCY_ATTRIBUTES", value_name = "NAMES")]
    attributes: Option<String>,
    /// Sort key of the table, as in `SK=payments`.
    #[arg(long, env = "IDEMPOTENCY_SORT_KEY", value_name = "NAME=PARTITION")]
    sort_key: Option<String>,
}

impl TableArgs {
    /// Opens the table that the options name.
    pub(crate) async fn open(&self) -> Result<DynamoStore, Error> {
        if !self.is_named() {
            return Err(Error::usage(
                "no table is named: pass --table NAME, or set IDEMPOTENCY_TABLE_NAME as the consumer has it. For records in \
                 PostgreSQL use psql: docs/effects-in-postgresql.md, \"Records by hand\"",
            ));
        }
        self.dynamodb(&aws::config().await?)
    }

    /// Returns whether a table is named. An empty variable is treated as not set, as in the consumer.
    pub(crate) fn is_named(&self) -> bool {
        self.table.as_ref().is_some_and(|name| !name.is_empty())
    }

    fn dynamodb(&self, config: &SdkConfig) -> Result<DynamoStore, Error> {
        if self.sort_key.as_ref().is_some_and(|key| !key.contains('=')) {
            return Err(Error::usage(
                "--sort-key must name the partition too, as in SK=idempotency#payments",
            ));
        }
        let variables = [
            ("IDEMPOTENCY_TABLE_NAME", &self.table),
            ("IDEMPOTENCY_ATTRIBUTES", &self.attributes),
            ("IDEMPOTENCY_SORT_KEY", &self.sort_key),
        ];
        let given = variables
            .into_iter()
            .filter_map(|(name, value)| Some((name, value.as_deref()?)));
        Settings::from_vars(given)
            .store(config)
            .map_err(Error::usage)
    }
}

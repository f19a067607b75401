//! The idempotency table that a command reads.

use aws_config::SdkConfig;
use clap::Args;
use sqs_once::{Settings, protocol::AfterFailure, store::DynamoStore};

use crate::output::Error;

/// The table and the layout of its records. Each option has the variable of the consumer as its
/// default.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Table of the records")]
pub(crate) struct Table {
    /// DynamoDB table of the records.
    #[arg(long, env = "IDEMPOTENCY_TABLE_NAME", value_name = "NAME")]
    table: Option<String>,
    /// Format of the records: native or powertools.
    #[arg(long, env = "IDEMPOTENCY_LAYOUT", value_name = "LAYOUT")]
    layout: Option<String>,
    /// Other attribute names, as in `id=PK,expires_at=ttl`.
    #[arg(long, env = "IDEMPOTENCY_ATTRIBUTES", value_name = "NAMES")]
    attributes: Option<String>,
    /// Sort key of the table, as in `SK=payments`.
    #[arg(long, env = "IDEMPOTENCY_SORT_KEY", value_name = "NAME=PARTITION")]
    sort_key: Option<String>,
    /// Effect of a failed record on another message: retry or replay.
    #[arg(long, env = "IDEMPOTENCY_AFTER_FAILURE", value_name = "EFFECT")]
    after_failure: Option<String>,
}

impl Table {
    fn settings(&self) -> Settings {
        let variables = [
            ("IDEMPOTENCY_TABLE_NAME", &self.table),
            ("IDEMPOTENCY_LAYOUT", &self.layout),
            ("IDEMPOTENCY_ATTRIBUTES", &self.attributes),
            ("IDEMPOTENCY_SORT_KEY", &self.sort_key),
            ("IDEMPOTENCY_AFTER_FAILURE", &self.after_failure),
        ];
        let given = variables.into_iter();
        Settings::from_vars(given.filter_map(|(name, value)| Some((name, value.as_deref()?))))
    }

    /// The store of the records.
    ///
    /// # Errors
    ///
    /// If no table is named, or an option is invalid.
    pub(crate) fn store(&self, config: &SdkConfig) -> Result<DynamoStore, Error> {
        if self.table.is_none() {
            return Err(Error::usage(
                "no table is named: pass --table NAME, or set IDEMPOTENCY_TABLE_NAME as the consumer has it",
            ));
        }
        if self.sort_key.as_ref().is_some_and(|key| !key.contains('=')) {
            return Err(Error::usage(
                "--sort-key must name the partition too, as in SK=idempotency#payments-consumer",
            ));
        }
        self.settings().store(config).map_err(Error::usage)
    }

    /// Returns whether a table is named.
    pub(crate) fn is_named(&self) -> bool {
        self.table.is_some()
    }

    /// The effect of a `FAILED` record on another message.
    pub(crate) fn after_failure(&self) -> AfterFailure {
        match self.after_failure.as_deref() {
            Some("replay") => AfterFailure::Replay,
            _ => AfterFailure::Retry,
        }
    }
}

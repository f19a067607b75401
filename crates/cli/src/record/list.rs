//! `record list`: reads the table page by page, up to a limit, and adds up the cost.

use clap::{Args, ValueEnum};
use serde_json::json;
use sqs_once::{
    internal::{RecordFilter, RecordPage, RecordStatus, StoredRecord},
    protocol::Timestamp,
};

use super::view::{Part, View};
use crate::{
    output::{End, Error, Format, answer, columns, count},
    table::{Records, Table},
};

/// Items or rows of one page. DynamoDB also ends a page after 1 MB.
const PAGE: i32 = 1000;

/// How many read units of DynamoDB a list uses by default before it stops.
const MAX_UNITS: u32 = 1000;

/// How many rows of PostgreSQL a list reads before it stops.
const MAX_ROWS: usize = 100_000;

#[derive(Args, Debug)]
pub(crate) struct List {
    /// Records with this status.
    #[arg(long, value_enum)]
    status: Option<Status>,
    /// Records in progress whose lease has ended: their workers crashed or were cut off.
    #[arg(long)]
    expired_lease: bool,
    /// Records whose key begins with this text.
    #[arg(long, value_name = "TEXT")]
    prefix: Option<String>,
    /// Number of records to list.
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    limit: u32,
    /// Read units of DynamoDB after which the command stops, 1000 by default. A unit is 8 KB of the
    /// table. In PostgreSQL the command stops after 100,000 rows.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    max_units: Option<u32>,
    /// Continues after this key, which an earlier list named.
    #[arg(long, value_name = "KEY")]
    after: Option<String>,
    #[command(flatten)]
    table: Table,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Status {
    InProgress,
    Completed,
    Failed,
}

impl List {
    pub(super) async fn run(self, format: Format) -> Result<End, Error> {
        if self.expired_lease && !matches!(self.status, None | Some(Status::InProgress)) {
            return Err(Error::usage(
                "--expired-lease is for records in progress: omit --status, or pass --status in-progress",
            ));
        }
        let records = self.table.open().await?;
        if self.max_units.is_some() && !matches!(records, Records::DynamoDb(_)) {
            return Err(Error::usage(
                "--max-units is for DynamoDB: PostgreSQL has no read units",
            ));
        }
        let filter = RecordFilter {
            status: match self.status {
                None if self.expired_lease => Some(RecordStatus::InProgress),
                None => None,
                Some(Status::InProgress) => Some(RecordStatus::InProgress),
                Some(Status::Completed) => Some(RecordStatus::Completed),
                Some(Status::Failed) => Some(RecordStatus::Failed),
            },
            expired_lease: self.expired_lease,
            prefix: self.prefix.clone(),
        };
        let now = Timestamp::now();
        let limit = usize::try_from(self.limit).unwrap_or(usize::MAX);
        let (mut found, mut next) = (Vec::new(), self.after.clone());
        let mut cost = Cost::default();
        let max_units = self.max_units.unwrap_or(MAX_UNITS);
        loop {
            let page = records
                .list(&filter, next.as_deref(), PAGE, now)
                .await
                .map_err(Error::remote)?;
            cost.add(&page);
            found.extend(page.records);
            next = page.next;
            if next.is_none() || found.len() >= limit || cost.is_used_up(max_units) {
                break;
            }
        }
        // The rest of the last page is listed again, after the last record of this one.
        if found.len() > limit {
            found.truncate(limit);
            next = found.last().map(|last| last.key.clone());
        }
        self.print(format, &found, next.as_deref(), &cost)?;
        Ok(End::Done)
    }

    fn print(
        &self,
        format: Format,
        records: &[StoredRecord],
        next: Option<&str>,
        cost: &Cost,
    ) -> Result<(), Error> {
        let views = || records.iter().map(|stored| View::of(stored, &Part::Unread));
        let text = || {
            let header = ["KEY", "STATUS", "ATTEMPTS", "UPDATED", "MESSAGE", "ERROR"];
            let mut text = String::new();
            if !records.is_empty() {
                text = columns(header, views().map(|view| view.row())) + "\n\n";
            }
            let found = count(records.len(), "record");
            text.push_str(&match cost.units {
                Some(units) => format!(
                    "{found} found. Cost: {units} read units, for {}.",
                    count(cost.items, "item")
                ),
                None => format!("{found} found in {}.", count(cost.items, "row")),
            });
            if let Some(next) = next {
                text.push_str(&format!(
                    "\nThe table was not read to its end. Continue with --after '{next}'"
                ));
            }
            text
        };
        let json = || {
            let records: Vec<_> = views().map(|view| view.json()).collect();
            json!({"records": records, "items_read": cost.items, "read_units": cost.units, "next": next})
        };
        answer(format, text, json)
    }
}

/// How much a list has read.
#[derive(Default)]
struct Cost {
    /// Items in DynamoDB, or rows in PostgreSQL.
    items: usize,
    /// Read units in DynamoDB.
    units: Option<f64>,
}

impl Cost {
    fn add(&mut self, page: &RecordPage) {
        self.items += page.read;
        let units = page.units.map(|units| units + self.units.unwrap_or(0.0));
        self.units = units;
    }

    /// Returns whether the permitted reads are used up.
    fn is_used_up(&self, max_units: u32) -> bool {
        match self.units {
            Some(units) => units >= f64::from(max_units),
            None => self.items >= MAX_ROWS,
        }
    }
}

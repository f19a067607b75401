//! `record watch`: prints a record after each change until it ends.

use std::time::Duration;

use clap::Args;
use serde_json::json;
use sqs_once::protocol::{State, Timestamp};

use super::view::{Part, View};
use crate::{
    output::{End, Error, Format, answer, in_words},
    table::Table,
};

#[derive(Args, Debug)]
pub(crate) struct Watch {
    /// The key, as logs show it: payments#order-1.
    key: String,
    /// Time between reads. In DynamoDB, each read takes one read unit for every 4 KB of the record.
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = duration)]
    interval: Duration,
    /// Time after which the command ends with exit code 1.
    #[arg(long, value_name = "TIME", default_value = "15m", value_parser = duration)]
    timeout: Duration,
    #[command(flatten)]
    table: Table,
}

fn duration(text: &str) -> Result<Duration, String> {
    match humantime::parse_duration(text) {
        Ok(span) if !span.is_zero() => Ok(span),
        _ => Err("must be a duration such as 500ms, 2s or 15m".into()),
    }
}

impl Watch {
    pub(super) async fn run(self, format: Format) -> Result<End, Error> {
        let records = self.table.open().await?;
        let end = Timestamp::now() + self.timeout;
        let mut seen = None;
        loop {
            let stored = records.get(&self.key).await.map_err(Error::remote)?;
            let found = stored
                .as_ref()
                .map(|stored| (stored.record.clone(), stored.locked_by));
            if seen.as_ref() != Some(&found) {
                match &stored {
                    Some(stored) => {
                        View::of(stored, &self.table, &Part::Size).print_line(format)?
                    }
                    None => answer(
                        format,
                        || format!("{}  {}  no record", Timestamp::now(), self.key),
                        || json!({"key": self.key, "status": null}),
                    )?,
                }
            }
            let ended = match &found {
                // The open transaction decides the next state.
                Some((_, Some(_))) => false,
                Some((Ok(record), None)) => !matches!(record.state, State::InProgress { .. }),
                // A record that was never there may still appear.
                None => seen.as_ref().is_some_and(Option::is_some),
                Some((Err(_), None)) => true,
            };
            if ended {
                return Ok(End::Done);
            }
            if Timestamp::now() + self.interval > end {
                return Err(Error::negative(format!(
                    "the record did not end within {}",
                    in_words(self.timeout)
                )));
            }
            seen = Some(found);
            tokio::time::sleep(self.interval).await;
        }
    }
}

//! `sqs-once dlq redrive`: moves messages from a dead-letter queue by receive, send, delete.
//!
//! | a crash after | the same command, with the same journal |
//! | --- | --- |
//! | receive | sends and deletes the message |
//! | the journal's `send`, before `sent` | leaves the message, because it may have been sent |
//! | the journal's `sent` | deletes the message, without sending it again |
//!
//! A send that gets no response ends the run, because without a connection no later send would get one.

mod message;
mod report;
mod rounds;

use std::{collections::BTreeSet, path::PathBuf, time::Duration};

use aws_config::SdkConfig;
use aws_sdk_sqs::config::retry::RetryConfig;
use clap::{ArgGroup, Args};

use crate::{
    aws::{self, failed},
    dead_letters::{DeadLetter, Queue, name_in, visibility_timeout},
    journal::Journal,
    output::{End, Error, Format},
    table::{Records, Table},
};
use report::Report;

#[derive(Args, Debug)]
#[command(group = ArgGroup::new("selection").required(true).multiple(true))]
pub(crate) struct Redrive {
    /// URL, ARN or name of the dead-letter queue.
    queue: String,
    /// URL, ARN or name of the queue that gets the messages. The default is the one queue that has
    /// this dead-letter queue.
    #[arg(long, value_name = "QUEUE")]
    to: Option<String>,
    /// Moves messages with this reason, as `dlq list` shows it.
    #[arg(long, group = "selection")]
    reason: Vec<String>,
    /// Moves the message with this id.
    #[arg(long, group = "selection", value_name = "ID")]
    message: Vec<String>,
    /// Moves all messages.
    #[arg(long, group = "selection")]
    all: bool,
    /// File that remembers the messages sent. Continue an interrupted redrive with the same file.
    #[arg(long, value_name = "FILE", required_unless_present = "dry_run")]
    journal: Option<PathBuf>,
    /// Number of messages to receive.
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..))]
    max: u32,
    /// Time for which received messages are hidden. All is to be sent in this time.
    #[arg(long, value_name = "TIME", default_value = "10m", value_parser = visibility_timeout)]
    hide: Duration,
    /// Shows the messages that would be moved, and moves none.
    #[arg(long)]
    dry_run: bool,
    /// Does not ask.
    #[arg(long)]
    yes: bool,
    #[command(flatten)]
    table: Table,
}

/// One redrive between two queues.
struct Run<'a> {
    with: &'a Redrive,
    from: Queue,
    to: Queue,
    records: Option<Records>,
    /// Message groups that are moved.
    groups: BTreeSet<String>,
    /// Message groups from which a message stays behind.
    stopped: BTreeSet<String>,
    /// True if no further message is tried.
    ended: bool,
    /// Number of messages in the first round.
    received: usize,
    report: Report,
}

impl Redrive {
    pub(crate) async fn run(self, format: Format) -> Result<End, Error> {
        let config = aws::config().await?;
        let from = Queue::find(&config, &self.queue).await?;
        let to = self.destination(&config, &from).await?;
        if from.is_fifo() != to.is_fifo() {
            return Err(Error::usage(
                "both queues must be FIFO queues, or neither of them",
            ));
        }
        if from.is_same(&to) {
            return Err(Error::usage(
                "--to names the dead-letter queue itself: name another queue",
            ));
        }
        let records = if self.table.is_named() {
            Some(self.table.open().await?)
        } else {
            eprintln!(
                "sqs-once: pass --table NAME or --postgres URL to see which messages run again when moved\n"
            );
            None
        };
        let mut journal = self
            .journal
            .as_ref()
            .filter(|_| !self.dry_run)
            .map(|path| Journal::open(path, &from.url, &to.url))
            .transpose()?;
        let mut run = Run {
            with: &self,
            from,
            to,
            records,
            groups: BTreeSet::new(),
            stopped: BTreeSet::new(),
            ended: false,
            received: 0,
            report: Report::default(),
        };
        while run.round(journal.as_mut()).await? {}
        run.end(format)
    }

    /// The queue named by `--to`, or the one queue that has `from` as its dead-letter queue.
    async fn destination(&self, config: &SdkConfig, from: &Queue) -> Result<Queue, Error> {
        // If the SDK sent a request again, it could send a message twice, and it would only return the last
        // error.
        let builder = config.to_builder();
        let config = &builder.retry_config(RetryConfig::disabled()).build();
        if let Some(name) = &self.to {
            return Queue::find(config, name).await;
        }
        let sources = from
            .client
            .list_dead_letter_source_queues()
            .queue_url(&from.url)
            .send()
            .await
            .map_err(|error| {
                let permission = "sqs:ListDeadLetterSourceQueues";
                failed("find the source queue; pass --to QUEUE", permission, &error)
            })?;
        match &*sources.queue_urls {
            [url] => Queue::find(config, url).await,
            [] => Err(Error::usage(
                "no queue has this dead-letter queue: name the destination with --to QUEUE",
            )),
            urls => {
                let names: Vec<_> = urls.iter().map(|url| name_in(url)).collect();
                Err(Error::usage(format!(
                    "{} queues have this dead-letter queue ({}): name one of them with --to QUEUE",
                    names.len(),
                    names.join(", ")
                )))
            }
        }
    }

    fn selects(&self, dead_letter: &DeadLetter) -> bool {
        self.all
            || self.reason.contains(&dead_letter.cause().reason)
            || self.message.iter().any(|id| id == dead_letter.id())
    }
}

//! `sqs-once dlq redrive`: moves messages from a dead-letter queue by receive, send, delete.
//!
//! | a crash after | the same command, with the same journal |
//! | --- | --- |
//! | receive | sends and deletes the message |
//! | the journal's `send`, before `sent` | leaves the message: it may have been sent |
//! | the journal's `sent` | deletes the message, without sending it again |
//!
//! A send without an answer ends the run: without a connection, no later send would get one.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    time::Duration,
};

use aws_config::SdkConfig;
use aws_sdk_sqs::{
    config::retry::RetryConfig,
    error::SdkError,
    types::{
        MessageAttributeValue as Attribute, MessageSystemAttributeName as System,
        MessageSystemAttributeNameForSends as SystemForSends,
        MessageSystemAttributeValue as SystemAttribute,
    },
};
use clap::{ArgGroup, Args};
use serde_json::{Value, json};
use sqs_once::protocol::Timestamp;
use tokio::time::Instant;

use crate::{
    aws::{self, failed},
    dead_letters::{DeadLetter, ERROR, KEY, MORE, Queue, REASON, name_in, visibility_timeout},
    journal::{Journal, Step},
    output::{End, Error, Format, answer, columns, confirm, count},
    progress::Progress,
    table::{Records, Table},
    verdict::Verdict,
};

/// Names the dead letter of which a message is the copy.
const REDRIVE_OF: &str = "SqsOnceRedriveOf";
/// Attributes of a message, a limit of SQS.
const MAX_ATTRIBUTES: usize = 10;

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

/// The end of one message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Fate {
    /// Sent and deleted.
    Moved,
    /// An earlier run sent the message, and this run deleted it.
    Deleted,
    /// A run sent the message, and SQS has not confirmed the deletion.
    SentNotDeleted,
    /// A send got no answer: the message may have been sent. It stays.
    Unknown,
    /// SQS refused the copy, or it cannot be made. It stays.
    Refused,
    /// Behind a message of its FIFO group that stays, or the time was over.
    NotTried,
}

impl Fate {
    const fn name(self) -> &'static str {
        match self {
            Self::Moved => "moved",
            Self::Deleted => "deleted",
            Self::SentNotDeleted => "sent_not_deleted",
            Self::Unknown => "unknown",
            Self::Refused => "refused",
            Self::NotTried => "not_tried",
        }
    }

    const fn text(self) -> &'static str {
        match self {
            Self::Moved => "moved",
            Self::Deleted => "sent by an earlier run; now deleted",
            Self::SentNotDeleted => {
                "sent, but not deleted: run the same command again, with the same journal"
            }
            Self::Unknown => {
                "may have been sent, so it stays: look for SqsOnceRedriveOf with its id; to send it again, use another journal"
            }
            Self::Refused => "SQS refused the copy, so it stays",
            Self::NotTried => "not tried, so it stays: run the same command again",
        }
    }

    const fn is_left(self) -> bool {
        !matches!(self, Self::Moved | Self::Deleted)
    }
}

/// A selected message.
struct Selected {
    key: Option<String>,
    verdict: Verdict,
    fate: Fate,
}

/// The ends of all messages of a redrive.
#[derive(Default)]
struct Report {
    /// By message id.
    ends: BTreeMap<String, Selected>,
    /// The first error that left a message.
    error: Option<String>,
    /// A round ended before the queue was empty.
    more: bool,
}

impl Report {
    fn is_left(&self, message: &str) -> bool {
        self.ends
            .get(message)
            .is_none_or(|selected| selected.fate.is_left())
    }

    fn count(&self) -> BTreeMap<(Fate, Verdict), usize> {
        let mut counts = BTreeMap::new();
        for selected in self.ends.values() {
            *counts.entry((selected.fate, selected.verdict)).or_default() += 1;
        }
        counts
    }
}

/// One redrive between two queues.
struct Run<'a> {
    with: &'a Redrive,
    from: Queue,
    to: Queue,
    records: Option<Records>,
    /// FIFO groups that are moved.
    groups: BTreeSet<String>,
    /// FIFO groups of which a message stays.
    stopped: BTreeSet<String>,
    /// No further message is tried.
    ended: bool,
    /// Messages of the first round.
    received: usize,
    report: Report,
}

/// A message that was not moved, and the reason.
struct Left {
    fate: Fate,
    error: Error,
    /// No further message is tried.
    ends_run: bool,
}

impl Left {
    const fn one(fate: Fate, error: Error) -> Self {
        let ends_run = false;
        Self {
            fate,
            error,
            ends_run,
        }
    }

    const fn all(fate: Fate, error: Error) -> Self {
        let ends_run = true;
        Self {
            fate,
            error,
            ends_run,
        }
    }
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
        let records = match self.table.is_named() {
            true => Some(self.table.open().await?),
            false => {
                eprintln!(
                    "sqs-once: pass --table NAME or --postgres URL to see which messages run again when moved\n"
                );
                None
            }
        };
        let journal = self.journal.as_ref().filter(|_| !self.dry_run);
        let journal = journal.map(|path| Journal::open(path, &from.url, &to.url));
        let mut journal = journal.transpose()?;
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
        let mut config = config.to_builder();
        if !from.is_fifo() {
            // A request that is sent again could send a message twice. On a FIFO queue the
            // deduplication id prevents that.
            config = config.retry_config(RetryConfig::disabled());
        }
        let config = &config.build();
        if let Some(name) = &self.to {
            return Queue::find(config, name).await;
        }
        let sources = from.client.list_dead_letter_source_queues();
        let sources = sources.queue_url(&from.url).send().await.map_err(|error| {
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

    fn selects(&self, letter: &DeadLetter) -> bool {
        self.all
            || self.reason.contains(&letter.cause().reason)
            || self.message.iter().any(|id| id == letter.id())
    }
}

impl Run<'_> {
    /// Words for the messages that the first round does not show: of a FIFO group, SQS shows the first ten.
    fn rest_of_groups(&self) -> &'static str {
        match self.from.is_fifo() {
            true => " and all further messages of their groups",
            false => "",
        }
    }

    /// Receives and moves messages. Returns whether there may be more to move: of a FIFO group, SQS
    /// shows the first ten messages, and the next ones after these are deleted.
    async fn round(&mut self, journal: Option<&mut Journal>) -> Result<bool, Error> {
        let hide = self.with.hide;
        let until = Instant::now() + hide / 4 * 3;
        let received = match self.from.receive(self.with.max as usize, hide).await {
            // The messages of earlier rounds were moved, and must be reported.
            Err(error) if !self.report.ends.is_empty() => {
                self.report.error.get_or_insert(error.to_string());
                return Ok(false);
            }
            received => received?,
        };
        self.report.more |= received.more;
        let letters = received.letters;
        self.received = self.received.max(letters.len());
        let moved = self.move_selected(&letters, journal, until).await;
        let left = letters.iter();
        let left: Vec<_> = left
            .filter(|letter| self.report.is_left(letter.id()))
            .collect();
        self.from.show_again(&left).await;
        Ok(moved? && self.from.is_fifo() && !self.ended)
    }

    /// Returns whether messages were moved.
    async fn move_selected(
        &mut self,
        letters: &[DeadLetter],
        journal: Option<&mut Journal>,
        until: Instant,
    ) -> Result<bool, Error> {
        let first = self.report.ends.is_empty();
        let selected = self.select(letters, first);
        if selected.is_empty() {
            return Ok(false);
        }
        let mut plan = BTreeMap::new();
        for letter in &selected {
            let verdict = self.verdict(letter).await;
            *plan.entry(verdict).or_insert(0) += 1;
            let end = Selected {
                key: letter.attribute(KEY).map(str::to_owned),
                verdict,
                fate: Fate::NotTried,
            };
            self.report.ends.insert(letter.id().to_owned(), end);
        }
        if first && !self.with.dry_run {
            let plan = plan.iter().map(|(verdict, count): (&Verdict, &usize)| {
                [count.to_string(), verdict.text().to_owned()]
            });
            eprintln!("{}\n", columns(["MESSAGES", "WHEN MOVED"], plan));
        }
        // A dry run has no journal.
        let Some(journal) = journal else {
            return Ok(false);
        };
        if first {
            let question = format!(
                "Move {}{} from {} to {}?",
                count(selected.len(), "message"),
                self.rest_of_groups(),
                self.from.name(),
                self.to.name()
            );
            confirm(&question, self.with.yes)?;
        }
        let (count, progress) = (selected.len(), Progress::new());
        for (index, letter) in selected.into_iter().enumerate() {
            progress.show(
                index as f64 / count as f64,
                &format!("{index} of {count} messages"),
            );
            let group = letter.group().filter(|_| self.from.is_fifo());
            if Instant::now() >= until {
                let error = "the time of --hide was over before all messages were sent";
                self.report.error.get_or_insert(error.into());
                self.ended = true;
            }
            if self.ended {
                break;
            }
            if group.is_some_and(|group| self.stopped.contains(group)) {
                continue;
            }
            let fate = match self.move_one(letter, journal).await {
                Ok(fate) => fate,
                Err(left) => {
                    let error = left.error.to_string();
                    self.report.error.get_or_insert(error);
                    self.ended |= left.ends_run;
                    left.fate
                }
            };
            if let Some(selected) = self.report.ends.get_mut(letter.id()) {
                selected.fate = fate;
            }
            // A message that was sent is ahead of its group, deleted or not.
            if !matches!(fate, Fate::Moved | Fate::Deleted | Fate::SentNotDeleted) {
                self.stopped.extend(group.map(str::to_owned));
            }
        }
        Ok(true)
    }

    /// The messages to move, in the order of the queue. A FIFO group moves whole.
    fn select<'l>(&mut self, letters: &'l [DeadLetter], first: bool) -> Vec<&'l DeadLetter> {
        let with = self.with;
        if !self.from.is_fifo() {
            let fresh = |letter: &&DeadLetter| first && with.selects(letter);
            return letters.iter().filter(fresh).collect();
        }
        if first {
            let selected = letters.iter().filter(|letter| with.selects(letter));
            let groups = selected.filter_map(|letter| letter.group());
            self.groups.extend(groups.map(str::to_owned));
        }
        let moves = |letter: &&DeadLetter| {
            let known = letter
                .group()
                .is_some_and(|group| self.groups.contains(group));
            known && !self.report.ends.contains_key(letter.id())
        };
        letters.iter().filter(moves).collect()
    }

    /// The effect of the record under the message's key on the copy, which has a new message id.
    async fn verdict(&self, letter: &DeadLetter) -> Verdict {
        let (Some(records), Some(key)) = (&self.records, letter.key()) else {
            return Verdict::Unknown;
        };
        match records.look_up(key).await {
            Ok(None) => Verdict::Runs,
            Ok(Some(stored)) => match &stored.record {
                // The key is the message id, and the copy gets another one.
                Ok(record) if is_of_message(key, record.message_id.as_deref()) => Verdict::Runs,
                _ => Verdict::by(&stored, self.with.table.after_failure(), Timestamp::now()),
            },
            Err(error) => {
                eprintln!("sqs-once: {error}");
                Verdict::Unknown
            }
        }
    }

    async fn move_one(&self, letter: &DeadLetter, journal: &mut Journal) -> Result<Fate, Left> {
        let id = letter.id();
        let mut end = Fate::Moved;
        match journal.step(id) {
            Some(Step::Sent | Step::Deleted) => end = Fate::Deleted,
            Some(Step::Send) => {
                let error = format!("message {id}: {}", Fate::Unknown.text());
                return Err(Left::one(Fate::Unknown, Error::negative(error)));
            }
            None => self.send(letter, journal).await?,
        }
        let deleted = self.from.delete(letter).await;
        deleted.map_err(|error| Left::one(Fate::SentNotDeleted, error))?;
        let noted = journal.deleted(id);
        noted.map_err(|error| Left::all(end, error))?;
        Ok(end)
    }

    async fn send(&self, letter: &DeadLetter, journal: &mut Journal) -> Result<(), Left> {
        let id = letter.id();
        let attributes = attributes(letter).map_err(|error| Left::one(Fate::Refused, error))?;
        let body = letter.message.body.as_deref().unwrap_or_default();
        let mut send = self
            .to
            .client
            .send_message()
            .queue_url(&self.to.url)
            .message_body(body)
            .set_message_attributes(Some(attributes))
            .set_message_group_id(letter.group().map(str::to_owned));
        if self.to.is_fifo() {
            send = send.message_deduplication_id(id);
        }
        if let Some(header) = letter.system(&System::AwsTraceHeader) {
            let value = SystemAttribute::builder().data_type("String");
            if let Ok(value) = value.string_value(header).build() {
                send = send.message_system_attributes(SystemForSends::AwsTraceHeader, value);
            }
        }
        let noted = journal.send(id);
        noted.map_err(|error| Left::all(Fate::NotTried, error))?;
        let error = match send.send().await {
            Ok(answer) => match answer.message_id.filter(|new| !new.is_empty()) {
                Some(new) => {
                    let noted = journal.sent(id, &new);
                    return noted.map_err(|error| Left::all(Fate::SentNotDeleted, error));
                }
                // A proxy can answer 200 for SQS.
                None => {
                    let error = "could not send a message: the answer names no new message";
                    return Err(Left::all(Fate::Unknown, Error::remote(error)));
                }
            },
            Err(error) => error,
        };
        let refused = match &error {
            SdkError::ServiceError(answer) => answer.raw().status().is_client_error(),
            SdkError::ConstructionFailure(_) => true,
            _ => false,
        };
        let failure = failed("send a message", "sqs:SendMessage", &error);
        if !refused {
            return Err(Left::all(Fate::Unknown, failure));
        }
        let noted = journal.refused(id);
        noted.map_err(|error| Left::all(Fate::Refused, error))?;
        Err(Left::one(Fate::Refused, failure))
    }

    fn end(&self, format: Format) -> Result<End, Error> {
        let ends = &self.report.ends;
        let named = self.with.message.iter();
        let absent: Vec<_> = named.filter(|id| !ends.contains_key(*id)).collect();
        let text = || {
            if ends.is_empty() {
                let received = count(self.received, "message");
                return format!("{received} received, and none selected.");
            }
            if self.with.dry_run {
                let rows = ends.iter().map(|(id, selected)| {
                    let key = selected.key.clone().unwrap_or_default();
                    [id.clone(), key, selected.verdict.text().to_owned()]
                });
                let messages = columns(["MESSAGE", "KEY", "WHEN MOVED"], rows);
                return format!(
                    "{messages}\n\n{}{} would be moved.",
                    count(ends.len(), "message"),
                    self.rest_of_groups(),
                );
            }
            let rows = self.report.count().into_iter();
            let rows = rows.map(|((fate, verdict), count)| {
                let (fate, verdict) = (fate.text().to_owned(), verdict.text().to_owned());
                [count.to_string(), fate, verdict]
            });
            columns(["MESSAGES", "END", "WHEN MOVED"], rows)
        };
        let json = || {
            let messages = ends.iter().map(|(id, selected)| {
                json!({
                    "message_id": id,
                    "key": selected.key,
                    "end": selected.fate.name(),
                    "when_moved": selected.verdict.name(),
                })
            });
            let messages: Vec<Value> = messages.collect();
            let (from, to) = (&self.from.url, &self.to.url);
            json!({
                "from": from,
                "to": to,
                "dry_run": self.with.dry_run,
                "messages": messages,
                "not_found": absent,
                "more": self.report.more,
            })
        };
        answer(format, text, json)?;
        if let Some(error) = &self.report.error {
            eprintln!("sqs-once: {error}");
        }
        for id in &absent {
            eprintln!("sqs-once: message {id} was not received: another receiver may hide it");
        }
        let left = !self.with.dry_run && ends.values().any(|selected| selected.fate.is_left());
        // Messages that are named were all looked for.
        let more = self.report.more && (self.with.all || !self.with.reason.is_empty());
        if more {
            eprintln!("sqs-once: {MORE}");
        }
        let done = absent.is_empty() && !left && !more && self.report.error.is_none();
        Ok(if done { End::Done } else { End::NotDone })
    }
}

/// Returns whether the key is made of the message's id.
fn is_of_message(key: &str, message_id: Option<&str>) -> bool {
    let own = message_id.and_then(|id| key.strip_suffix(id));
    own.is_some_and(|namespace| namespace.ends_with('#'))
}

/// The attributes of the copy: those of the message, without those of direct dead-lettering.
fn attributes(letter: &DeadLetter) -> Result<std::collections::HashMap<String, Attribute>, Error> {
    let mut attributes = letter
        .message
        .message_attributes
        .clone()
        .unwrap_or_default();
    for name in [REASON, ERROR, KEY] {
        attributes.remove(name);
    }
    let of = Attribute::builder().data_type("String");
    let of = of.string_value(letter.id()).build();
    attributes.insert(REDRIVE_OF.into(), of.map_err(Error::usage)?);
    if attributes.len() > MAX_ATTRIBUTES {
        return Err(Error::negative(format!(
            "message {} has no room for the attribute {REDRIVE_OF}: SQS takes {MAX_ATTRIBUTES} attributes",
            letter.id()
        )));
    }
    Ok(attributes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_of_message_id_is_recognized() {
        assert!(is_of_message("payments#m-1", Some("m-1")));
        assert!(!is_of_message("payments#order-m-1", Some("m-1")));
        assert!(!is_of_message("payments#m-1", None));
    }
}

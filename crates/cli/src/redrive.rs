//! `sqs-once dlq redrive`: moves messages from a dead-letter queue by receive, send, delete.
//!
//! Each received message is moved before the next ten are received, so that the next messages of a FIFO
//! queue's message group become visible. A message that stays is hidden until the command ends.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
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

use crate::{
    aws::{self, failed},
    dead_letters::{DeadLetter, ERROR, KEY, Queue, REASON, name_in},
    output::{End, Error, Format, answer, columns, confirm, count},
};

/// The message attribute that holds the id of the dead letter from which a message was copied.
const REDRIVE_OF: &str = "SqsOnceRedriveOf";
/// How many attributes SQS allows on a message.
const MAX_ATTRIBUTES: usize = 10;
/// How long messages that stay are hidden if the command is killed.
const HIDE: Duration = Duration::from_secs(600);

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
    /// Number of messages to receive.
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..))]
    max: u32,
    /// Shows the messages that would be moved, and moves none.
    #[arg(long)]
    dry_run: bool,
    /// Does not ask.
    #[arg(long)]
    yes: bool,
}

/// How a selected message ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Fate {
    /// A dry run would move it.
    Selected,
    /// Sent and deleted.
    Moved,
    /// Sent, but SQS has not confirmed the deletion.
    SentNotDeleted,
    /// SQS rejected the copy, or the message was not tried: an earlier one of its message group stays, or the
    /// command ended.
    NotSent,
    /// SQS did not respond to the send, so the message may have been sent. It stays in the dead-letter queue.
    Unknown,
}

impl Fate {
    const fn name(self) -> &'static str {
        match self {
            Self::Selected => "selected",
            Self::Moved => "moved",
            Self::SentNotDeleted => "sent_not_deleted",
            Self::NotSent => "not_sent",
            Self::Unknown => "unknown",
        }
    }

    const fn text(self) -> &'static str {
        match self {
            Self::Selected => "would be moved",
            Self::Moved => "moved",
            Self::SentNotDeleted => {
                "sent, but not deleted: delete it, or the next redrive sends it again"
            }
            Self::NotSent => "not sent, so it stays",
            Self::Unknown => {
                "may have been sent, so it stays: look for its id in SqsOnceRedriveOf before the next redrive"
            }
        }
    }

    const fn was_sent(self) -> bool {
        matches!(self, Self::Moved | Self::SentNotDeleted)
    }
}

/// One redrive between two queues.
struct Run<'a> {
    with: &'a Redrive,
    from: Queue,
    to: Queue,
    received: usize,
    /// Key and end of each selected message, by its id.
    selected: BTreeMap<String, (Option<String>, Fate)>,
    /// Received messages that stay, hidden for now.
    left: Vec<DeadLetter>,
    /// Message groups of a FIFO queue from which a message stays.
    stopped: HashSet<String>,
    /// The first error that left a message behind.
    error: Option<Error>,
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
        if !self.dry_run {
            let (what, from, to) = (self.selection(), from.name(), to.name());
            confirm(&format!("Move {what} from {from} to {to}?"), self.yes)?;
        }
        let mut run = Run {
            with: &self,
            from,
            to,
            received: 0,
            selected: BTreeMap::new(),
            left: Vec::new(),
            stopped: HashSet::new(),
            error: None,
        };
        let more = run.move_messages().await;
        run.from.show_again(run.left.iter()).await;
        match run.error.take() {
            Some(error) if run.selected.is_empty() => Err(error),
            error => run.report(format, more, error.as_ref()),
        }
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
            || self.reason.iter().any(|of| of == dead_letter.reason())
            || self.message.iter().any(|id| id == dead_letter.id())
    }

    fn selection(&self) -> String {
        if self.all {
            return "all messages".to_owned();
        }
        let of_reason = |reason| format!("the messages with the reason {reason}");
        let reasons = self.reason.iter().map(of_reason);
        let ids = self.message.iter().map(|id| format!("message {id}"));
        reasons.chain(ids).collect::<Vec<_>>().join(", ")
    }
}

impl Run<'_> {
    /// Receives and moves messages. Returns whether selected messages may be left in the queue that were not
    /// received.
    async fn move_messages(&mut self) -> bool {
        let max = self.with.max as usize;
        while self.received < max && !self.has_all_named() {
            let batch = match self.from.receive(max - self.received, HIDE).await {
                Ok(batch) if batch.is_empty() => return !self.stopped.is_empty(),
                Ok(batch) => batch,
                Err(error) => {
                    self.error.get_or_insert(error);
                    return true;
                }
            };
            self.received += batch.len();
            for dead_letter in batch {
                self.take(dead_letter).await;
            }
            if self.is_unsure() {
                return true;
            }
        }
        !self.has_all_named()
    }

    /// Returns whether only ids are selected, and all of them were received.
    fn has_all_named(&self) -> bool {
        let with = self.with;
        let is_known = |id: &String| self.selected.contains_key(id);
        !with.all && with.reason.is_empty() && with.message.iter().all(is_known)
    }

    /// Returns whether SQS has not responded to a send. No further message is sent then: without a connection,
    /// each of them would be uncertain.
    fn is_unsure(&self) -> bool {
        let mut ends = self.selected.values();
        ends.any(|(_, end)| *end == Fate::Unknown)
    }

    /// Moves a message that was received if it is selected. Otherwise it stays.
    async fn take(&mut self, dead_letter: DeadLetter) {
        let id = dead_letter.id();
        let is_fifo = self.from.is_fifo();
        let group = dead_letter.group().filter(|_| is_fifo).map(str::to_owned);
        let known = self.selected.get(id).map(|(_, end)| *end);
        let end = if !self.with.selects(&dead_letter) || self.has_come_back(&dead_letter) {
            None
        } else if self.with.dry_run {
            Some(Fate::Selected)
        } else if self.is_unsure() || group.as_ref().is_some_and(|of| self.stopped.contains(of)) {
            Some(known.unwrap_or(Fate::NotSent))
        } else {
            Some(self.move_one(&dead_letter, known).await)
        };
        if let Some(end) = end {
            let key = dead_letter.attribute(KEY).map(str::to_owned);
            self.selected.insert(id.to_owned(), (key, end));
        }
        if end.is_none_or(|end| !end.was_sent()) {
            if end != Some(Fate::Selected) {
                self.stopped.extend(group);
            }
            self.left.push(dead_letter);
        }
    }

    /// Returns whether this is a message that this command has moved, and that failed again. It stays: a consumer may be
    /// faster than this command, which would never end.
    fn has_come_back(&self, dead_letter: &DeadLetter) -> bool {
        let of = dead_letter.attribute(REDRIVE_OF);
        let moved = of.and_then(|of| self.selected.get(of));
        moved.is_some_and(|(_, end)| end.was_sent())
    }

    /// Sends and deletes a message. SQS may deliver a message again that was `known` to be sent: then only
    /// deletes it.
    async fn move_one(&mut self, dead_letter: &DeadLetter, known: Option<Fate>) -> Fate {
        if !known.is_some_and(Fate::was_sent)
            && let Err((end, error)) = self.send(dead_letter).await
        {
            self.error.get_or_insert(error);
            return end;
        }
        match self.from.delete(dead_letter).await {
            Ok(()) => Fate::Moved,
            Err(error) => {
                self.error.get_or_insert(error);
                Fate::SentNotDeleted
            }
        }
    }

    async fn send(&self, dead_letter: &DeadLetter) -> Result<(), (Fate, Error)> {
        let mut send = self
            .to
            .client
            .send_message()
            .queue_url(&self.to.url)
            .message_body(dead_letter.body())
            .set_message_attributes(Some(attributes(dead_letter)))
            .set_message_group_id(dead_letter.group().map(str::to_owned));
        if self.to.is_fifo() {
            // Within five minutes, SQS drops a second copy.
            send = send.message_deduplication_id(dead_letter.id());
        }
        if let Some(header) = dead_letter.system(&System::AwsTraceHeader) {
            let value = SystemAttribute::builder().data_type("String");
            if let Ok(value) = value.string_value(header).build() {
                send = send.message_system_attributes(SystemForSends::AwsTraceHeader, value);
            }
        }
        match send.send().await {
            Ok(sent) if sent.message_id().is_some_and(|id| !id.is_empty()) => Ok(()),
            // A proxy may respond with 200 in place of SQS.
            Ok(_) => {
                let error = "could not send a message: the response names no new message";
                Err((Fate::Unknown, Error::remote(error)))
            }
            Err(error) => {
                let is_rejected = match &error {
                    SdkError::ServiceError(answer) => answer.raw().status().is_client_error(),
                    SdkError::ConstructionFailure(_) => true,
                    _ => false,
                };
                let end = if is_rejected {
                    Fate::NotSent
                } else {
                    Fate::Unknown
                };
                Err((end, failed("send a message", "sqs:SendMessage", &error)))
            }
        }
    }

    fn report(&self, format: Format, more: bool, error: Option<&Error>) -> Result<End, Error> {
        let named = self.with.message.iter();
        let absent: Vec<_> = named
            .filter(|id| !self.selected.contains_key(*id))
            .collect();
        answer(format, || self.text(), || self.json(&absent, more))?;
        if let Some(error) = error {
            eprintln!("sqs-once: {error}");
        }
        for id in &absent {
            let why = if more {
                ""
            } else {
                ": another receiver may hide it"
            };
            eprintln!("sqs-once: message {id} was not received{why}");
        }
        if more {
            eprintln!("sqs-once: not all messages were received: there may be more");
        }
        let is_done = |(_, end): &(_, Fate)| matches!(end, Fate::Moved | Fate::Selected);
        let all_done = self.selected.values().all(is_done);
        let done = all_done && absent.is_empty() && !more && error.is_none();
        Ok(if done { End::Done } else { End::NotDone })
    }

    /// How many messages have this end.
    fn counts(&self) -> BTreeMap<Fate, usize> {
        let mut counts = BTreeMap::new();
        for (_, end) in self.selected.values() {
            *counts.entry(*end).or_default() += 1;
        }
        counts
    }

    fn text(&self) -> String {
        if self.selected.is_empty() {
            let received = count(self.received, "message");
            return format!("{received} received, and none selected.");
        }
        if self.with.dry_run {
            let row = |(id, (key, _)): (&String, &(Option<String>, Fate))| {
                [id.clone(), key.clone().unwrap_or_default()]
            };
            let messages = columns(["MESSAGE", "KEY"], self.selected.iter().map(row));
            let group = " Of each group, SQS shows at most the first ten.";
            let group = if self.from.is_fifo() { group } else { "" };
            let selected = count(self.selected.len(), "message");
            return format!("{messages}\n\n{selected} would be moved.{group}");
        }
        let counts = self.counts().into_iter();
        let rows = counts.map(|(end, count)| [count.to_string(), end.text().to_owned()]);
        columns(["MESSAGES", "END"], rows)
    }

    fn json(&self, absent: &[&String], more: bool) -> Value {
        let message = |(id, (key, end)): (&String, &(Option<String>, Fate))| json!({"message_id": id, "key": key, "end": end.name()});
        let counts = self.counts();
        let of = |end| counts.get(&end).copied().unwrap_or(0);
        json!({
            "from": self.from.url,
            "to": self.to.url,
            "dry_run": self.with.dry_run,
            "sent": of(Fate::Moved) + of(Fate::SentNotDeleted),
            "not_sent": of(Fate::NotSent),
            "unknown": of(Fate::Unknown),
            "not_deleted": of(Fate::SentNotDeleted),
            "messages": self.selected.iter().map(message).collect::<Vec<_>>(),
            "not_found": absent,
            "more": more,
        })
    }
}

/// Returns the attributes of the copy: those of the message, without the ones that direct dead-lettering or an
/// earlier redrive added, and with the id of the message if there is room.
fn attributes(dead_letter: &DeadLetter) -> HashMap<String, Attribute> {
    let mut attributes = dead_letter.0.message_attributes.clone().unwrap_or_default();
    for name in [REASON, ERROR, KEY, REDRIVE_OF] {
        attributes.remove(name);
    }
    let id = Attribute::builder().data_type("String");
    if attributes.len() < MAX_ATTRIBUTES
        && let Ok(id) = id.string_value(dead_letter.id()).build()
    {
        attributes.insert(REDRIVE_OF.into(), id);
    }
    attributes
}

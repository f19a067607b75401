//! `sqs-once dlq redrive`: moves messages from a dead-letter queue back to their queue.
//!
//! SQS moves all messages of a standard queue itself (`message_move`). We move a selection, and the messages of a FIFO queue,
//! one by one: receive, send, delete. We move the received messages before we receive the next ten, so that the next messages
//! of a FIFO queue's message group become visible. A message that stays is hidden until the command ends.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    time::Duration,
};

use aws_config::SdkConfig;
use aws_sdk_sqs::{
    config::retry::RetryConfig,
    error::SdkError,
    types::{
        Message, MessageAttributeValue as Attribute, MessageSystemAttributeName as System,
        MessageSystemAttributeNameForSends as SystemForSends,
        MessageSystemAttributeValue as SystemAttribute,
    },
};
use clap::{ArgGroup, Args};
use serde_json::{Value, json};
use sqs_once::{internal::system::sleep, protocol::Timestamp, store::DynamoStore};

use crate::{
    aws::{self, code, failed},
    dead_letters::{DeadLetter, Depth, ERROR, KEY, NamedQueue, REASON, REDRIVE_OF, hide, name_in},
    message_move::Move,
    next_delivery::Rules,
    output::{CommandEnd, Error, Format, answer, can_ask, clean, columns, confirm, count},
    preview::{Next, Preview},
    stop::{ProgressLine, StopSignal},
};

/// How many attributes SQS allows on a message.
const MAX_ATTRIBUTES: usize = 10;
/// Messages that stay are hidden for at least this long if the command is killed.
const HIDE: Duration = Duration::from_secs(600);
/// Messages are hidden for at least this long if a command that only looks is killed.
const HIDE_FROM_PREVIEW: Duration = Duration::from_secs(60);
/// Pauses before a throttled message is sent again, in milliseconds.
const PAUSES: [u64; 5] = [500, 1000, 2000, 4000, 8000];
/// SQS's error codes that concern only one message, so the next may be sent.
const OF_ONE_MESSAGE: [&str; 4] = [
    "InvalidAttributeValue",
    "InvalidMessageContents",
    "InvalidParameterValue",
    "MessageTooLong",
];

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
    /// Number of messages to receive, for the preview and for moving them one by one. A move by SQS has no such limit.
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..))]
    max: u32,
    /// Messages that SQS moves per second, with --all.
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u16).range(1..=500))]
    rate: u16,
    /// Shows which messages would be moved and what each will do, but moves none.
    #[arg(long)]
    dry_run: bool,
    /// Does not ask for confirmation.
    #[arg(long)]
    yes: bool,
    #[command(flatten)]
    preview: Preview,
}

/// The fate of a selected message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Fate {
    /// A dry run would move the message.
    Selected,
    /// We sent and deleted the message.
    Moved,
    /// We sent the message, but SQS has not confirmed the deletion.
    SentNotDeleted,
    /// SQS rejected the copy, or we did not try, because an earlier message of its group stays or the command ended.
    NotSent,
    /// SQS did not respond, so the message may have been sent. The message stays in the dead-letter queue.
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

/// A selected message: its key, what it will do, and what became of it.
struct Selected {
    key: Option<String>,
    next: Option<Next>,
    fate: Fate,
}

/// One redrive between two queues, or a look at its messages.
struct OneRedrive<'a> {
    with: &'a Redrive,
    from: &'a NamedQueue,
    to: &'a NamedQueue,
    at_start: &'a Depth,
    /// True if this moves no messages.
    is_dry: bool,
    records: Option<&'a (DynamoStore, Rules)>,
    started: Timestamp,
    received: usize,
    selected: BTreeMap<String, Selected>,
    /// Received messages that stay. They are hidden for now.
    left: Vec<DeadLetter>,
    /// Message groups of a FIFO queue in which a message stays.
    stopped: HashSet<String>,
    /// How many messages arrived after the start.
    arrived: usize,
    /// How many messages in the queue we did not receive, counted at the end.
    unseen: usize,
    /// True if we send no more messages, because a signal or an error has stopped the command.
    is_over: bool,
    /// The first error that left a message behind.
    error: Option<Error>,
}

impl Redrive {
    pub(crate) async fn run(self, format: Format) -> Result<CommandEnd, Error> {
        let config = aws::config().await?;
        let from = NamedQueue::find(&config, &self.queue).await?;
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
        let at_start = from.depth().await?;
        let records = self.preview.open().await?;
        let run = |is_dry| OneRedrive {
            with: &self,
            from: &from,
            to: &to,
            at_start: &at_start,
            is_dry,
            records: records.as_ref(),
            started: Timestamp::now(),
            received: 0,
            selected: BTreeMap::new(),
            left: Vec::new(),
            stopped: HashSet::new(),
            arrived: 0,
            unseen: 0,
            is_over: false,
            error: None,
        };
        if self.dry_run {
            return run(true).finish(format).await;
        }
        let mut by_sqs = Move {
            from: &from,
            at_start: &at_start,
            rate: self.rate,
            before: None,
        };
        let one_by_one = |why: &str| eprintln!("Moving one by one, {} at most: {why}.", self.max);
        let mut is_by_sqs = self.all;
        if self.all {
            let probed = if from.is_fifo() {
                let why = "a move by SQS would not hold back a message group";
                Err(Error::negative(why))
            } else {
                by_sqs.probe().await
            };
            match probed {
                Err(Error::Negative(why)) => {
                    is_by_sqs = false;
                    one_by_one(&why);
                }
                probed => probed?,
            }
        }
        if !self.yes {
            can_ask()?;
            let mut preview = run(true);
            preview.move_messages(None).await;
            from.show_again(preview.left.iter()).await;
            eprintln!("{}", clean(&preview.summary()));
            if let Some(error) = preview.error {
                eprintln!("sqs-once: {error}");
            }
        }
        let (what, total) = (self.selection(), count(at_start.messages, "message"));
        let (name, to_name) = (from.name(), to.name());
        let question = format!("Move {what} from {name}, which has about {total}, to {to_name}?");
        confirm(&question, self.yes)?;
        if is_by_sqs {
            match by_sqs.start(&to).await {
                Err(Error::Negative(why)) => one_by_one(&why),
                started => {
                    started?;
                    return by_sqs.finish(&to, format).await;
                }
            }
        }
        run(false).finish(format).await
    }

    /// Returns the queue named by `--to`, or the one queue that has `from` as its dead-letter queue.
    async fn destination(
        &self,
        config: &SdkConfig,
        from: &NamedQueue,
    ) -> Result<NamedQueue, Error> {
        // This client makes no retries, because the SDK could send a message twice, and would return only the last error.
        let builder = config.to_builder();
        let config = &builder.retry_config(RetryConfig::disabled()).build();
        if let Some(name) = &self.to {
            return NamedQueue::find(config, name).await;
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
            [url] => NamedQueue::find(config, url).await,
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
            || self.reason.contains(&dead_letter.reason)
            || self.message.contains(&dead_letter.id)
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

impl OneRedrive<'_> {
    /// Receives and moves messages, and reports.
    async fn finish(mut self, format: Format) -> Result<CommandEnd, Error> {
        let stop = StopSignal::listen();
        let mut more = self.move_messages(Some(&stop)).await;
        // SQS shows only ten messages of a FIFO queue's group until they are deleted.
        let shows_all = !(self.is_dry && self.from.is_fifo());
        if shows_all && !more && !self.has_all_named() {
            self.unseen = self.unseen().await;
            more = self.unseen > 0;
        }
        self.from.show_again(self.left.iter()).await;
        match self.error.take() {
            Some(error) if self.selected.is_empty() => Err(error),
            error => {
                if stop.is_set() {
                    eprintln!("sqs-once: interrupted");
                }
                self.report(format, more, error.as_ref())
            }
        }
    }

    /// Receives and moves messages. Returns whether the queue may have more selected messages, which were not received.
    async fn move_messages(&mut self, stop: Option<&StopSignal>) -> bool {
        let max = self.with.max as usize;
        let shortest = if self.is_dry { HIDE_FROM_PREVIEW } else { HIDE };
        let hide = hide(shortest, self.with.max);
        let is_stopped = || stop.is_some_and(StopSignal::is_set);
        let mut progress = ProgressLine::default();
        while self.received < max && !self.has_all_named() {
            if is_stopped() {
                return true;
            }
            let batch = match self.from.receive(max - self.received, hide).await {
                Ok(batch) if batch.is_empty() => return !self.stopped.is_empty(),
                Ok(batch) => batch,
                Err(error) => {
                    self.error.get_or_insert(error);
                    return true;
                }
            };
            self.received += batch.len();
            for message in batch {
                self.is_over |= is_stopped();
                self.take(message).await;
            }
            if self.is_over {
                return true;
            }
            let (received, total) = (self.received, self.at_start.messages);
            let selected = self.selected.len();
            progress.say(&format!(
                "{received} of about {total} messages received, {selected} selected"
            ));
        }
        !self.has_all_named()
    }

    /// Returns roughly how many messages we did not receive. Another receiver may hide them. If more than 120,000 messages are
    /// hidden, SQS returns none.
    async fn unseen(&mut self) -> usize {
        match self.from.depth().await {
            Ok(depth) if self.received < self.at_start.messages => {
                depth.messages.saturating_sub(self.left.len())
            }
            Ok(_) => 0,
            Err(error) => {
                self.error.get_or_insert(error);
                0
            }
        }
    }

    /// Returns whether messages are selected only by id, and all of those were received.
    fn has_all_named(&self) -> bool {
        let with = self.with;
        let is_known = |id: &String| self.selected.contains_key(id);
        !with.all && with.reason.is_empty() && with.message.iter().all(is_known)
    }

    /// Moves a received message if it is selected. Otherwise the message stays.
    async fn take(&mut self, message: Message) {
        let dead_letter = DeadLetter::of(&message);
        let is_fifo = self.from.is_fifo();
        let group = dead_letter.group.clone().filter(|_| is_fifo);
        let known = self.selected.get(&dead_letter.id).map(|of| of.fate);
        let mut key = dead_letter.key().map(str::to_owned);
        let mut next = None;
        let fate = if !self.with.selects(&dead_letter) {
            None
        } else if self.is_dry {
            let preview = &self.with.preview;
            let found = preview.key(&dead_letter, &message);
            let told = preview.next(self.records, found.as_deref(), &message);
            match told.await {
                Ok(told) => next = Some(told),
                Err(error) => {
                    self.error.get_or_insert(error);
                    self.is_over = true;
                }
            }
            key = key.or(found);
            Some(Fate::Selected)
        } else if self.has_come_back(&dead_letter) {
            self.arrived += 1;
            None
        } else if self.is_over || group.as_ref().is_some_and(|of| self.stopped.contains(of)) {
            Some(known.unwrap_or(Fate::NotSent))
        } else {
            Some(self.move_one(&dead_letter, &message, known).await)
        };
        if let Some(fate) = fate {
            let selected = Selected { key, next, fate };
            self.selected.insert(dead_letter.id.clone(), selected);
        }
        if fate.is_none_or(|fate| !fate.was_sent()) {
            if fate != Some(Fate::Selected) {
                self.stopped.extend(group);
            }
            self.left.push(dead_letter);
        }
    }

    /// Returns whether the message has failed again after this command moved it. Such a message stays. If we moved it
    /// again, and the consumer is faster than we are, this command would never end. If the message had no room for the dead
    /// letter's id, we go by its send time.
    fn has_come_back(&self, dead_letter: &DeadLetter) -> bool {
        let moved = dead_letter.redrive_of.as_ref();
        let moved = moved.and_then(|of| self.selected.get(of));
        moved.is_some_and(|of| of.fate.was_sent())
            || dead_letter.sent_at.is_some_and(|sent| sent > self.started)
    }

    /// Sends and deletes a message. If it is `known` to be sent already, because SQS delivered it again, only deletes it.
    async fn move_one(
        &mut self,
        dead_letter: &DeadLetter,
        message: &Message,
        known: Option<Fate>,
    ) -> Fate {
        if !known.is_some_and(Fate::was_sent)
            && let Err((fate, error)) = self.send(message, dead_letter).await
        {
            self.error.get_or_insert(error);
            return fate;
        }
        match self.from.delete(dead_letter).await {
            Ok(()) => Fate::Moved,
            Err(error) => {
                self.error.get_or_insert(error);
                self.is_over = true;
                Fate::SentNotDeleted
            }
        }
    }

    /// Sends a copy of a message, and retries while SQS throttles. An error that is not about this message ends the command.
    async fn send(
        &mut self,
        message: &Message,
        dead_letter: &DeadLetter,
    ) -> Result<(), (Fate, Error)> {
        let mut send = self
            .to
            .client
            .send_message()
            .queue_url(&self.to.url)
            .set_message_body(message.body.clone())
            .set_message_attributes(Some(attributes(message, &dead_letter.id)))
            .set_message_group_id(dead_letter.group.clone());
        if self.to.is_fifo() {
            // Within five minutes, SQS drops a second copy.
            send = send.message_deduplication_id(&dead_letter.id);
        }
        let system = message.attributes.as_ref();
        if let Some(header) = system.and_then(|of| of.get(&System::AwsTraceHeader)) {
            let value = SystemAttribute::builder().data_type("String");
            if let Ok(value) = value.string_value(header).build() {
                send = send.message_system_attributes(SystemForSends::AwsTraceHeader, value);
            }
        }
        let mut pauses = PAUSES.into_iter();
        let error = loop {
            match send.clone().send().await {
                Ok(sent) if sent.message_id().is_some_and(|id| !id.is_empty()) => return Ok(()),
                // A 200 without a message id may come from a proxy, not from SQS.
                Ok(_) => {
                    self.is_over = true;
                    let error = "could not send a message: the response names no new message";
                    return Err((Fate::Unknown, Error::remote(error)));
                }
                Err(error) => match pauses.next() {
                    Some(pause) if code(&error).contains("Throttl") => {
                        sleep(Duration::from_millis(pause)).await;
                    }
                    _ => break error,
                },
            }
        };
        let is_rejected = match &error {
            SdkError::ServiceError(answer) => answer.raw().status().is_client_error(),
            // Without credentials, the SDK sends nothing.
            SdkError::ConstructionFailure(_) => true,
            _ => aws::lacks_credentials(&error),
        };
        let is_of_one = OF_ONE_MESSAGE.iter().any(|of| code(&error).contains(of));
        self.is_over |= !(is_rejected && is_of_one);
        let fate = if is_rejected {
            Fate::NotSent
        } else {
            Fate::Unknown
        };
        Err((fate, failed("send a message", "sqs:SendMessage", &error)))
    }

    fn report(
        &self,
        format: Format,
        more: bool,
        error: Option<&Error>,
    ) -> Result<CommandEnd, Error> {
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
        if self.unseen > 0 {
            let unseen = count(self.unseen, "message");
            eprintln!("sqs-once: about {unseen} were not received: another receiver hides them");
        } else if more {
            eprintln!("sqs-once: not all messages were received: there may be more");
        }
        if self.arrived > 0 {
            let arrived = count(self.arrived, "message");
            eprintln!(
                "sqs-once: {arrived} arrived after the start, perhaps because they failed again, and stay"
            );
        }
        let is_done = |of: &Selected| matches!(of.fate, Fate::Moved | Fate::Selected);
        let all_done = self.selected.values().all(is_done);
        let done = all_done && absent.is_empty() && !more && error.is_none();
        Ok(if done {
            CommandEnd::Done
        } else {
            CommandEnd::NotDone
        })
    }

    /// Counts the messages by their fate.
    fn counts(&self) -> BTreeMap<Fate, usize> {
        let mut counts = BTreeMap::new();
        for of in self.selected.values() {
            *counts.entry(of.fate).or_default() += 1;
        }
        counts
    }

    /// Says what the messages will do, and how many of them.
    fn summary(&self) -> String {
        if self.selected.is_empty() {
            let received = count(self.received, "message");
            return format!("{received} received, and none selected.");
        }
        let mut counts: BTreeMap<Next, usize> = BTreeMap::new();
        for next in self.selected.values().filter_map(|of| of.next) {
            *counts.entry(next).or_default() += 1;
        }
        let rows = counts.into_iter();
        let rows = rows.map(|(next, count)| [count.to_string(), next.0.into(), next.1.into()]);
        columns(["MESSAGES", "NEXT", "WHAT THE REDRIVEN MESSAGE DOES"], rows)
    }

    fn text(&self) -> String {
        if self.selected.is_empty() {
            return self.summary();
        }
        if self.is_dry {
            let row = |(id, of): (&String, &Selected)| {
                let next = of.next.map_or("", |next| next.0).to_owned();
                [id.clone(), of.key.clone().unwrap_or_default(), next]
            };
            let messages = columns(["MESSAGE", "KEY", "NEXT"], self.selected.iter().map(row));
            let group = " Of each group, SQS shows at most the first ten.";
            let group = if self.from.is_fifo() { group } else { "" };
            let selected = count(self.selected.len(), "message");
            let summary = self.summary();
            return format!("{messages}\n\n{summary}\n\n{selected} would be moved.{group}");
        }
        let counts = self.counts().into_iter();
        let rows = counts.map(|(end, count)| [count.to_string(), end.text().to_owned()]);
        columns(["MESSAGES", "END"], rows)
    }

    fn json(&self, absent: &[&String], more: bool) -> Value {
        let message = |(id, of): (&String, &Selected)| {
            let mut message = json!({"message_id": id, "key": of.key, "end": of.fate.name()});
            if let Some(Next(next, why)) = of.next {
                message["next"] = json!(next);
                message["why"] = json!(why);
            }
            message
        };
        let counts = self.counts();
        let of = |end| counts.get(&end).copied().unwrap_or(0);
        json!({
            "from": self.from.url,
            "to": self.to.url,
            "dry_run": self.is_dry,
            "by": "tool",
            "at_start": self.at_start.messages,
            "sent": of(Fate::Moved) + of(Fate::SentNotDeleted),
            "not_sent": of(Fate::NotSent),
            "unknown": of(Fate::Unknown),
            "not_deleted": of(Fate::SentNotDeleted),
            "messages": self.selected.iter().map(message).collect::<Vec<_>>(),
            "not_found": absent,
            "arrived": self.arrived,
            "hidden": self.unseen,
            "more": more,
        })
    }
}

/// Returns the copy's attributes: those of the message, without the ones that direct dead-lettering or an
/// earlier redrive added, and with the message's id if there is room.
fn attributes(message: &Message, id: &str) -> HashMap<String, Attribute> {
    let mut attributes = message.message_attributes.clone().unwrap_or_default();
    for name in [REASON, ERROR, KEY, REDRIVE_OF] {
        attributes.remove(name);
    }
    let redrive_of = Attribute::builder().data_type("String").string_value(id);
    if attributes.len() < MAX_ATTRIBUTES
        && let Ok(redrive_of) = redrive_of.build()
    {
        attributes.insert(REDRIVE_OF.into(), redrive_of);
    }
    attributes
}

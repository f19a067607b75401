//! `sqs-once dlq`: lists the messages of a dead-letter queue.

use std::{collections::BTreeMap, time::Duration};

use clap::{Args, Subcommand};
use serde_json::{Value, json};
use sqs_once::protocol::Timestamp;

use crate::{
    aws,
    dead_letters::{DeadLetter, NamedQueue, hide},
    message_move::Cancel,
    output::{CommandEnd, Error, Format, answer, columns, count, distance, first_line},
    redrive::Redrive,
    stop::StopSignal,
};

/// Messages stay hidden for at least this long if the command is killed before it makes them visible again.
const HIDE: Duration = Duration::from_secs(60);

#[derive(Debug, Subcommand)]
pub(crate) enum DlqCommand {
    /// Lists messages by reason and error. Receives them, and makes them visible again.
    #[command(after_help = "\
Example: sqs-once dlq list orders-dead --messages

The exit code is 0 also if the queue is empty.")]
    List(List),
    /// Moves messages back to the queue they came from.
    #[command(after_help = "\
Examples: sqs-once dlq redrive orders-dead --reason permanent_failure --dry-run
          sqs-once dlq redrive orders-dead --all --rate 10

Says what each message will do, by its record, and asks. With --all on a standard queue, SQS moves the messages,
until it has moved as many as the queue had at the start. Otherwise this command moves one by one: receive, send,
delete. It ends after a send or a deletion that SQS does not answer, and after a refusal that would repeat. On a
FIFO queue, a message that stays holds back the later ones of its message group. Ctrl-C ends both ways of moving.

Exit code 1: a selected message stays, a message named by --message was not received, messages may be left
that were not looked at, the command was interrupted, or the answer was not yes.")]
    Redrive(Box<Redrive>),
    /// Ends a move by SQS that `redrive --all` or somebody else has started.
    #[command(after_help = "\
Moved messages stay moved.

Exit code 1: SQS moves no messages of this queue.")]
    Cancel(Cancel),
}

#[derive(Args, Debug)]
pub(crate) struct List {
    /// URL, ARN or name of the dead-letter queue.
    queue: String,
    /// Number of messages to receive.
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..))]
    max: u32,
    /// Lists each message, with its key, under its reason.
    #[arg(long)]
    messages: bool,
}

impl DlqCommand {
    pub(crate) async fn run(self, format: Format) -> Result<CommandEnd, Error> {
        // Boxed, because without incremental compilation rustc rejects futures that are nested as deeply as these and the SDK's.
        match self {
            Self::List(list) => Box::pin(list.run(format)).await,
            Self::Redrive(redrive) => Box::pin(redrive.run(format)).await,
            Self::Cancel(cancel) => Box::pin(cancel.run(format)).await,
        }
    }
}

impl List {
    async fn run(self, format: Format) -> Result<CommandEnd, Error> {
        let queue = NamedQueue::find(&aws::config().await?, &self.queue).await?;
        // SQS may deliver a message twice, so we keep the messages by id, each with its latest receipt handle.
        let mut dead_letters = BTreeMap::new();
        let (mut rest, mut end) = (self.max as usize, Ok(()));
        let stop = StopSignal::listen();
        while rest > 0 && !stop.is_set() {
            match queue.receive(rest, hide(HIDE, self.max)).await {
                Ok(batch) if batch.is_empty() => break,
                Ok(batch) => {
                    rest = rest.saturating_sub(batch.len());
                    let by_id = |dead_letter: DeadLetter| (dead_letter.id.clone(), dead_letter);
                    dead_letters.extend(batch.iter().map(DeadLetter::of).map(by_id));
                }
                Err(error) => {
                    end = Err(error);
                    break;
                }
            }
        }
        queue.show_again(dead_letters.values()).await;
        end?;
        if stop.is_set() {
            return Err(Error::negative(
                "interrupted: the messages are visible again",
            ));
        }
        let (groups, more) = (group(dead_letters.values()), rest == 0);
        answer(
            format,
            || self.text(&queue, &groups, dead_letters.len(), more),
            || self.json(&queue, &groups, dead_letters.len(), more),
        )?;
        Ok(CommandEnd::Done)
    }

    fn text(&self, queue: &NamedQueue, groups: &Groups<'_>, received: usize, more: bool) -> String {
        if received == 0 {
            return format!(
                "Queue {} returned no messages. Messages that another receiver hides are not listed.",
                queue.name()
            );
        }
        let now = Timestamp::now();
        let age =
            |sent: Option<Timestamp>| sent.map(|time| distance(time, now)).unwrap_or_default();
        let rows = groups.iter().map(|((reason, error), dead_letters)| {
            [
                dead_letters.len().to_string(),
                (*reason).to_owned(),
                first_line(error),
                age(oldest(dead_letters)),
            ]
        });
        let mut text = columns(["MESSAGES", "REASON", "ERROR", "OLDEST SENT"], rows);
        if self.messages {
            let rows = groups.iter().flat_map(|(_, dead_letters)| dead_letters);
            let rows = rows.map(|dead_letter| {
                [
                    dead_letter.id.clone(),
                    dead_letter.reason.clone(),
                    dead_letter.key().unwrap_or_default().to_owned(),
                    dead_letter.group.clone().unwrap_or_default(),
                    age(dead_letter.sent_at),
                ]
            });
            let header = ["MESSAGE", "REASON", "KEY", "GROUP", "SENT"];
            text.push_str(&format!("\n\n{}", columns(header, rows)));
        }
        text.push_str(&format!("\n\n{} received.", count(received, "message")));
        if more {
            text.push_str(" Incomplete: --max was reached, so there may be more.");
        }
        if queue.is_fifo() {
            text.push_str(" Of each group, SQS shows at most the first ten.");
        }
        text
    }

    fn json(&self, queue: &NamedQueue, groups: &Groups<'_>, received: usize, more: bool) -> Value {
        let to_json = |((reason, error), dead_letters): &(Cause<'_>, Vec<&DeadLetter>)| {
            let mut group = json!({
                "reason": reason,
                "error": error,
                "count": dead_letters.len(),
                "oldest_sent_at": oldest(dead_letters).map(|time| time.to_string()),
            });
            if self.messages {
                group["messages"] = dead_letters.iter().copied().map(message).collect();
            }
            group
        };
        let groups: Vec<_> = groups.iter().map(to_json).collect();
        json!({"queue": queue.url, "received": received, "more": more, "groups": groups})
    }
}

fn message(dead_letter: &DeadLetter) -> Value {
    json!({
        "message_id": dead_letter.id,
        "key": dead_letter.key(),
        "group": dead_letter.group,
        "sent_at": dead_letter.sent_at.map(|time| time.to_string()),
        "receive_count": dead_letter.receive_count,
    })
}

fn oldest(dead_letters: &[&DeadLetter]) -> Option<Timestamp> {
    let sent = dead_letters.iter().filter_map(|of| of.sent_at);
    sent.min()
}

/// A reason and an error.
type Cause<'a> = (&'a str, &'a str);
type Groups<'a> = Vec<(Cause<'a>, Vec<&'a DeadLetter>)>;

/// Groups messages by their cause, the largest group first.
fn group<'a>(dead_letters: impl Iterator<Item = &'a DeadLetter>) -> Groups<'a> {
    let mut by_cause: BTreeMap<Cause<'_>, Vec<&DeadLetter>> = BTreeMap::new();
    for dead_letter in dead_letters {
        let cause = (&*dead_letter.reason, &*dead_letter.error);
        by_cause.entry(cause).or_default().push(dead_letter);
    }
    let mut groups: Vec<_> = by_cause.into_iter().collect();
    groups.sort_by_key(|(_, dead_letters)| std::cmp::Reverse(dead_letters.len()));
    groups
}

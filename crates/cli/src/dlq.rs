//! `sqs-once dlq`: lists the messages of a dead-letter queue.

use std::{collections::BTreeMap, time::Duration};

use aws_sdk_sqs::types::MessageSystemAttributeName as System;
use clap::{Args, Subcommand};
use serde_json::{Value, json};
use sqs_once::protocol::Timestamp;

use crate::{
    aws,
    dead_letters::{Cause, DeadLetter, MORE, Queue, Received, visibility_timeout},
    output::{End, Error, Format, answer, columns, count, distance, first_line},
    redrive::Redrive,
};

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Lists messages by reason and error. Receives them, and makes them visible again.
    #[command(after_help = "\
Example: sqs-once dlq list orders-dead --messages

The exit code is 0 also if the queue is empty.")]
    List(List),
    /// Moves messages back to the queue they came from: receive, send, delete.
    #[command(after_help = "\
Example: sqs-once dlq redrive orders-dead --reason permanent_failure --journal redrive.jsonl --table idempotency

Asks before the first send. Run an interrupted redrive again with the same journal.

Exit code 1: a selected message stays, a message named by --message was not received, --max was reached,
or the answer was not yes.")]
    Redrive(Box<Redrive>),
}

#[derive(Args, Debug)]
pub(crate) struct List {
    /// URL, ARN or name of the dead-letter queue.
    queue: String,
    /// Number of messages to receive.
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..))]
    max: u32,
    /// Time for which the messages are hidden, should this command be killed.
    #[arg(long, value_name = "TIME", default_value = "1m", value_parser = visibility_timeout)]
    hide: Duration,
    /// Lists each message, with its key, under its reason.
    #[arg(long)]
    messages: bool,
}

impl Command {
    pub(crate) async fn run(self, format: Format) -> Result<End, Error> {
        // In boxes, because without incremental compilation rustc rejects futures as deep as these with the SDK's.
        match self {
            Self::List(list) => Box::pin(list.run(format)).await,
            Self::Redrive(redrive) => Box::pin(redrive.run(format)).await,
        }
    }
}

impl List {
    async fn run(self, format: Format) -> Result<End, Error> {
        let queue = Queue::find(&aws::config().await?, &self.queue).await?;
        let Received { dead_letters, more } = queue.receive(self.max as usize, self.hide).await?;
        queue
            .show_again(&dead_letters.iter().collect::<Vec<_>>())
            .await;
        let groups = group(&dead_letters);
        answer(
            format,
            || self.text(&queue, &groups, dead_letters.len(), more),
            || self.json(&queue, &groups, dead_letters.len(), more),
        )?;
        Ok(End::Done)
    }

    fn text(&self, queue: &Queue, groups: &Groups<'_>, received: usize, more: bool) -> String {
        let now = Timestamp::now();
        let sent = |dead_letter: &DeadLetter| dead_letter.sent_at().map(|time| distance(time, now));
        let rows = groups.iter().map(|(cause, dead_letters)| {
            let oldest = dead_letters
                .iter()
                .min_by_key(|dead_letter| dead_letter.sent_at());
            [
                dead_letters.len().to_string(),
                cause.reason.clone(),
                first_line(&cause.error),
                oldest
                    .and_then(|dead_letter| sent(dead_letter))
                    .unwrap_or_default(),
            ]
        });
        if received == 0 {
            return format!(
                "Queue {} returned no messages. Messages that another receiver hides are not listed.",
                queue.name()
            );
        }
        let mut text = columns(["MESSAGES", "REASON", "ERROR", "OLDEST SENT"], rows);
        if self.messages {
            let rows = groups.iter().flat_map(|(cause, dead_letters)| {
                dead_letters.iter().map(move |dead_letter| {
                    [
                        dead_letter.id().to_owned(),
                        cause.reason.clone(),
                        dead_letter.key().unwrap_or_default().to_owned(),
                        dead_letter.group().unwrap_or_default().to_owned(),
                        sent(dead_letter).unwrap_or_default(),
                    ]
                })
            });
            let header = ["MESSAGE", "REASON", "KEY", "GROUP", "SENT"];
            text.push_str(&format!("\n\n{}", columns(header, rows)));
        }
        text.push_str(&format!("\n\n{} received.", count(received, "message")));
        if more {
            text.push_str(&format!(" Incomplete: {MORE}."));
        }
        if queue.is_fifo() {
            text.push_str(" Of each group, SQS shows at most the first ten.");
        }
        text
    }

    fn json(&self, queue: &Queue, groups: &Groups<'_>, received: usize, more: bool) -> Value {
        let to_json = |(cause, dead_letters): &(Cause, Vec<&DeadLetter>)| {
            let mut group = json!({
                "reason": cause.reason,
                "error": cause.error,
                "count": dead_letters.len(),
                "oldest_sent_at": dead_letters.iter().filter_map(|l| l.sent_at()).min().map(|t| t.to_string()),
            });
            if self.messages {
                group["messages"] = dead_letters
                    .iter()
                    .map(|dead_letter| message(dead_letter))
                    .collect();
            }
            group
        };
        let groups: Vec<_> = groups.iter().map(to_json).collect();
        json!({"queue": queue.url, "received": received, "more": more, "groups": groups})
    }
}

fn message(dead_letter: &DeadLetter) -> Value {
    json!({
        "message_id": dead_letter.id(),
        "key": dead_letter.key(),
        "group": dead_letter.group(),
        "sent_at": dead_letter.sent_at().map(|time| time.to_string()),
        "receive_count": dead_letter.system(&System::ApproximateReceiveCount),
    })
}

type Groups<'a> = Vec<(Cause, Vec<&'a DeadLetter>)>;

/// Groups messages by their cause, the largest group first.
fn group(dead_letters: &[DeadLetter]) -> Groups<'_> {
    let mut by_cause: BTreeMap<Cause, Vec<&DeadLetter>> = BTreeMap::new();
    for dead_letter in dead_letters {
        by_cause
            .entry(dead_letter.cause())
            .or_default()
            .push(dead_letter);
    }
    let mut groups: Vec<_> = by_cause.into_iter().collect();
    groups.sort_by_key(|(_, dead_letters)| std::cmp::Reverse(dead_letters.len()));
    groups
}

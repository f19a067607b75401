//! SQS's own way to move messages, `StartMessageMoveTask`, and `sqs-once dlq cancel`, which ends such a move.

use std::time::Duration;

use aws_sdk_sqs::{
    error::{ProvideErrorMetadata, SdkError},
    types::ListMessageMoveTasksResultEntry as Task,
};
use clap::Args;
use serde_json::json;
use sqs_once::internal::system::sleep;

use crate::{
    aws::{self, code, failed},
    dead_letters::{Depth, NamedQueue},
    output::{CommandEnd, Error, Format, answer, count},
    stop::{ProgressLine, StopSignal},
};

/// Shortest and longest time between two reads of the progress.
const PAUSES: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(5));
/// How many times we read the progress of a completed move again. On AWS, the number of moved messages may lag behind the
/// status.
const SETTLING: u32 = 10;
/// SQS's error codes for an action that it doesn't know, or doesn't support for this queue.
const UNSUPPORTED: [&str; 4] = [
    "InvalidAction",
    "InvalidParameterValue",
    "ResourceNotFoundException",
    "UnsupportedOperation",
];

/// A move of all messages of a queue. If SQS can't make it, the error is [`Error::Negative`].
pub(crate) struct Move<'a> {
    pub(crate) from: &'a NamedQueue,
    /// The queue's attributes at the start.
    pub(crate) at_start: &'a Depth,
    /// Messages per second.
    pub(crate) rate: u16,
    /// When the previous move started. For a moment after this one has started, SQS may still return the previous one.
    pub(crate) before: Option<i64>,
}

impl Move<'_> {
    /// Checks that SQS supports the move, and isn't already moving messages of this queue.
    pub(crate) async fn probe(&mut self) -> Result<(), Error> {
        let task = newest(self.from, &self.at_start.arn).await?;
        if task.as_ref().is_some_and(is_running) {
            return Err(Error::usage(format!(
                "nothing was changed: SQS already moves messages of this queue; `sqs-once dlq cancel {}` ends that",
                self.from.name()
            )));
        }
        self.before = task.map(|task| task.started_timestamp());
        Ok(())
    }

    pub(crate) async fn start(&self, to: &NamedQueue) -> Result<(), Error> {
        let start = self
            .from
            .client
            .start_message_move_task()
            .source_arn(&self.at_start.arn)
            .destination_arn(to.depth().await?.arn)
            .max_number_of_messages_per_second(self.rate.into());
        match start.send().await {
            // The response to the first request may have been lost. In that case, the move has started.
            Err(error) if self.task().await?.is_none() => Err(refusal(
                "start the move",
                "sqs:StartMessageMoveTask",
                &error,
            )),
            _ => Ok(()),
        }
    }

    /// Shows the progress, ends the move when enough messages are moved, and reports.
    pub(crate) async fn finish(
        &self,
        to: &NamedQueue,
        format: Format,
    ) -> Result<CommandEnd, Error> {
        let (task, cancelled) = self.follow().await.map_err(|error| {
            let name = self.from.name();
            Error::remote(format!(
                "{error}. SQS goes on with the move: `sqs-once dlq cancel {name}` ends it"
            ))
        })?;
        let (end, text) = match (task.status().unwrap_or_default(), cancelled) {
            ("COMPLETED", _) => ("completed", ""),
            (_, Some(CommandEnd::Done)) => ("all_moved", ", as many as the queue had at the start"),
            (_, Some(CommandEnd::NotDone)) => {
                ("interrupted", ", until the interrupt: the rest stays")
            }
            ("CANCELLED", None) => (
                "cancelled",
                ", until another program cancelled that: the rest stays",
            ),
            _ => ("failed", ", and then failed: the rest stays"),
        };
        let (moved, total) = (moved(&task), self.at_start.messages);
        let hidden = match end {
            "completed" if moved < total => self.from.depth().await?.hidden,
            _ => 0,
        };
        let more = !matches!(end, "completed" | "all_moved") || hidden > 0;
        answer(
            format,
            || {
                format!(
                    "SQS moved about {moved} of about {}{text}.",
                    count(total, "message")
                )
            },
            || {
                json!({
                    "from": self.from.url, "to": to.url, "dry_run": false, "by": "sqs", "at_start": total,
                    "sent": moved, "end": end, "hidden": hidden, "more": more,
                })
            },
        )?;
        if let Some(reason) = task.failure_reason() {
            eprintln!("sqs-once: SQS says why the move failed: {reason}");
        }
        if hidden > 0 {
            eprintln!(
                "sqs-once: another receiver hides about {}",
                count(hidden, "message")
            );
        }
        Ok(if more {
            CommandEnd::NotDone
        } else {
            CommandEnd::Done
        })
    }

    /// Waits for the end of the move. If this command cancelled it, also returns whether all messages had been moved by then.
    async fn follow(&self) -> Result<(Task, Option<CommandEnd>), Error> {
        let total = self.at_start.messages.max(1);
        let (mut stop, mut progress) = (StopSignal::listen(), ProgressLine::default());
        let (mut cancelled, mut settling) = (None, 0);
        loop {
            let mut moved_now = 0;
            if let Some(task) = self.task().await? {
                moved_now = moved(&task);
                if !is_running(&task) && task.status() != Some("CANCELLING") {
                    let is_settled = task.status() != Some("COMPLETED") || settling == SETTLING;
                    if is_settled || moved_now >= total {
                        return Ok((task, cancelled));
                    }
                    settling += 1;
                    sleep(PAUSES.0).await;
                    continue;
                }
                progress.say(&format!("{moved_now} of about {total} messages moved"));
                if cancelled.is_none() && (stop.is_set() || moved_now >= total) {
                    let is_done = moved_now >= total;
                    cancelled = Some(if is_done {
                        CommandEnd::Done
                    } else {
                        CommandEnd::NotDone
                    });
                    // The move may have ended in the meantime.
                    if let Err(error) = cancel(self.from, &task).await
                        && self.task().await?.as_ref().is_some_and(is_running)
                    {
                        return Err(error);
                    }
                    continue;
                }
            }
            let rest = u32::try_from(total.saturating_sub(moved_now)).unwrap_or(u32::MAX);
            let pause = Duration::from_secs(1) * rest / u32::from(self.rate);
            tokio::select! {
                () = sleep(pause.clamp(PAUSES.0, PAUSES.1)) => {}
                () = stop.wait(), if cancelled.is_none() => {}
            }
        }
    }

    /// Reads the progress. Returns `None` if SQS does not list this move.
    async fn task(&self) -> Result<Option<Task>, Error> {
        let task = newest(self.from, &self.at_start.arn).await?;
        Ok(task.filter(|task| Some(task.started_timestamp()) != self.before))
    }
}

#[derive(Args, Debug)]
pub(crate) struct Cancel {
    /// URL, ARN or name of the dead-letter queue.
    queue: String,
}

impl Cancel {
    pub(crate) async fn run(self, format: Format) -> Result<CommandEnd, Error> {
        let queue = NamedQueue::find(&aws::config().await?, &self.queue).await?;
        let task = newest(&queue, &queue.depth().await?.arn).await?;
        let Some(task) = task.filter(is_running) else {
            let name = queue.name();
            return Err(Error::negative(format!(
                "nothing was changed: SQS moves no messages of queue `{name}`"
            )));
        };
        cancel(&queue, &task).await?;
        let moved = moved(&task);
        answer(
            format,
            || {
                format!(
                    "Cancelled. SQS had moved about {}.",
                    count(moved, "message")
                )
            },
            || json!({"queue": queue.url, "sent": moved}),
        )?;
        Ok(CommandEnd::Done)
    }
}

/// Returns the newest move of a queue. At most one is running.
async fn newest(queue: &NamedQueue, arn: &str) -> Result<Option<Task>, Error> {
    let read = queue.client.list_message_move_tasks().source_arn(arn);
    let read = read.send().await;
    let read =
        read.map_err(|error| refusal("name the moves", "sqs:ListMessageMoveTasks", &error))?;
    Ok(read.results.unwrap_or_default().into_iter().next())
}

async fn cancel(queue: &NamedQueue, task: &Task) -> Result<(), Error> {
    let cancel = queue.client.cancel_message_move_task();
    let cancelled = cancel
        .set_task_handle(task.task_handle.clone())
        .send()
        .await;
    let failed = |error| failed("cancel the move", "sqs:CancelMessageMoveTask", &error);
    cancelled.map(drop).map_err(failed)
}

fn is_running(task: &Task) -> bool {
    task.status() == Some("RUNNING")
}

fn moved(task: &Task) -> usize {
    usize::try_from(task.approximate_number_of_messages_moved()).unwrap_or(0)
}

fn refusal<E>(action: &str, permission: &str, error: &SdkError<E>) -> Error
where
    E: ProvideErrorMetadata + std::error::Error + 'static,
{
    let code = code(error);
    if UNSUPPORTED.iter().any(|of| code.ends_with(of)) {
        Error::negative(format!("SQS does not {action} of this queue ({code})"))
    } else {
        failed(action, permission, error)
    }
}

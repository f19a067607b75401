//! The report of a redrive: how each message ended, as text and as JSON.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::Run;
use crate::{
    dead_letters::MORE,
    next_delivery::NextDelivery,
    output::{End, Error, Format, answer, columns, count},
};

/// How one message of a redrive ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum MoveStatus {
    /// Sent and deleted.
    Moved,
    /// An earlier run sent the message, and this run deleted it.
    Deleted,
    /// A run sent the message, and SQS has not confirmed the deletion.
    SentNotDeleted,
    /// SQS did not respond to the send, so the message may have been sent. It stays in the dead-letter queue.
    Unknown,
    /// SQS rejected the copy, or the copy cannot be made. The message stays in the dead-letter queue.
    Refused,
    /// An earlier message of its message group stays behind, or the time was up.
    NotTried,
}

impl MoveStatus {
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

    pub(super) const fn text(self) -> &'static str {
        match self {
            Self::Moved => "moved",
            Self::Deleted => "sent by an earlier run; now deleted",
            Self::SentNotDeleted => {
                "sent, but not deleted: run the same command again, with the same journal"
            }
            Self::Unknown => {
                "may have been sent, so it stays: look for SqsOnceRedriveOf with its id; to send it again, use another journal"
            }
            Self::Refused => "SQS rejected the copy, so it stays",
            Self::NotTried => "not tried, so it stays: run the same command again",
        }
    }

    const fn is_left(self) -> bool {
        !matches!(self, Self::Moved | Self::Deleted)
    }
}

/// A selected message.
pub(super) struct Selected {
    pub(super) key: Option<String>,
    pub(super) next_delivery: NextDelivery,
    pub(super) status: MoveStatus,
}

/// How the messages of a redrive ended, with counts.
#[derive(Default)]
pub(super) struct Report {
    /// By message id.
    pub(super) ends: BTreeMap<String, Selected>,
    /// The first error that left a message behind.
    pub(super) error: Option<String>,
    /// True if the last round ended before the queue was empty.
    pub(super) more: bool,
}

impl Report {
    pub(super) fn is_left(&self, message: &str) -> bool {
        self.ends
            .get(message)
            .is_none_or(|selected| selected.status.is_left())
    }

    fn count(&self) -> BTreeMap<(MoveStatus, NextDelivery), usize> {
        let mut counts = BTreeMap::new();
        for selected in self.ends.values() {
            *counts
                .entry((selected.status, selected.next_delivery))
                .or_default() += 1;
        }
        counts
    }
}

impl Run<'_> {
    pub(super) fn end(&self, format: Format) -> Result<End, Error> {
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
                    [id.clone(), key, selected.next_delivery.text().to_owned()]
                });
                let messages = columns(["MESSAGE", "KEY", "WHEN MOVED"], rows);
                return format!(
                    "{messages}\n\n{}{} would be moved.",
                    count(ends.len(), "message"),
                    self.rest_of_groups(),
                );
            }
            let counts = self.report.count().into_iter();
            let rows = counts.map(|((status, next_delivery), count)| {
                let (status, next_delivery) =
                    (status.text().to_owned(), next_delivery.text().to_owned());
                [count.to_string(), status, next_delivery]
            });
            columns(["MESSAGES", "END", "WHEN MOVED"], rows)
        };
        let json = || {
            let messages: Vec<Value> = ends
                .iter()
                .map(|(id, selected)| {
                    json!({
                        "message_id": id,
                        "key": selected.key,
                        "end": selected.status.name(),
                        "when_moved": selected.next_delivery.name(),
                    })
                })
                .collect();
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
            let why = if self.report.more {
                ""
            } else {
                ": another receiver may hide it"
            };
            eprintln!("sqs-once: message {id} was not received{why}");
        }
        let left = !self.with.dry_run && ends.values().any(|selected| selected.status.is_left());
        // If every named message of a standard queue was received, nothing else was looked for.
        let all_found = absent.is_empty() && !self.from.is_fifo();
        let by_id_alone = !self.with.all && self.with.reason.is_empty();
        let more = self.report.more && !(by_id_alone && all_found);
        if more {
            eprintln!("sqs-once: {MORE}");
        }
        let done = absent.is_empty() && !left && !more && self.report.error.is_none();
        Ok(if done { End::Done } else { End::NotDone })
    }
}

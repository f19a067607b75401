//! The rounds of a redrive: receives messages, selects those to move, asks, and moves them in order.

use std::collections::BTreeMap;

use sqs_once::protocol::Timestamp;
use tokio::time::Instant;

use super::{
    Run,
    report::{MoveStatus, Selected},
};
use crate::{
    dead_letters::{DeadLetter, KEY},
    journal::Journal,
    next_delivery::NextDelivery,
    output::{Error, columns, confirm, count},
    progress::Progress,
};

impl Run<'_> {
    /// Names the messages that the first round cannot show: SQS returns only the first ten of each message
    /// group.
    pub(super) fn rest_of_groups(&self) -> &'static str {
        if self.from.is_fifo() {
            " and all further messages of their groups"
        } else {
            ""
        }
    }

    /// Receives and moves messages. Returns whether there may be more to move: SQS shows the first ten
    /// messages of a message group, and the next ones only after these are deleted.
    pub(super) async fn round(&mut self, journal: Option<&mut Journal>) -> Result<bool, Error> {
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
        let dead_letters = received.dead_letters;
        self.received = self.received.max(dead_letters.len());
        let moved = self.move_selected(&dead_letters, journal, until).await;
        let left: Vec<_> = dead_letters
            .iter()
            .filter(|dead_letter| self.report.is_left(dead_letter.id()))
            .collect();
        self.from.show_again(&left).await;
        // On a FIFO queue, only the last round says whether messages are left. It may show groups that the first
        // one did not.
        let is_unseen = |dead_letter: &DeadLetter| {
            self.with.selects(dead_letter) && !self.report.ends.contains_key(dead_letter.id())
        };
        self.report.more = received.more || dead_letters.iter().any(is_unseen);
        Ok(moved? && self.from.is_fifo() && !self.ended)
    }

    /// Returns whether messages were moved.
    async fn move_selected(
        &mut self,
        dead_letters: &[DeadLetter],
        journal: Option<&mut Journal>,
        until: Instant,
    ) -> Result<bool, Error> {
        let first = self.report.ends.is_empty();
        let selected = self.select(dead_letters, first);
        if selected.is_empty() {
            return Ok(false);
        }
        let mut plan = BTreeMap::new();
        for dead_letter in &selected {
            let next_delivery = self.next_delivery(dead_letter).await;
            *plan.entry(next_delivery).or_insert(0) += 1;
            let end = Selected {
                key: dead_letter.attribute(KEY).map(str::to_owned),
                next_delivery,
                status: MoveStatus::NotTried,
            };
            self.report.ends.insert(dead_letter.id().to_owned(), end);
        }
        if first && !self.with.dry_run {
            let rows = plan
                .iter()
                .map(|(next_delivery, count): (&NextDelivery, &usize)| {
                    [count.to_string(), next_delivery.text().to_owned()]
                });
            eprintln!("{}\n", columns(["MESSAGES", "WHEN MOVED"], rows));
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
        for (index, dead_letter) in selected.into_iter().enumerate() {
            progress.show(
                index as f64 / count as f64,
                &format!("{index} of {count} messages"),
            );
            let group = dead_letter.group().filter(|_| self.from.is_fifo());
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
            let status = match self.move_one(dead_letter, journal).await {
                Ok(status) => status,
                Err(left) => {
                    let error = left.error.to_string();
                    self.report.error.get_or_insert(error);
                    self.ended |= left.ends_run;
                    left.status
                }
            };
            if let Some(selected) = self.report.ends.get_mut(dead_letter.id()) {
                selected.status = status;
            }
            // A message that was sent is ahead of its message group, whether or not it was deleted.
            if !matches!(
                status,
                MoveStatus::Moved | MoveStatus::Deleted | MoveStatus::SentNotDeleted
            ) {
                self.stopped.extend(group.map(str::to_owned));
            }
        }
        Ok(true)
    }

    /// Returns the messages to move, in the order of the queue. A message group moves as a whole.
    fn select<'l>(&mut self, dead_letters: &'l [DeadLetter], first: bool) -> Vec<&'l DeadLetter> {
        let with = self.with;
        if !self.from.is_fifo() {
            let fresh = |dead_letter: &&DeadLetter| first && with.selects(dead_letter);
            return dead_letters.iter().filter(fresh).collect();
        }
        if first {
            let selected = dead_letters
                .iter()
                .filter(|dead_letter| with.selects(dead_letter));
            let groups = selected.filter_map(|dead_letter| dead_letter.group());
            self.groups.extend(groups.map(str::to_owned));
        }
        let moves = |dead_letter: &&DeadLetter| {
            let known = dead_letter
                .group()
                .is_some_and(|group| self.groups.contains(group));
            known && !self.report.ends.contains_key(dead_letter.id())
        };
        dead_letters.iter().filter(moves).collect()
    }

    /// Returns what the record under the message's key means for the copy, which has a new message id.
    async fn next_delivery(&self, dead_letter: &DeadLetter) -> NextDelivery {
        let (Some(records), Some(key)) = (&self.records, dead_letter.key()) else {
            return NextDelivery::Unknown;
        };
        match records.get(key).await {
            Ok(None) => NextDelivery::Runs,
            Ok(Some(stored)) => match &stored.record {
                // The key contains the message id, and the copy gets a new id.
                Ok(record) if is_of_message(key, record.message_id.as_deref()) => {
                    NextDelivery::Runs
                }
                _ => NextDelivery::by(&stored, self.with.table.after_failure(), Timestamp::now()),
            },
            Err(error) => {
                eprintln!("sqs-once: {error}");
                NextDelivery::Unknown
            }
        }
    }
}

/// Returns whether the key was made from the message's id.
fn is_of_message(key: &str, message_id: Option<&str>) -> bool {
    let own = message_id.and_then(|id| key.strip_suffix(id));
    own.is_some_and(|namespace| namespace.ends_with('#'))
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

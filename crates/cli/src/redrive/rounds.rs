//! The rounds of a redrive: receives messages, selects those to move, asks, and moves them in order.

use std::collections::BTreeMap;

use sqs_once::protocol::Timestamp;
use tokio::time::Instant;

use super::{
    Run,
    report::{Fate, Selected},
};
use crate::{
    dead_letters::{DeadLetter, KEY},
    journal::Journal,
    output::{Error, columns, confirm, count},
    progress::Progress,
    verdict::Verdict,
};

impl Run<'_> {
    /// Names the messages that the first round cannot show: of each FIFO group, SQS returns only the first ten.
    pub(super) fn rest_of_groups(&self) -> &'static str {
        if self.from.is_fifo() {
            " and all further messages of their groups"
        } else {
            ""
        }
    }

    /// Receives and moves messages. Returns whether there may be more to move: of a FIFO group, SQS
    /// shows the first ten messages, and the next ones after these are deleted.
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
        self.report.more |= received.more;
        let letters = received.letters;
        self.received = self.received.max(letters.len());
        let moved = self.move_selected(&letters, journal, until).await;
        let left: Vec<_> = letters
            .iter()
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
            let rows = plan.iter().map(|(verdict, count): (&Verdict, &usize)| {
                [count.to_string(), verdict.text().to_owned()]
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
}

/// Returns whether the key is made of the message's id.
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

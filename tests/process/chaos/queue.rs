//! An SQS queue: visibility timeout, receive count, dead-letter queue, redrives, FIFO groups and repeated
//! deliveries.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use sqs_once::protocol::Timestamp;
use tokio::{
    sync::Notify,
    time::{Instant, sleep_until},
};

use crate::chaos::{
    ledger::{Delivery, Event, Ledger},
    pace::Machine,
    plan::{Message, Seed},
};

/// Attribute of a message that names it. Copies keep it.
pub(crate) const NAME: &str = "name";

/// Visibility timeout, times the pace of the machine. Longer than the function's timeout, as AWS requires.
const VISIBILITY_TIMEOUT: Duration = Duration::from_secs(3);

#[derive(Clone, Copy)]
pub(crate) struct Rules {
    /// Maximum number of messages that the event source mapping receives in a batch.
    pub(crate) batch: usize,
    pub(crate) max_receive_count: u32,
    /// Percentages of deliveries that leave the message visible to the next receive, and of
    /// deletions forgotten once. A FIFO queue has neither.
    pub(crate) duplicates: u32,
    /// Percentage of dead letters that are redriven once.
    pub(crate) redriven: u32,
}

/// Longest time from the dead-letter queue back to the queue, times the pace of the machine: some records have
/// expired by then.
const REDRIVE: Duration = Duration::from_secs(16);

/// One delivery.
#[derive(Clone, Debug)]
pub(crate) struct Received {
    pub(crate) message: Message,
    pub(crate) receive_count: u32,
}

impl Received {
    pub(crate) fn delivery(&self) -> Delivery {
        (self.message.id.clone(), self.receive_count)
    }
}

pub(crate) struct Queue {
    seed: Seed,
    pub(super) rules: Rules,
    pub(super) ledger: Arc<Ledger>,
    machine: Arc<Machine>,
    lines: Mutex<Lines>,
    changed: Notify,
}

/// Messages delivered in order: a FIFO group, or a single message.
type Line = VecDeque<Stored>;

#[derive(Default)]
struct Lines {
    /// Place of the next line.
    next: usize,
    of_group: HashMap<String, usize>,
    /// In the order of sending.
    waiting: BTreeMap<usize, Line>,
    of_message: HashMap<String, usize>,
}

struct Stored {
    message: Message,
    receives: u32,
    visible: Instant,
    deleted_before: bool,
    /// True if the dead-letter queue has a copy.
    copied: bool,
}

impl Queue {
    pub(crate) fn new(
        seed: Seed,
        rules: Rules,
        ledger: Arc<Ledger>,
        machine: Arc<Machine>,
        messages: Vec<Message>,
    ) -> Arc<Self> {
        let (start, mut lines) = (Instant::now(), Lines::default());
        for message in messages {
            lines.add((message, start), &ledger);
        }
        Arc::new(Self {
            seed,
            rules,
            ledger,
            machine,
            lines: Mutex::new(lines),
            changed: Notify::new(),
        })
    }

    /// The next batch, once one is visible; `None` when the queue is empty.
    pub(crate) async fn receive(&self) -> Option<Vec<Received>> {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            let (batch, next) = self.take();
            if !batch.is_empty() {
                return Some(batch);
            }
            let next = next?;
            tokio::select! {
                () = changed => {}
                () = sleep_until(next) => {}
            }
        }
    }

    /// Messages visible now, or the time of the next visibility.
    fn take(&self) -> (Vec<Received>, Option<Instant>) {
        let now = Instant::now();
        let (mut batch, mut next) = (Vec::new(), None::<Instant>);
        let mut lines = self.lines();
        let mut redriven = Vec::new();
        let Lines {
            waiting,
            of_message,
            ..
        } = &mut *lines;
        for line in waiting.values_mut() {
            if batch.len() == self.rules.batch {
                break;
            }
            // A message in flight holds back its whole group.
            let visible = line.iter().map(|stored| stored.visible).max();
            if visible.is_some_and(|visible| visible > now) {
                next = next.into_iter().chain(visible).min();
                continue;
            }
            let given_up = self.dead_letter_spent(line, of_message);
            redriven.extend(given_up.iter().filter_map(|message| self.redriven(message)));
            for stored in line.iter_mut().take(self.rules.batch - batch.len()) {
                batch.push(self.deliver(stored, now));
            }
        }
        waiting.retain(|_, line| !line.is_empty());
        for message in redriven {
            next = next.into_iter().chain([message.1]).min();
            lines.add(message, &self.ledger);
        }
        if lines.waiting.is_empty() {
            // A full batch need not wait.
            self.changed.notify_waiters();
        }
        (batch, next)
    }

    /// Moves messages that used up their receives to the dead-letter queue, and returns them.
    fn dead_letter_spent(
        &self,
        line: &mut Line,
        of_message: &mut HashMap<String, usize>,
    ) -> Vec<Message> {
        let mut given_up = Vec::new();
        line.retain(|stored| {
            let keep = stored.receives < self.rules.max_receive_count;
            if !keep {
                let message = stored.message.id.clone();
                of_message.remove(&message);
                self.ledger.note(Event::DeadLettered { message });
                if !stored.copied {
                    given_up.push(stored.message.clone());
                }
            }
            keep
        });
        given_up
    }

    /// The message as it comes back from the dead-letter queue, if it does, and the time of that.
    fn redriven(&self, dead: &Message) -> Option<(Message, Instant)> {
        let mut dice = self.seed.dice(("redriven", &dead.id));
        let message = (dead.redriven()).filter(|_| dice.u32(..100) < self.rules.redriven)?;
        self.ledger.note(Event::Redriven);
        let longest = self.machine.pace().of(REDRIVE);
        Some((message, Instant::now() + longest.mul_f64(dice.f64())))
    }

    /// The dead-letter queue got a copy of a message. A second copy of it stays there.
    pub(super) fn copied(&self, id: &str) {
        let mut lines = self.lines();
        let mut all = lines.line(id).into_iter().flatten();
        let stored = all.find(|stored| stored.message.id == id && !stored.copied);
        let redriven = stored.and_then(|stored| {
            stored.copied = true;
            self.redriven(&stored.message)
        });
        if let Some(message) = redriven {
            lines.add(message, &self.ledger);
        }
        drop(lines);
        self.changed.notify_waiters();
    }

    fn deliver(&self, stored: &mut Stored, now: Instant) -> Received {
        stored.receives += 1;
        let what = ("hidden", &stored.message.id, stored.receives);
        let hidden = self.seed.dice(what).u32(..100) >= self.rules.duplicates;
        stored.visible = if hidden {
            now + self.machine.pace().of(VISIBILITY_TIMEOUT)
        } else {
            self.changed.notify_one();
            now
        };
        Received {
            message: stored.message.clone(),
            receive_count: stored.receives,
        }
    }

    pub(crate) fn delete(&self, id: &str) {
        let mut lines = self.lines();
        let Some(line) = lines.line(id) else { return };
        if let Some(at) = line.iter().position(|stored| stored.message.id == id) {
            let stored = &mut line[at];
            let mut dice = self.seed.dice(("deleted", id));
            if !stored.deleted_before && dice.u32(..100) < self.rules.duplicates {
                // As from an SQS server that was down during the deletion.
                stored.deleted_before = true;
                stored.visible = Instant::now() + Duration::from_millis(dice.u64(..2000));
            } else {
                line.remove(at);
                lines.of_message.remove(id);
            }
        }
        drop(lines);
        self.changed.notify_waiters();
    }

    /// Only the newest receipt handle has an effect.
    pub(super) fn change_visibility(&self, receipt: &str, seconds: u64) {
        let (id, receives) = receipt
            .strip_prefix("receipt-")
            .and_then(|receipt| receipt.rsplit_once('-'))
            .unwrap();
        let mut lines = self.lines();
        let stored = lines.line(id).into_iter().flatten();
        let newest = |stored: &&mut Stored| {
            stored.message.id == id && stored.receives.to_string() == receives
        };
        if let Some(stored) = stored.into_iter().find(newest) {
            stored.visible = Instant::now() + Duration::from_secs(seconds);
        }
        drop(lines);
        self.changed.notify_waiters();
    }

    /// Messages sent, and neither deleted nor in the dead-letter queue.
    pub(crate) fn left(&self) -> usize {
        self.lines().waiting.values().map(Line::len).sum()
    }

    fn lines(&self) -> MutexGuard<'_, Lines> {
        self.lines.lock().unwrap()
    }
}

impl Lines {
    /// Sends a message that is visible from a time on.
    fn add(&mut self, (mut message, visible): (Message, Instant), ledger: &Ledger) {
        let sent = Timestamp::now() + visible.saturating_duration_since(Instant::now());
        message.sent_ms = sent.as_millis();
        ledger.note(Event::Sent(message.clone()));
        let place = self.next;
        self.next += 1;
        let group = message.group.clone();
        let line = group.map_or(place, |group| *self.of_group.entry(group).or_insert(place));
        self.of_message.insert(message.id.clone(), line);
        let stored = Stored {
            message,
            receives: 0,
            visible,
            deleted_before: false,
            copied: false,
        };
        self.waiting.entry(line).or_default().push_back(stored);
    }

    fn line(&mut self, id: &str) -> Option<&mut Line> {
        let line = self.of_message.get(id)?;
        self.waiting.get_mut(line)
    }
}

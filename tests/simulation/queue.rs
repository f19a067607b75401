//! [`Queue`]: an SQS queue with AWS's rules: visibility timeouts, receipts, receive counts, message groups, limits and a
//! dead-letter queue. Messages of another consumer are in it too, as if it were two.

use std::{
    collections::{BTreeMap, HashSet},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use sqs_once::protocol::Timestamp;
use tokio::{
    sync::Notify,
    time::{Instant, sleep_until},
};

use crate::{
    ledger::Event,
    plan::{Kind, Message, Plan},
    world::World,
};

/// SQS hides a message for at most twelve hours from its receive (*Amazon SQS API Reference*, "ChangeMessageVisibility").
const LONGEST: Duration = Duration::from_secs(12 * 3600);
/// How long a FIFO queue remembers deduplication ids.
const DEDUPLICATION: Duration = Duration::from_secs(300);

#[derive(Debug)]
pub struct Queue {
    stored: Mutex<Vec<Stored>>,
    dead: Mutex<Dead>,
    changed: Notify,
    visibility: Duration,
    max_receives: u32,
    fifo: bool,
    in_flight: usize,
    retention: Duration,
}

/// The dead-letter queue.
#[derive(Debug, Default)]
struct Dead {
    letters: Vec<Message>,
    /// When the last copy with each deduplication id was sent, on a FIFO queue.
    ids: BTreeMap<String, Instant>,
    redriven: usize,
}

#[derive(Debug)]
struct Stored {
    message: Message,
    sent: bool,
    gone: bool,
    receives: u32,
    arrives: Instant,
    visible: Instant,
    received: Instant,
    first_received: Option<Timestamp>,
}

/// One receive of a message.
#[derive(Clone, Debug)]
pub struct Received {
    pub message: Message,
    pub count: u32,
    pub first_received: Timestamp,
}

impl Stored {
    fn new(message: Message, arrives: Instant) -> Self {
        Self {
            message,
            sent: false,
            gone: false,
            receives: 0,
            arrives,
            visible: arrives,
            received: arrives,
            first_received: None,
        }
    }

    fn is_in_flight(&self, now: Instant) -> bool {
        !self.gone && self.receives > 0 && self.visible > now
    }
}

impl Received {
    pub fn receipt(&self) -> String {
        format!("{}/{}", self.message.id, self.count)
    }
}

impl Queue {
    pub fn new(plan: &Plan) -> Self {
        let now = Instant::now();
        let messages = plan.messages.iter();
        let stored = messages.map(|message| Stored::new(message.clone(), now + message.sent));
        Self {
            stored: Mutex::new(stored.collect()),
            dead: Mutex::default(),
            changed: Notify::new(),
            visibility: plan.timeouts.visibility,
            max_receives: plan.timeouts.max_receives,
            fifo: plan.fifo,
            in_flight: plan.in_flight,
            retention: plan.retention,
        }
    }

    /// Returns what happens to a message when it is handled.
    pub fn kind(&self, id: &str) -> Kind {
        let stored = self.stored();
        let found = stored.iter().find(|one| one.message.id == id);
        found.map_or(Kind::Good, |one| one.message.kind)
    }

    /// Returns up to `most` messages of one of the queues, once one is visible. `None` once `until` is over, or if the
    /// queue is empty and nobody will send to it.
    pub async fn receive(
        &self,
        world: &World,
        most: usize,
        until: Instant,
        other: bool,
    ) -> Option<Vec<Received>> {
        loop {
            let batch = self.receive_now(world, most, other);
            if !batch.is_empty() {
                return Some(batch);
            }
            let next = match self.next_visible(other) {
                Some(next) => next,
                None if world.is_redrive_due() => until,
                None => return None,
            };
            if Instant::now() >= until {
                return None;
            }
            let changed = std::pin::pin!(self.changed.notified());
            let wait = std::pin::pin!(sleep_until(next.min(until)));
            futures_util::future::select(changed, wait).await;
        }
    }

    /// Returns up to `most` messages of one of the queues that are visible now.
    pub fn receive_now(&self, world: &World, most: usize, other: bool) -> Vec<Received> {
        let now = Instant::now();
        let mut all = self.stored();
        for one in all.iter_mut() {
            if !one.gone && now >= one.arrives + self.retention {
                one.gone = true;
                let message = one.message.id.clone();
                world.note(Event::Expired { message });
            }
        }
        // A group waits while a message of it is in flight.
        let in_flight = all
            .iter()
            .filter(|one| one.message.in_other_queue == other && one.is_in_flight(now));
        let room = self.in_flight.saturating_sub(in_flight.clone().count());
        if room == 0 {
            world.note(Event::QueueFull);
        }
        let most = most.min(room);
        let closed: HashSet<String> = in_flight
            .filter_map(|one| one.message.group.clone())
            .collect();
        let mut batch = Vec::new();
        let first = if self.fifo {
            0
        } else {
            world.dice().below(all.len())
        };
        let number = all.len();
        for at in (0..number).map(|n| (first + n) % number) {
            let one = &mut all[at];
            if one.gone || one.message.in_other_queue != other || batch.len() == most {
                continue;
            }
            let group = one.message.group.as_ref();
            if one.visible > now || group.is_some_and(|group| closed.contains(group)) {
                continue;
            }
            let id = one.message.id.clone();
            if !one.sent {
                one.sent = true;
                world.note(Event::Sent {
                    message: id.clone(),
                });
            }
            if one.receives >= self.max_receives {
                one.gone = true;
                world.note(Event::ReceivesUsedUp {
                    message: id.clone(),
                });
                // SQS replaces the producer's.
                self.dead().letters.push(Message {
                    deduplication_id: group.is_some().then_some(id),
                    ..one.message.clone()
                });
                continue;
            }
            one.receives += 1;
            one.received = now;
            one.visible = now + self.visibility;
            let first_received = *one.first_received.get_or_insert(world.wall());
            if world.strikes(world.plan.rates.delivered_twice) {
                one.visible = now + world.dice().scaled(self.visibility);
            }
            batch.push(Received {
                message: one.message.clone(),
                count: one.receives,
                first_received,
            });
        }
        batch
    }

    /// Deletes a message. On a standard queue an old receipt may do it too, and on a FIFO queue it does not.
    pub fn delete(&self, world: &World, of: &Received) {
        let now = Instant::now();
        self.change(&of.message.id, |one| {
            let is_current = one.receives == of.count && (!self.fifo || one.visible > now);
            if is_current || !self.fifo && world.dice().chance(0.5) {
                one.gone = true;
            } else {
                let message = one.message.id.clone();
                world.note(Event::NotDeleted { message });
            }
        });
    }

    /// Forgets a deletion, as a server of SQS that was down: the message comes back. On a FIFO queue not before its
    /// visibility timeout, because its group waits for it.
    pub fn forget_deletion(&self, id: &str, after: Duration) {
        if !self.fifo {
            self.change(id, |one| one.visible = Instant::now() + after);
        }
    }

    /// Sets a visibility timeout.
    ///
    /// # Errors
    ///
    /// The code of SQS.
    pub fn hide(&self, receipt: &str, seconds: u64) -> Result<String, &'static str> {
        let (id, count) = receipt.rsplit_once('/').ok_or("ReceiptHandleIsInvalid")?;
        let now = Instant::now();
        let mut result = Err("ReceiptHandleIsInvalid");
        self.change(id, |one| {
            let until = now + Duration::from_secs(seconds);
            if one.gone || one.receives.to_string() != count {
            } else if one.visible <= now {
                result = Err("MessageNotInflight");
            } else if until > one.received + LONGEST {
                result = Err("InvalidParameterValue");
            } else {
                one.visible = until;
                result = Ok(id.to_owned());
            }
        });
        result
    }

    /// Takes the copy of a message into the dead-letter queue. A FIFO queue drops a copy with a known deduplication id.
    pub fn add_dead_letter(
        &self,
        id: &str,
        deduplication_id: Option<&str>,
        attributes: BTreeMap<String, String>,
    ) {
        let (now, stored) = (Instant::now(), self.stored());
        let mut dead = self.dead();
        if let Some(deduplication_id) = deduplication_id {
            let before = dead.ids.insert(deduplication_id.to_owned(), now);
            if before.is_some_and(|before| now < before + DEDUPLICATION) {
                return;
            }
        }
        let found = stored.iter().find(|one| one.message.id == id);
        dead.letters.extend(found.map(|one| Message {
            deduplication_id: deduplication_id.map(str::to_owned),
            attributes,
            ..one.message.clone()
        }));
    }

    /// Moves all dead letters back to the queue, as new messages. `mended`: they are good now.
    pub fn redrive(&self, world: &World, mended: bool) {
        let (mut dead, mut stored) = (self.dead(), self.stored());
        for letter in std::mem::take(&mut dead.letters) {
            dead.redriven += 1;
            let of = letter.id;
            let kind = if mended { Kind::Good } else { letter.kind };
            let mut attributes = letter.attributes;
            attributes.insert("SqsOnceRedriveOf".into(), of.clone());
            let message = Message {
                id: format!("d-{}", dead.redriven),
                kind,
                sent: world.age(),
                attributes,
                ..letter
            };
            let later = stored.partition_point(|one| one.arrives <= Instant::now());
            stored.insert(later, Stored::new(message.clone(), Instant::now()));
            world.note(Event::Redriven { of, message });
        }
        drop(stored);
        self.changed.notify_waiters();
    }

    /// Returns how many messages are neither acknowledged nor given up.
    pub fn left(&self) -> usize {
        self.stored().iter().filter(|one| !one.gone).count()
    }

    fn change(&self, id: &str, change: impl FnOnce(&mut Stored)) {
        if let Some(one) = self.stored().iter_mut().find(|one| one.message.id == id) {
            change(one);
        }
        self.changed.notify_waiters();
    }

    /// Returns when a message becomes visible, if nothing else changes. `None` if there is none left.
    fn next_visible(&self, other: bool) -> Option<Instant> {
        let (now, all) = (Instant::now(), self.stored());
        let of_queue = all.iter().filter(|one| one.message.in_other_queue == other);
        let in_flight = of_queue.clone().filter(|one| one.is_in_flight(now));
        let is_full = in_flight.clone().count() >= self.in_flight;
        let closed: HashSet<_> = in_flight
            .filter_map(|one| one.message.group.as_deref())
            .collect();
        let waits_for_itself = |one: &&Stored| {
            let group = one.message.group.as_deref();
            let waits = is_full || group.is_some_and(|group| closed.contains(group));
            one.is_in_flight(now) || !waits
        };
        let left = of_queue.filter(|one| !one.gone);
        left.filter(waits_for_itself).map(|one| one.visible).min()
    }

    fn stored(&self) -> MutexGuard<'_, Vec<Stored>> {
        self.stored.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn dead(&self) -> MutexGuard<'_, Dead> {
        self.dead.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

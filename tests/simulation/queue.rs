//! [`Queue`]: an SQS queue with AWS's rules: visibility timeouts, receipts, receive counts, message groups and a
//! dead-letter queue.

use std::{
    collections::HashSet,
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
    plan::{Message, Plan},
    world::World,
};

/// SQS hides a message for at most twelve hours from its receive (*Amazon SQS API Reference*, "ChangeMessageVisibility").
const LONGEST: Duration = Duration::from_secs(12 * 3600);

#[derive(Debug)]
pub struct Queue {
    stored: Mutex<Vec<Stored>>,
    changed: Notify,
    visibility: Duration,
    max_receives: u32,
    fifo: bool,
}

#[derive(Debug)]
struct Stored {
    message: Message,
    sent: bool,
    gone: bool,
    receives: u32,
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
        let stored = plan.messages.iter().map(|message| Stored {
            message: message.clone(),
            sent: false,
            gone: false,
            receives: 0,
            visible: now + message.sent,
            received: now,
            first_received: None,
        });
        Self {
            stored: Mutex::new(stored.collect()),
            changed: Notify::new(),
            visibility: plan.timeouts.visibility,
            max_receives: plan.timeouts.max_receives,
            fifo: plan.fifo,
        }
    }

    /// Returns up to `most` messages, once one is visible. `None` when the queue is empty, or `until` is over.
    pub async fn receive(
        &self,
        world: &World,
        most: usize,
        until: Instant,
    ) -> Option<Vec<Received>> {
        loop {
            let batch = self.receive_now(world, most);
            if !batch.is_empty() {
                return Some(batch);
            }
            let next = self.next_visible()?;
            if Instant::now() >= until {
                return None;
            }
            let changed = std::pin::pin!(self.changed.notified());
            let wait = std::pin::pin!(sleep_until(next.min(until)));
            futures_util::future::select(changed, wait).await;
        }
    }

    /// Returns up to `most` messages that are visible now.
    pub fn receive_now(&self, world: &World, most: usize) -> Vec<Received> {
        let now = Instant::now();
        let mut all = self.stored();
        // A group waits while a message of it is in flight.
        let in_flight = all.iter().filter(|one| one.is_in_flight(now));
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
            if one.gone || batch.len() == most {
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
                world.note(Event::ReceivesUsedUp { message: id });
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

    /// Deletes a message. The receipt of an earlier receive does it too.
    pub fn delete(&self, id: &str) {
        self.change(id, |one| one.gone = true);
    }

    /// Forgets a deletion, as a server of SQS that was down: the message comes back.
    pub fn forget_deletion(&self, id: &str, after: Duration) {
        self.change(id, |one| one.visible = Instant::now() + after);
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
    fn next_visible(&self) -> Option<Instant> {
        let (now, all) = (Instant::now(), self.stored());
        let closed: HashSet<_> = all
            .iter()
            .filter(|one| one.is_in_flight(now))
            .filter_map(|one| one.message.group.as_deref())
            .collect();
        let waits_for_itself = |one: &&Stored| {
            let group = one.message.group.as_deref();
            one.is_in_flight(now) || !group.is_some_and(|group| closed.contains(group))
        };
        let left = all.iter().filter(|one| !one.gone);
        left.filter(waits_for_itself).map(|one| one.visible).min()
    }

    fn stored(&self) -> MutexGuard<'_, Vec<Stored>> {
        self.stored.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

//! The ledger: one event after the other, as queue, gateway and table saw it.
//!
//! Events are in the order in which they were noted. Each is noted before any process can act upon
//! it: a completion before its response leaves for the worker, a charge before it is made.
//! `ends.rs` has the rules over them.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard},
};

use sqs_once::protocol::Key;
use tokio::sync::Notify;

use crate::chaos::{faults::Fault, pace::Pace, plan::Message};

/// One process: an execution environment. Numbers are never reused.
pub(crate) type Worker = u32;

/// Number of an invocation in its worker's life, from 1.
pub(crate) type Invocation = u32;

/// A message's id and its receive count.
pub(crate) type Delivery = (String, u32);

#[derive(Clone, Debug)]
#[expect(dead_code, reason = "a story shows all fields")]
pub(crate) enum Event {
    Sent(Message),
    /// A message of the dead-letter queue comes back. Its next `Sent` has a new id.
    Redriven,
    /// A process is about to start, with time limits at this pace.
    Started {
        worker: Worker,
        pace: Pace,
    },
    Delivered {
        delivery: Delivery,
        worker: Worker,
        invocation: Invocation,
        /// By the test's clock.
        at_ms: u64,
    },
    /// The verdict of the event source mapping on a delivery.
    Returned {
        delivery: Delivery,
        end: End,
    },
    /// A worker sent a copy of the message to the dead-letter queue, for this reason.
    Copied {
        message: String,
        reason: String,
    },
    /// The message used up its receives.
    DeadLettered {
        message: String,
    },
    /// A charge request reached the gateway. Its place in the ledger is its name.
    Charge {
        order: String,
        key: String,
        worker: Worker,
        taken: bool,
    },
    ChargeEnded {
        how: ChargeEnd,
    },
    /// A charge request is about to end the process that sent it.
    Doomed {
        worker: Worker,
        death: Death,
    },
    /// The table applied a claim.
    Claimed {
        key: String,
        /// True if it replaced a record whose retention had ended by the worker's clock.
        over_expired: bool,
    },
    /// The time to live of a record was over, and the table deleted it.
    Expired {
        key: String,
    },
    /// A called system goes down or comes back.
    Outage {
        of: System,
        begins: bool,
    },
    /// A fault hit a write.
    Faulted {
        fault: Fault,
    },
    /// Lambda gave the worker up; a worker that is thawed later continues.
    Died {
        worker: Worker,
        death: Death,
    },
    /// The process is about to be thawed.
    Thawed {
        worker: Worker,
    },
    /// The process was frozen before this invocation, while all its connections to DynamoDB died.
    Rested,
    /// A worker's log line about a delivery, read after the worker's end.
    DeliveryLog {
        delivery: Delivery,
        outcome: String,
        detail: String,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum End {
    /// Not reported as failed: deleted.
    Acknowledged,
    ReportedFailed,
    /// Failed with the whole batch: a function-level error, or a response that Lambda cannot read.
    BatchFailed,
    /// The worker died before its response.
    WorkerDied,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChargeEnd {
    Answered,
    /// 503, nothing charged.
    Busy,
    /// Cut off by the gateway, or the caller hung up.
    Unanswered,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum System {
    Gateway,
    Table,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Death {
    /// kill -9 in the middle of an invocation.
    Killed,
    /// kill -9 because of a message that ends its process.
    KilledByMessage,
    /// No response by the function's timeout, after a deliberate freeze.
    FrozenUntilTimeout,
    /// No response by the function's timeout, without a freeze: the machine was too slow.
    TimedOut,
    /// The process ended by itself.
    Crashed,
    /// The run is over.
    RunEnded,
}

#[derive(Default)]
pub(crate) struct Ledger {
    events: Mutex<Vec<Event>>,
    /// Notified of charges and dooms, the events that others wait for.
    noted: Notify,
    /// The key of each call key, by the claim that it belongs to.
    keys: Mutex<HashMap<String, String>>,
}

impl Ledger {
    /// Records `event` and returns its place.
    pub(crate) fn note(&self, event: Event) -> usize {
        let mut events = self.events();
        let awaited = matches!(event, Event::Charge { .. } | Event::Doomed { .. });
        events.push(event);
        if awaited {
            self.noted.notify_waiters();
        }
        events.len() - 1
    }

    /// A claim was applied, so that its handler may send this call key.
    pub(crate) fn will_call(&self, key: &str, generation: u64) {
        let call_key = Key::from_stored(key).call_key(generation);
        self.keys.lock().unwrap().insert(call_key, key.to_owned());
    }

    /// The key of a call key. Panics for one that no claim has.
    pub(crate) fn key_of(&self, call_key: &str) -> String {
        self.keys.lock().unwrap()[call_key].clone()
    }

    pub(crate) fn events(&self) -> MutexGuard<'_, Vec<Event>> {
        self.events.lock().unwrap()
    }

    /// Returns once a charge request of the worker has reached the gateway.
    pub(crate) async fn charge_by(&self, worker: Worker) {
        let charge =
            |event: &Event| matches!(event, Event::Charge { worker: by, .. } if *by == worker);
        self.next(|event| charge(event).then_some(())).await;
    }

    /// Returns the worker's death once a message is about to end its process.
    pub(crate) async fn doom_of(&self, worker: Worker) -> Death {
        let doom = |event: &Event| match event {
            Event::Doomed { worker: of, death } if *of == worker => Some(*death),
            _ => None,
        };
        self.next(doom).await
    }

    /// Waits for the next charge or doom that `wanted` returns something for.
    async fn next<T>(&self, wanted: impl Fn(&Event) -> Option<T>) -> T {
        let mut read = self.events().len();
        loop {
            let noted = self.noted.notified();
            tokio::pin!(noted);
            noted.as_mut().enable();
            {
                let events = self.events();
                if let Some(found) = events[read..].iter().find_map(&wanted) {
                    return found;
                }
                read = events.len();
            }
            noted.await;
        }
    }
}

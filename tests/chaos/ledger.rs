//! What happened, one event after the other, as queue, gateway and table saw it.
//!
//! The order of events is the order in which they were noted, and each is noted before anybody
//! can act upon it: a completion before its answer leaves for the worker, a charge before it is
//! taken. What the events must not say is in `audit.rs`.

use std::sync::{Mutex, MutexGuard};

use crate::{faults::Fault, plan::Message};

/// One process: an execution environment. Numbers are never used again.
pub(crate) type Worker = u32;

/// A message's id and its receive count.
pub(crate) type Delivery = (String, u32);

#[derive(Clone, Debug)]
pub(crate) enum Event {
    Sent(Message),
    Delivered {
        delivery: Delivery,
        worker: Worker,
    },
    /// What the event source mapping made of a delivery.
    Returned {
        delivery: Delivery,
        worker: Worker,
        end: End,
    },
    /// The message was received too often.
    DeadLettered {
        message: String,
    },
    /// A request for a charge reached the gateway. Its place in the ledger is its name.
    Charge {
        order: String,
        key: String,
        worker: Worker,
        taken: bool,
    },
    ChargeEnded {
        charge: usize,
        how: ChargeEnd,
    },
    /// The table took a claim at `at_ms`. Its worker made it at `made_ms`, by its own clock.
    Claimed {
        key: String,
        owner: String,
        message: String,
        worker: Worker,
        made_ms: u64,
        at_ms: u64,
        lease_until_ms: u64,
    },
    /// The table took the end of a claim.
    Settled {
        key: String,
        owner: String,
        as_what: Settled,
    },
    /// Something came between a worker and the table, in a write about this key.
    Faulted {
        key: String,
        worker: Worker,
        fault: Fault,
    },
    /// It was made to stand still; what it had seen by then was noted before.
    Frozen {
        worker: Worker,
    },
    /// For the event source mapping; a worker that is thawed later goes on.
    Died {
        worker: Worker,
        death: Death,
    },
    /// It is about to go on.
    Thawed {
        worker: Worker,
    },
    /// A worker's log line about a delivery, read when the worker is gone.
    Said {
        delivery: Delivery,
        outcome: String,
        detail: String,
    },
    /// A worker's log line: its handler is about to run over an attempt that may have had its
    /// effect. `since` is when the earliest of them was claimed.
    Informed {
        worker: Worker,
        key: String,
        since: String,
    },
    /// A worker's log line: it had to answer before the message was done, as the machine stood
    /// still.
    Late {
        message: String,
        worker: Worker,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum End {
    /// Not reported as failed: deleted.
    Acknowledged,
    ReportedFailed,
    /// With the whole batch: a function-level error, or a response that Lambda can't read.
    BatchFailed,
    /// The worker was gone before it answered.
    WorkerDied,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChargeEnd {
    Answered,
    /// 503, nothing charged.
    Busy,
    /// Cut off by the gateway, or nobody waited for the answer.
    Unanswered,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Settled {
    Completed,
    Failed,
    LeaseEnded,
    Restored,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Death {
    /// kill -9 in the middle of an invocation.
    Killed,
    /// It did not answer by the function's timeout, having been stopped on purpose.
    FrozenUntilTimeout,
    /// It did not answer by the function's timeout, and nobody knows why.
    TimedOut,
    /// It ended by itself.
    Crashed,
    /// The run is over.
    SentHome,
}

#[derive(Default)]
pub(crate) struct Ledger(Mutex<Vec<Event>>);

impl Ledger {
    /// Writes `event` down, and tells its place.
    pub(crate) fn note(&self, event: Event) -> usize {
        let mut events = self.0.lock().unwrap();
        events.push(event);
        events.len() - 1
    }

    pub(crate) fn events(&self) -> MutexGuard<'_, Vec<Event>> {
        self.0.lock().unwrap()
    }
}

//! [`Ledger`]: everything that happened in a world, in order. The oracle reads it, and so does a person.

use std::{
    fmt,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

use crate::plan::Kind;

/// Number of a process, in the order of their starts.
pub type Worker = usize;

/// Number of a handler's run, in the order of their starts.
pub type Run = usize;

#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    Sent {
        message: String,
    },
    Received {
        message: String,
        count: u32,
        batch: usize,
    },
    /// The receives of the message are used up.
    ReceivesUsedUp {
        message: String,
    },
    Copied {
        message: String,
        reason: String,
    },
    Hidden {
        message: String,
        seconds: u64,
    },
    Invoked {
        batch: usize,
        worker: Worker,
    },
    Answered {
        batch: usize,
        worker: Worker,
        took: Duration,
        failed: Vec<String>,
    },
    /// The response cannot be read, or names a message wrongly.
    BadResponse {
        batch: usize,
        why: String,
    },
    /// The invocation failed, with the error of the consumer.
    InvocationFailed {
        batch: usize,
        error: String,
    },
    /// The process ended during the invocation.
    InvocationLost {
        batch: usize,
    },
    TimedOut {
        batch: usize,
        worker: Worker,
        frozen: bool,
    },
    Throttled {
        batch: usize,
    },
    Acknowledged {
        message: String,
        completed: bool,
    },
    Started {
        worker: Worker,
        skew_ms: i64,
    },
    Killed {
        worker: Worker,
    },
    Frozen {
        worker: Worker,
        clock_stops: bool,
    },
    Thawed {
        worker: Worker,
    },
    Claimed {
        key: String,
        owner: String,
        message: String,
        worker: Worker,
        was: &'static str,
        lease_left_ms: Option<i64>,
    },
    Settled {
        key: String,
        worker: Worker,
        was: &'static str,
        is: &'static str,
    },
    TableFault {
        key: String,
        worker: Worker,
        fault: &'static str,
    },
    HandlerStarted {
        run: Run,
        message: String,
        key: String,
        order: String,
        worker: Worker,
        told: bool,
        kind: Kind,
    },
    Charged {
        run: Run,
        key: String,
        taken: bool,
    },
    GatewayRefused {
        run: Run,
    },
    /// The handler got no answer of the gateway.
    GatewaySilent {
        run: Run,
    },
    /// A call to SQS was refused or got no answer.
    SqsFault {
        worker: Worker,
    },
    HandlerEnded {
        run: Run,
        how: &'static str,
    },
    Outcome {
        message: String,
        count: u32,
        outcome: &'static str,
        worker: Worker,
    },
    Quiet {
        left: usize,
    },
}

#[derive(Debug)]
pub struct Ledger {
    start: Instant,
    events: Mutex<Vec<(Duration, Event)>>,
}

impl Default for Ledger {
    fn default() -> Self {
        Self {
            start: Instant::now(),
            events: Mutex::default(),
        }
    }
}

impl Ledger {
    pub fn note(&self, event: Event) {
        let mut events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        events.push((self.start.elapsed(), event));
    }

    pub fn take(&self) -> Vec<(Duration, Event)> {
        std::mem::take(&mut self.events.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The events that mention one of these names, as a text for people.
pub struct Story<'a> {
    pub events: &'a [(Duration, Event)],
    pub names: Vec<String>,
}

impl fmt::Display for Story<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, event) in self.events {
            let text = format!("{event:?}");
            if self
                .names
                .iter()
                .any(|name| text.contains(&format!("\"{name}\"")))
            {
                writeln!(f, "{:>12.3} s  {text}", at.as_secs_f64())?;
            }
        }
        Ok(())
    }
}

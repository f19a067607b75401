//! [`Ledger`]: everything that happened in a world, in order. The oracle reads it, and so does a person.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use serde_json::Value;
use tokio::time::Instant;

use crate::plan::{Kind, Message};

/// Number of a process, in the order of their starts.
pub type Worker = usize;

/// Number of a handler's run, in the order of their starts.
pub type Run = usize;

#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    Sent {
        message: String,
    },
    /// A dead letter went back to the queue as a new message.
    Redriven {
        of: String,
        message: Message,
    },
    /// The message was older than the queue's retention.
    Expired {
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
        batch: usize,
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
    /// So many messages are in flight that SQS delivers none.
    QueueFull,
    /// A deletion with an old receipt did nothing.
    NotDeleted {
        message: String,
    },
    /// The dead-letter queue did not take a copy.
    CopyRefused {
        message: String,
    },
    /// An operator ended the lease of a record.
    Released {
        key: String,
    },
    /// An operator deleted a record.
    Deleted {
        key: String,
    },
    Settled {
        key: String,
        worker: Worker,
        was: &'static str,
        is: &'static str,
    },
    /// Writes that arrive at the table in one request.
    BatchedWrites {
        worker: Worker,
        keys: Vec<String>,
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
    /// What the consumer counted in an invocation, and how many values its metrics with several values had.
    Metrics {
        batch: usize,
        counts: BTreeMap<String, u64>,
    },
    /// Bytes of bodies that a process held at most, and once it had no invocation.
    Held {
        worker: Worker,
        most: usize,
        now: usize,
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

    /// Notes a line that a process wrote to standard output, if it has the metrics of a batch.
    pub fn note_metrics(&self, line: &[u8]) {
        let line: Value = serde_json::from_slice(line).unwrap_or_default();
        let request_id = line["span"]["requestId"].as_str();
        let batch = request_id.and_then(|id| id.strip_prefix("r-")?.parse().ok());
        let (Some(batch), "batch processed") = (batch, line["message"].as_str().unwrap_or(""))
        else {
            return;
        };
        let count = |value: &Value| match value {
            Value::Array(several) => Some(several.len() as u64),
            value => value.as_u64(),
        };
        let fields = line.as_object().into_iter().flatten();
        let counts = fields.filter_map(|(name, value)| Some((name.clone(), count(value)?)));
        let counts = counts.collect();
        self.note(Event::Metrics { batch, counts });
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

//! [`Ledger`]: everything that happened in a world, in order. The oracle reads it, and so does a person.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

use crate::plan::{Kind, Message};

/// Number of a process, in the order of their starts.
pub type Worker = usize;

/// Number of a handler's run, in the order of their starts.
pub type Run = usize;

/// The open attempts that a handler sees as prior ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Told {
    /// When the earliest made its claim, in milliseconds since the epoch by the clock of its worker.
    pub since_ms: Option<u64>,
    /// One may have had another payload.
    pub other_payload: bool,
}

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
        error: String,
        attributes: BTreeMap<String, String>,
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
    /// A process started, with this release.
    Started {
        worker: Worker,
        release: usize,
    },
    /// A process started, or its wall clock stepped.
    ClockSet {
        worker: Worker,
        ahead_ms: i64,
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
        message: String,
        worker: Worker,
        was: &'static str,
        lease_left_ms: Option<i64>,
        /// How many attempts alone the record counts, this one among them.
        attempts_alone: u64,
        /// Milliseconds since the epoch by the clock of the worker, which made the claim before it sent it.
        made_ms: u64,
    },
    /// A process sends a claim that counts an attempt alone.
    ClaimsAlone {
        key: String,
        worker: Worker,
    },
    /// A process learned that a record is not as its swap expects.
    Refused {
        key: String,
        message: String,
        worker: Worker,
        found: &'static str,
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
    /// The time to live of a record is over: the table deletes it, or a claim ignores it.
    Forgotten {
        key: String,
    },
    /// A write to the application's own items was applied.
    Applied {
        key: String,
    },
    /// A lookup was answered.
    LookedUp {
        key: String,
        worker: Worker,
        found: bool,
    },
    /// A lookup got no answer.
    LookUpFailed {
        worker: Worker,
    },
    /// The consumer called `on_duplicate` for a delivery.
    CalledBack {
        message: String,
        count: u32,
        worker: Worker,
        key: String,
        call_key: String,
    },
    /// A duplicate got the output of its operation, or learned that it was not stored.
    Replayed {
        key: String,
        output: Option<String>,
    },
    /// A record got the failure of a message. It is settled by it.
    Failed {
        key: String,
        message: String,
        error: String,
    },
    Settled {
        key: String,
        worker: Worker,
        was: &'static str,
        is: &'static str,
        /// The output, once it is completed and if it is stored.
        output: Option<String>,
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
        told: Option<Told>,
        call_key: String,
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
    /// The gateway declined. `again`: as it had declined this call key before.
    GatewayDeclined {
        run: Run,
        call_key: String,
        again: bool,
    },
    /// The handler got no answer of the gateway.
    GatewaySilent {
        run: Run,
    },
    /// A call to SQS was refused or got no answer.
    SqsFault {
        worker: Worker,
    },
    /// A call to S3 was refused or got no answer.
    S3Fault {
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
    /// A transaction put an event into the outbox, with this time in its item.
    Published {
        key: String,
        id: String,
        name: String,
        group: String,
        body: String,
        stamp: Duration,
    },
    /// The target took an event of the relay, or its dead-letter queue did, with this reason.
    Relayed {
        id: String,
        name: String,
        body: String,
        group: Option<String>,
        dead: Option<String>,
    },
    /// A queue did not take an event.
    EventRefused {
        id: String,
    },
    /// The target throttled the call with an event, or the event's entry.
    EventThrottled {
        id: String,
    },
    /// The mapping lost its place in the stream. It reads the records of a batch again, and cuts them otherwise.
    ReadAgain {
        batch: usize,
    },
    /// What the consumer counted in an invocation, and how many values its metrics with several values had.
    Metrics {
        batch: usize,
        counts: BTreeMap<&'static str, u64>,
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

impl Event {
    /// Returns the batch whose invocation ends with this event.
    pub const fn ended_batch(&self) -> Option<usize> {
        match self {
            Self::Answered { batch, .. }
            | Self::InvocationLost { batch }
            | Self::InvocationFailed { batch, .. }
            | Self::BadResponse { batch, .. } => Some(*batch),
            _ => None,
        }
    }
}

/// The metrics and fields of a batch's line that the oracle compares.
const COUNTS: [&str; 11] = [
    "failed",
    "BatchSize",
    "Completed",
    "Duplicates",
    "DuplicatesOfOtherQueue",
    "Reconciled",
    "DeadLettered",
    "CompletionsUnrecorded",
    "LeasesLost",
    "RetryableFailures",
    "HandlerDuration",
];

/// Returns the text after `name`. A parser of JSON would take a tenth of the simulation's time.
fn after<'a>(line: &'a str, name: &str) -> Option<&'a str> {
    line.split_once(name).map(|(_, after)| after)
}

fn number(text: &str) -> Option<u64> {
    let end = text.find(|char: char| !char.is_ascii_digit())?;
    text[..end].parse().ok()
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
    pub fn note_metrics(&self, line: &str) {
        let request_id = after(line, "\"requestId\":\"r-");
        let Some(batch) = request_id.and_then(number) else {
            return;
        };
        if !line.contains("\"message\":\"batch processed\"") {
            return;
        }
        let counts = COUNTS.iter().filter_map(|&name| {
            let value = after(line, &format!("\"{name}\":"))?;
            let count = match value.strip_prefix('[') {
                Some(several) => several.split(']').next()?.split(',').count() as u64,
                None => number(value)?,
            };
            Some((name, count))
        });
        let counts = counts.collect();
        let batch = usize::try_from(batch).unwrap_or(usize::MAX);
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
                .any(|name| name == "all" || text.contains(&format!("\"{name}\"")))
            {
                writeln!(f, "{:>12.3} s  {text}", at.as_secs_f64())?;
            }
        }
        Ok(())
    }
}

//! [`State`]: messages, records, processes, the network and the clock. Records, claims and settlements are the
//! library's own values.

use std::{fmt, sync::Arc, time::Duration};

use sqs_once::{
    internal::Circuit,
    protocol::{
        ClaimRequest, FencingToken, Key, Namespace, Owner, PriorState, Record, Settlement,
        State as Status, Timestamp,
    },
};

use crate::processes::{promises::Promise, world::World};

/// The first second.
const START: u64 = 1_800_000_000;

pub fn time(second: u64) -> Timestamp {
    Timestamp::from_millis((START + second) * 1000)
}

/// The second of a time. Times before the start become 0.
pub fn second(time: Timestamp) -> u64 {
    time.as_secs().saturating_sub(START)
}

#[derive(Clone, Debug, PartialEq)]
pub struct State {
    /// Seconds since the start.
    pub now: u64,
    pub messages: Vec<Message>,
    /// By key.
    pub operations: Vec<Operation>,
    pub processes: Vec<Process>,
    pub network: Vec<InFlight>,
    /// Troubles that may still come.
    pub left: Troubles,
    /// The first promise that was broken. Nothing happens after that.
    pub broken: Option<Promise>,
}

/// How often something may go wrong.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Troubles {
    /// A process is ended from outside.
    pub crashes: u8,
    /// Time passes while a process is at work.
    pub freezes: u8,
    /// A worker waits in vain for an answer: the request or the answer is lost, or the request is late.
    pub losses: u8,
    /// A request of a process that ended arrives later. Without this, it is lost, or arrived before.
    pub late: u8,
    /// A request arrives twice.
    pub copies: u8,
    /// SQS delivers a message although it is hidden or was acknowledged.
    pub repeats: u8,
    /// A handler fails, and may be tried again.
    pub failures: u8,
    /// DynamoDB deletes an expired record.
    pub deletions: u8,
}

/// How the handler of a message behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// It succeeds, if it doesn't fail for now.
    Good,
    /// It ends its process. A look-up of its effect may do so too.
    Killer,
    /// It fails permanently.
    Declined,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Message {
    pub kind: Kind,
    pub operation: usize,
    pub receives: u8,
    pub visible_at: u64,
    pub fate: Fate,
    /// True once a process ended with this message, or could not record an end: it may be isolated.
    pub may_be_suspect: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fate {
    InQueue,
    Acknowledged,
    DeadLetter(Reason),
}

/// Why a message was copied to the dead-letter queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    Declined,
    Crashed,
}

/// One receive of a message, which makes one claim: the model's owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Receive {
    pub message: usize,
    pub number: u8,
}

impl Receive {
    pub fn owner(self) -> Owner {
        Owner::from_stored(format!("m{}r{}", self.message, self.number))
    }
}

impl fmt::Display for Receive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "m{}, receive {}", self.message, self.number)
    }
}

/// One key: its record, and what really happened.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Operation {
    pub record: Option<Arc<Record>>,
    pub facts: Facts,
}

/// The facts, whatever the record says.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Facts {
    /// Whose completion was recorded.
    pub completed: Option<Receive>,
    /// Messages whose permanent failure was recorded.
    pub failed: Vec<(usize, Reason)>,
    /// Attempts that began and have no recorded end.
    pub unended: Vec<Receive>,
    /// Attempts alone in a row without a recorded end, the current one included.
    pub alone: Vec<Receive>,
    /// When the last of them began.
    pub alone_since: Option<u64>,
    /// How often the handler, or its look-up, ended its process while it ran alone, and the answer to its claim
    /// was not lost.
    pub kills_alone: usize,
    /// Claims that were ended while a copy of them was on the way.
    pub ended: Vec<Receive>,
    /// Attempts whose effect happened.
    pub effects: Vec<Receive>,
    /// Effects on their way. Each happens until this time, or never.
    pub on_the_way: Vec<(Receive, u64)>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Process {
    /// How far its clock is ahead.
    pub ahead: u64,
    /// When its handlers must end, by its own clock.
    pub deadline: u64,
    pub tasks: Vec<Task>,
    pub circuit: Option<Arc<Circuit>>,
    /// By its own clock, the time before which no probe may start.
    pub open_until: Option<u64>,
}

/// A message in a process.
#[derive(Clone, Debug, PartialEq)]
pub struct Task {
    pub receive: Receive,
    pub claim: Arc<ClaimRequest>,
    pub step: Step,
    /// Copies of the claim without an answer, some of which may still arrive.
    pub copies: u8,
    /// True once its handler was to start.
    pub began: bool,
    /// True once its attempt was to be counted as one alone.
    pub alone: bool,
    /// True if it looks up the effect of earlier attempts, and its handler does not run.
    pub only_looks_up: bool,
    /// True once its handler sent the effect.
    pub sent: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// It asks the circuit.
    Waits,
    /// Its claim is on the way.
    Claims,
    /// It holds its claim.
    Holds(Arc<PriorState>),
    /// It holds its claim, and waits to run alone. Holds the attempts alone so far.
    Suspect(Arc<PriorState>, u64),
    /// The renewal that counts its attempt alone is on the way.
    Counts(Arc<PriorState>),
    /// It looks up the effect of earlier attempts.
    LooksUp(Arc<PriorState>),
    /// Its handler runs. True if an earlier attempt began and has no recorded end.
    Runs(Arc<PriorState>, bool),
    /// Its settlement is on the way. Holds how the message ends then.
    Settles(End),
    /// Its claim got no answer, and the settlement that ends the lease is on the way. True for the second one.
    Abandons(bool),
    Ended(End),
}

/// How a message ended in its process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum End {
    /// Completed now or before.
    Done,
    /// Its permanent failure is recorded.
    Failed(Reason),
    /// It returns to the queue, and is hidden until then.
    Returns(u64),
}

/// A request on its way to the table.
#[derive(Clone, Debug, PartialEq)]
pub struct InFlight {
    pub receive: Receive,
    pub request: Arc<Request>,
    /// True if the worker waits for its answer.
    pub awaited: bool,
    /// True if the network made this copy, of which no worker knows.
    pub is_copy: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Request {
    Claim(Arc<ClaimRequest>),
    Settle {
        fence: FencingToken,
        settlement: Settlement,
        now: Timestamp,
        attempt: AttemptFacts,
    },
}

impl Request {
    pub fn name(&self) -> &'static str {
        match self {
            Self::Claim(_) => "claim",
            Self::Settle { settlement, .. } => settlement.name(),
        }
    }
}

/// Facts about the attempt that a settlement ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct AttemptFacts {
    /// The handler began.
    pub began: bool,
    /// The attempt was to be counted as one alone.
    pub alone: bool,
    /// Why the message failed, if it did.
    pub reason: Option<Reason>,
}

impl State {
    pub fn new(kinds: &[Kind], world: &World) -> Self {
        let messages = kinds.iter().enumerate().map(|(place, kind)| Message {
            kind: *kind,
            operation: if world.one_key { 0 } else { place },
            receives: 0,
            visible_at: 0,
            fate: Fate::InQueue,
            may_be_suspect: false,
        });
        let operations = if world.one_key { 1 } else { kinds.len() };
        Self {
            now: 0,
            messages: messages.collect(),
            operations: vec![Operation::default(); operations],
            processes: Vec::new(),
            network: Vec::new(),
            left: world.troubles,
            broken: None,
        }
    }

    pub fn operation(&self, receive: Receive) -> usize {
        self.messages[receive.message].operation
    }

    /// The end of an operation's lease, and now if there is none.
    pub fn lease_of(&self, operation: usize) -> u64 {
        let record = self.operations[operation].record.as_deref();
        match record.map(|record| &record.state) {
            Some(Status::InProgress { lease_until }) => second(*lease_until),
            _ => self.now,
        }
    }

    /// The process and the place of a task.
    pub fn find(&self, receive: Receive) -> Option<(usize, usize)> {
        self.processes.iter().enumerate().find_map(|(process, it)| {
            let place = it.tasks.iter().position(|task| task.receive == receive)?;
            Some((process, place))
        })
    }

    /// Time by the clock of a process.
    pub fn clock(&self, process: usize) -> u64 {
        self.now + self.processes[process].ahead
    }
}

impl Process {
    pub fn is_idle(&self) -> bool {
        self.tasks.is_empty()
    }

    /// The task's worker may act for its claim.
    pub fn holds(&self, task: &Task, clock: u64) -> bool {
        let holds = matches!(
            task.step,
            Step::Holds(_)
                | Step::Suspect(..)
                | Step::Counts(_)
                | Step::LooksUp(_)
                | Step::Runs(..)
        );
        holds && clock <= self.deadline
    }
}

pub fn key(operation: usize) -> Key {
    let namespace = Namespace::new("model").expect("a name");
    Key::new(&namespace, [&*operation.to_string()]).expect("a key")
}

pub fn message_id(message: usize) -> String {
    format!("m{message}")
}

pub fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

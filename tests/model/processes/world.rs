//! [`World`]: how many messages and processes there are, and what may go wrong how often.

use std::{sync::atomic::AtomicUsize, time::Duration};

use sqs_once::protocol::{CrashWaits, PriorState};

use crate::processes::{
    flaw::Flaw,
    rules::Rules,
    state::{
        Kind::{self, Declined, Good, Killer},
        State, Troubles,
    },
};

const NONE: Troubles = Troubles {
    crashes: 0,
    freezes: 0,
    losses: 0,
    late: 0,
    copies: 0,
    repeats: 0,
    failures: 0,
    deletions: 0,
};

/// A second is the unit of time. A handler must end this long after its process received the batch.
pub const TIMEOUT: u64 = 2;
/// A lease lasts this much longer than the handler may run, and clocks differ by no more.
pub const MARGIN: u64 = 1;
/// After a receive, SQS hides the message for this long.
pub const VISIBILITY: u64 = 4;
/// Longer than any run.
pub const LONG: u64 = 100_000;

/// The bounds of a search. Every path through the states ends, because receives and the clock only grow
/// and each trouble has a number.
#[derive(Debug)]
pub struct World {
    pub name: &'static str,
    /// The messages of each first state.
    pub messages: Vec<Vec<Kind>>,
    /// True if all messages have one key, so that they are one operation.
    pub one_key: bool,
    /// The most processes at a time.
    pub processes: usize,
    /// The most receives of a message. SQS then moves it to the dead-letter queue.
    pub receives: u8,
    /// True if the clock of a process may be ahead by [`MARGIN`].
    pub skew: bool,
    /// How long records are kept, in seconds.
    pub retention: u64,
    /// How long a message rests after each death alone, in seconds.
    pub waits: Vec<u64>,
    /// True if processes have a circuit breaker, one failure from opening, and live on after a batch.
    pub circuit: bool,
    /// The quarantine of a handler with a look-up, in seconds. An effect happens before it ends, or never.
    pub quarantine: Option<u64>,
    /// Troubles that may come.
    pub troubles: Troubles,
    pub rules: Rules,
    /// Numbers of the search.
    pub seen: Seen,
}

/// Numbers of a search, beside those that Stateright counts.
#[derive(Debug, Default)]
pub struct Seen {
    /// States in which nothing can happen but the arrival of late requests.
    pub last_states: AtomicUsize,
    /// The most receives of a message.
    pub receives: AtomicUsize,
    /// Broken states.
    pub broken: AtomicUsize,
}

impl World {
    /// No trouble.
    fn new(name: &'static str, messages: &[&[Kind]], troubles: Troubles) -> Self {
        Self {
            name,
            messages: messages.iter().map(|kinds| kinds.to_vec()).collect(),
            one_key: false,
            processes: 2,
            receives: 16,
            skew: false,
            retention: LONG,
            waits: vec![6],
            circuit: false,
            quarantine: None,
            troubles,
            rules: Rules::default(),
            seen: Seen::default(),
        }
    }

    /// Processes are ended from outside, some with several messages.
    pub fn crashes(crashes: u8) -> Self {
        let kinds: [&[Kind]; 3] = [&[Good, Good], &[Good, Killer], &[Good, Declined]];
        Self::new("crashes", &kinds, Troubles { crashes, ..NONE })
    }

    /// A message alone, with all that can happen in its handler.
    pub fn single(crashes: u8, freezes: u8, failures: u8) -> Self {
        let kinds: [&[Kind]; 3] = [&[Good], &[Killer], &[Declined]];
        let troubles = Troubles {
            crashes,
            freezes,
            failures,
            ..NONE
        };
        Self::new("single", &kinds, troubles)
    }

    /// Requests and answers get lost or late, and arrive twice.
    pub fn network(losses: u8, crashes: u8) -> Self {
        let kinds: [&[Kind]; 2] = [&[Good, Good], &[Good, Killer]];
        let troubles = Troubles {
            losses,
            crashes,
            copies: 1,
            ..NONE
        };
        Self::new("network", &kinds, troubles)
    }

    /// Processes freeze, clocks differ by the margin, and SQS delivers a message twice.
    pub fn freezes(freezes: u8, crashes: u8) -> Self {
        let kinds: [&[Kind]; 2] = [&[Good], &[Killer]];
        let troubles = Troubles {
            freezes,
            crashes,
            repeats: 1,
            ..NONE
        };
        Self {
            skew: true,
            receives: 24,
            ..Self::new("freezes", &kinds, troubles)
        }
    }

    /// Several messages are one operation, and handlers fail in each way.
    pub fn one_key(crashes: u8, losses: u8) -> Self {
        let kinds: [&[Kind]; 2] = [&[Good, Good], &[Good, Declined]];
        let troubles = Troubles {
            crashes,
            losses,
            failures: 1,
            repeats: 1,
            ..NONE
        };
        Self {
            one_key: true,
            ..Self::new("one key", &kinds, troubles)
        }
    }

    /// Handlers fail until the circuit opens, and its probes fail too.
    pub fn circuit(failures: u8, crashes: u8) -> Self {
        let kinds: [&[Kind]; 1] = [&[Good, Good]];
        let troubles = Troubles {
            failures,
            crashes,
            ..NONE
        };
        Self {
            circuit: true,
            ..Self::new("circuit", &kinds, troubles)
        }
    }

    /// Records expire as soon as they may, and DynamoDB deletes one.
    pub fn retention(freezes: u8) -> Self {
        let kinds: [&[Kind]; 1] = [&[Good]];
        let troubles = Troubles {
            freezes,
            crashes: 1,
            repeats: 1,
            deletions: 1,
            ..NONE
        };
        Self {
            retention: 0,
            skew: true,
            ..Self::new("retention", &kinds, troubles)
        }
    }

    /// A look-up finds the effects of earlier attempts, which happen late or never.
    pub fn look_up(crashes: u8, failures: u8) -> Self {
        let kinds: [&[Kind]; 2] = [&[Good], &[Killer]];
        let troubles = Troubles {
            crashes,
            failures,
            ..NONE
        };
        Self {
            quarantine: Some(2),
            receives: 20,
            ..Self::new("look-up", &kinds, troubles)
        }
    }

    /// The worlds of `make test`.
    pub fn small() -> Vec<Self> {
        vec![
            Self::crashes(1),
            Self::crashes(3).only(&[Good, Good]),
            Self::single(2, 1, 1),
            Self::network(1, 0).only(&[Good, Good]),
            Self::freezes(1, 0),
            Self::one_key(1, 0).trouble(|troubles| troubles.repeats = 0),
            Self::circuit(2, 0),
            Self::retention(1),
            Self::look_up(2, 1),
            Self::look_up(1, 0).skewed(),
        ]
    }

    /// The worlds of `make test-deep`.
    pub fn full() -> Vec<Self> {
        let late = |troubles: &mut Troubles| troubles.late = 1;
        let lossy = |troubles: &mut Troubles| troubles.losses = 1;
        vec![
            Self::crashes(3),
            Self::crashes(1).only(&[Killer, Killer]),
            Self::crashes(0).only(&[Good, Good, Killer]),
            Self::crashes(2).only(&[Good, Good, Good]),
            Self::crashes(2).only(&[Good, Good]).trouble(late),
            Self {
                processes: 3,
                ..Self::crashes(2).only(&[Good, Good]).skewed()
            },
            Self::single(2, 1, 1).trouble(lossy),
            Self::network(1, 0),
            Self::network(1, 1).only(&[Good, Good]),
            Self::freezes(2, 0),
            Self::one_key(1, 0),
            Self::circuit(3, 0),
            Self::retention(2),
            Self::look_up(3, 2),
            Self::look_up(1, 1).trouble(lossy),
        ]
    }

    pub fn receives(self, receives: u8) -> Self {
        Self { receives, ..self }
    }

    /// The same with one first state.
    pub fn only(self, kinds: &[Kind]) -> Self {
        Self {
            messages: vec![kinds.to_vec()],
            ..self
        }
    }

    pub fn skewed(self) -> Self {
        Self { skew: true, ..self }
    }

    /// The same world, in which the network loses requests and responses.
    pub fn losing(self, losses: u8) -> Self {
        self.trouble(|troubles| troubles.losses = losses)
    }

    pub fn trouble(mut self, change: impl Fn(&mut Troubles)) -> Self {
        change(&mut self.troubles);
        self
    }

    /// The same world with a flaw in a rule.
    pub fn with(&self, flaw: Flaw) -> Self {
        Self {
            messages: self.messages.clone(),
            waits: self.waits.clone(),
            rules: Rules { flaw: Some(flaw) },
            seen: Seen::default(),
            ..*self
        }
    }

    pub fn crash_waits(&self) -> CrashWaits {
        CrashWaits::new(self.waits.iter().map(|wait| Duration::from_secs(*wait)))
    }

    /// After so many deaths alone, a message is `crashed`.
    pub fn limit(&self) -> usize {
        self.waits.len() + 1
    }

    /// True if the worker looks up what earlier attempts did before its handler runs.
    pub fn looks_up(&self, prior: &PriorState) -> bool {
        self.quarantine.is_some() && self.rules.looks_up(prior)
    }

    /// How long after the end of a lease a claim takes over.
    pub fn takeover_after(&self) -> Duration {
        self.rules.takeover_after(self.quarantine)
    }

    pub fn first_states(&self) -> Vec<State> {
        let all = self.messages.iter();
        all.map(|kinds| State::new(kinds, self)).collect()
    }
}

//! What the record of each key says, as the world saw it: by its claims, its runs and its settlements. What the consumer
//! says of a message is not asked.

use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

use crate::{
    ledger::{Event, Run, Worker},
    plan::{Message, QUARANTINE},
};

/// How often a process must end while a message runs alone: once more than there are rests.
const DEADLY_ATTEMPTS: usize = 4;

/// See [`Message::content`](crate::plan::Message::content).
type Content = (bool, u32);

#[derive(Default)]
pub(super) struct States {
    keys: BTreeMap<String, State>,
    runs: HashMap<Run, OfRun>,
    /// When something last stopped a process.
    stopped: HashMap<Worker, Duration>,
    tells_payloads_apart: bool,
}

struct OfRun {
    key: String,
    message: String,
    generation: u64,
}

/// What the record of a key says.
#[derive(Default)]
pub(super) struct State {
    /// The payload that was completed.
    completed: Option<Content>,
    failures: Vec<Failure>,
    /// What a claim changes, and an undo restores.
    now: Held,
    /// The number of recorded ends that the called system declined.
    generation: u64,
    claim: Option<Claim>,
    /// Attempts alone that have no recorded end.
    alone: Vec<Alone>,
    /// When a request for this key last went wrong.
    troubled: Option<Duration>,
    is_released: bool,
    /// What the record said before it was deleted, forgotten or completed, and when that was.
    before: Vec<(Duration, State)>,
}

#[derive(Clone, Copy, Default)]
struct Held {
    is_in_progress: bool,
    payload: Option<Content>,
    /// When the claim of the earliest open attempt arrived.
    open_since: Option<Duration>,
}

pub(super) struct Failure {
    pub(super) message: String,
    pub(super) error: String,
    /// `None` if payloads are not told apart: it is then that of each.
    content: Option<Content>,
    at: Duration,
}

/// The last claim.
struct Claim {
    message: String,
    content: Content,
    worker: Worker,
    replaced: Held,
    is_alone: bool,
    run: Option<Run>,
    /// How its handler ended, once it began.
    end: Option<&'static str>,
    /// The text of its failure.
    error: Option<String>,
}

struct Alone {
    worker: Worker,
    at: Duration,
    /// Something stopped its process, or kept its end from the record.
    has_died: bool,
}

impl States {
    pub(super) fn new(tells_payloads_apart: bool) -> Self {
        Self {
            tells_payloads_apart,
            ..Self::default()
        }
    }

    pub(super) fn event(
        &mut self,
        at: Duration,
        event: &Event,
        messages: &BTreeMap<String, Message>,
    ) {
        match event {
            Event::Claimed {
                key,
                message,
                worker,
                was,
                attempts_alone,
                ..
            } => {
                let stopped = &self.stopped;
                let state = self.keys.entry(key.clone()).or_default();
                state.end_attempt_alone(stopped);
                let content = messages.get(message).map(Message::content);
                let claim = Claim {
                    message: message.clone(),
                    content: content.unwrap_or_default(),
                    worker: *worker,
                    replaced: Held {
                        is_in_progress: *was == "IN_PROGRESS",
                        ..state.now
                    },
                    is_alone: *attempts_alone > 0,
                    run: None,
                    end: None,
                    error: None,
                };
                state.claimed(at, claim);
            }
            Event::Failed { key, error, .. } => {
                if let Some(claim) = &mut self.state(key).claim {
                    claim.error = Some(error.clone());
                }
            }
            Event::Settled { key, is, .. } => {
                let tells_apart = self.tells_payloads_apart;
                self.state(key).settled(at, is, tells_apart);
            }
            Event::HandlerStarted {
                run,
                message,
                key,
                worker,
                ..
            } => {
                let state = self.state(key);
                let claim = state.claim.as_mut();
                if let Some(claim) = claim.filter(|of| of.is_of(message, *worker)) {
                    (claim.run, claim.end) = (Some(*run), Some("running"));
                }
                let of_run = OfRun {
                    key: key.clone(),
                    message: message.clone(),
                    generation: state.generation,
                };
                self.runs.insert(*run, of_run);
            }
            Event::HandlerEnded { run, how } => {
                let key = self.runs.get(run).map(|of| &of.key);
                let claim = key.and_then(|key| self.keys.get_mut(key)?.claim.as_mut());
                if let Some(claim) = claim.filter(|of| of.run == Some(*run)) {
                    claim.end = Some(how);
                }
            }
            Event::Killed { worker }
            | Event::Frozen { worker, .. }
            | Event::TimedOut { worker, .. } => {
                self.stopped.insert(*worker, at);
            }
            Event::TableFault { key, .. } => self.state(key).troubled = Some(at),
            Event::Released { key } => self.state(key).is_released = true,
            Event::Deleted { key } | Event::Forgotten { key } => {
                let mut gone = self.keys.remove(key).unwrap_or_default();
                let mut before = std::mem::take(&mut gone.before);
                before.push((at, gone));
                self.state(key).before = before;
            }
            _ => {}
        }
    }

    fn state(&mut self, key: &str) -> &mut State {
        self.keys.entry(key.to_owned()).or_default()
    }

    /// Returns the record of a key.
    pub(super) fn of(&self, key: &str) -> Option<&State> {
        self.keys.get(key)
    }

    /// Returns the record of a key, and what it has said at `since` or later.
    pub(super) fn since<'a>(
        &'a self,
        key: &str,
        since: Duration,
    ) -> impl Iterator<Item = &'a State> + use<'a> {
        let state = self.of(key);
        let before = state.into_iter().flat_map(|state| &state.before);
        let before = before.filter(move |(until, _)| *until >= since);
        state.into_iter().chain(before.map(|(_, before)| before))
    }

    /// Returns the message of a run, its key and the generation of its call key.
    pub(super) fn run(&self, run: Run) -> Option<(&str, &str, u64)> {
        let OfRun {
            key,
            message,
            generation,
        } = self.runs.get(&run)?;
        Some((message, key, *generation))
    }
}

impl Claim {
    fn is_of(&self, message: &str, worker: Worker) -> bool {
        self.message == message && self.worker == worker
    }
}

impl State {
    /// Returns whether the last claim is of this message and this worker. A deletion ends it.
    pub(super) fn is_claimed_for(&self, message: &str, worker: Worker) -> bool {
        let claim = self.claim.as_ref();
        claim.is_some_and(|claim| claim.is_of(message, worker))
    }

    /// Notes what became of the attempt alone before a claim.
    fn end_attempt_alone(&mut self, stopped: &HashMap<Worker, Duration>) {
        let troubled = self.troubled;
        if let Some(last) = self.alone.last_mut() {
            // The claim may have arrived long after its request got no answer.
            let since = last.at.saturating_sub(QUARANTINE);
            let mut troubles = stopped.get(&last.worker).copied().into_iter();
            last.has_died |= troubles.by_ref().chain(troubled).any(|at| at >= since);
        }
    }

    fn claimed(&mut self, at: Duration, claim: Claim) {
        self.now = Held {
            is_in_progress: true,
            payload: Some(claim.content),
            open_since: self.now.open_since.or(Some(at)),
        };
        if claim.is_alone {
            self.alone.push(Alone {
                worker: claim.worker,
                at,
                has_died: false,
            });
        }
        self.claim = Some(claim);
    }

    fn settled(&mut self, at: Duration, is: &str, tells_payloads_apart: bool) {
        self.now.is_in_progress = is == "IN_PROGRESS";
        let Some(claim) = &mut self.claim else { return };
        let (content, end) = (claim.content, claim.end);
        let is_undone = match (is, claim.error.take()) {
            ("COMPLETED", _) => {
                self.completed = Some(content);
                if !self.failures.is_empty() {
                    let failed = State {
                        failures: std::mem::take(&mut self.failures),
                        ..State::default()
                    };
                    self.before.push((at, failed));
                }
                self.now.open_since = None;
                false
            }
            ("FAILED", Some(error)) => {
                // Without a run, the library's own failure had no effect.
                if end.is_none() {
                    self.now.open_since = claim.replaced.open_since;
                }
                if end == Some("declined") {
                    self.now.open_since = None;
                    self.generation += 1;
                }
                self.failures.push(Failure {
                    message: claim.message.clone(),
                    error,
                    content: tells_payloads_apart.then_some(content),
                    at,
                });
                merge(&mut self.failures);
                false
            }
            _ => matches!(end, None | Some("no effect")),
        };
        if is_undone {
            self.now = Held {
                is_in_progress: self.now.is_in_progress,
                ..claim.replaced
            };
        }
        // An undo before the handler began leaves the count as it was.
        if is_undone && end.is_none() {
            self.alone
                .truncate(self.alone.len() - usize::from(claim.is_alone));
        } else {
            self.alone.clear();
        }
        claim.is_alone = false;
    }

    pub(super) fn is_completed(&self) -> bool {
        self.completed.is_some()
    }

    pub(super) fn generation(&self) -> u64 {
        self.generation
    }

    /// Returns whether another payload than a message's was completed.
    pub(super) fn is_reused(&self, message: &Message) -> bool {
        self.completed.is_some_and(|of| of != message.content())
    }

    /// Returns the failures that answer a message, by a clock that may be wrong by `skew`.
    pub(super) fn failures_of<'a>(
        &'a self,
        message: &'a Message,
        skew: Duration,
    ) -> impl Iterator<Item = &'a Failure> {
        let failures = self.failures.iter();
        let is_of = |of: &Failure| of.content.is_none_or(|of| of == message.content());
        let answers = move |of: &&Failure| is_of(of) && of.at + skew >= message.sent;
        failures.filter(answers)
    }

    /// Returns whether the record answers a message for good.
    pub(super) fn answers(&self, message: &Message, skew: Duration) -> bool {
        self.is_completed() || self.failures_of(message, skew).next().is_some()
    }

    /// Returns whether an attempt with another payload than a message's is in its way.
    pub(super) fn is_in_the_way_of(&self, message: &Message) -> bool {
        self.now.is_in_the_way_of(message)
    }

    /// Returns the same of the record that the last claim replaced.
    pub(super) fn was_in_the_way_of(&self, message: &Message) -> bool {
        let claim = self.claim.as_ref();
        claim.is_some_and(|claim| claim.replaced.is_in_the_way_of(message))
    }

    /// Returns since when an attempt was open when the last claim arrived.
    pub(super) fn open_since(&self) -> Option<Duration> {
        self.claim.as_ref()?.replaced.open_since
    }

    /// Returns whether a message may be given up because its processes ended. An operator may have ended a rest.
    pub(super) fn may_have_crashed(&self) -> bool {
        let died = self.alone.iter().filter(|of| of.has_died).count();
        died >= DEADLY_ATTEMPTS || self.is_released
    }
}

impl Held {
    fn is_in_the_way_of(&self, message: &Message) -> bool {
        self.is_in_progress && self.payload.is_some_and(|of| of != message.content())
    }
}

/// Payloads whose failures a record keeps. Of more, it keeps all but the last one apart.
const MOST_PAYLOADS: usize = 4;

/// Merges failures as the record does.
fn merge(failures: &mut [Failure]) {
    let mut contents = Vec::new();
    for failure in failures.iter().rev() {
        if !contents.contains(&failure.content) {
            contents.push(failure.content);
        }
    }
    if contents.len() > MOST_PAYLOADS {
        for failure in failures {
            let is_apart = contents[..MOST_PAYLOADS - 1].contains(&failure.content);
            failure.content = failure.content.filter(|_| is_apart);
        }
    }
}

/// Returns whether the text of a failure says that a message was given up because its processes ended.
pub(super) fn has_crashed(error: &str) -> bool {
    error.starts_with("the process ended ")
}

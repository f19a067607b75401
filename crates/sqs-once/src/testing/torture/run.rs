//! [`Run`] holds what a run's workers share: the called system, the table, the clock, and the story so far.

use std::{
    any::Any,
    cell::Cell,
    fmt::Write as _,
    panic::Location,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures_util::future::pending;
use tokio::sync::{
    mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel},
    oneshot,
};

use super::story::Story;
use crate::{
    protocol::{Key, Record, State, Swap, Timestamp},
    store::{MemoryStore, Swapped},
    system::{Instant, elapsed, instant},
};

/// The wall clock when a run begins: ten o'clock.
pub(super) const BEGINNING: Timestamp =
    Timestamp::from_millis(1_800_000_000_000 - 1_800_000_000_000 % 86_400_000 + 36_000_000);

thread_local! {
    /// When the run began on the monotonic clock, and by how much the wall clock is ahead.
    static CLOCK: Cell<Option<(Instant, Duration)>> = const { Cell::new(None) };
}

/// Returns the wall-clock time of all workers.
pub(super) fn clock() -> Timestamp {
    match CLOCK.get() {
        Some((start, ahead)) => BEGINNING + (elapsed(start) + ahead),
        None => BEGINNING,
    }
}

/// Moves the wall clock on, without firing timers.
pub(super) fn advance(by: Duration) {
    if let Some((start, ahead)) = CLOCK.get() {
        CLOCK.set(Some((start, ahead + by)));
    }
}

/// A place where something may go wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    BeforeEffect,
    AfterEffect,
    BeforeWrite,
    AfterWrite,
    /// The message is in the queue again.
    Redelivery,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    None,
    Killed,
    Frozen,
    DeliveredTwice,
    AnswerLost,
    /// The producer has sent the message again, and this copy is delivered.
    SentAgain,
}

impl Place {
    /// Returns what may go wrong at this place. The first entry is always `None`: nothing goes wrong.
    pub(super) const fn faults(self) -> &'static [Fault] {
        use Fault::{AnswerLost, DeliveredTwice, Frozen, Killed, None, SentAgain};
        match self {
            Self::BeforeEffect => &[None, Killed, Frozen, DeliveredTwice],
            Self::AfterEffect => &[None, Killed, Frozen, AnswerLost],
            Self::BeforeWrite => &[None, Killed],
            Self::AfterWrite => &[None, Killed, Frozen, AnswerLost],
            Self::Redelivery => &[None, SentAgain],
        }
    }

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::BeforeEffect => "before its effect",
            Self::AfterEffect => "after its effect, before the answer arrived",
            Self::BeforeWrite => "before a write of its record",
            Self::AfterWrite => "after a write of its record, before the answer arrived",
            Self::Redelivery => "between two deliveries",
        }
    }
}

/// A worker that has come to a place, and waits to hear what goes wrong there.
pub(super) type Arrival = (usize, Place, oneshot::Sender<Fault>);

#[derive(Debug)]
pub(super) struct Run {
    pub(super) records: MemoryStore,
    arrivals: UnboundedSender<Arrival>,
    notes: Mutex<RunNotes>,
}

#[derive(Debug, Default)]
pub(super) struct RunNotes {
    pub(super) story: String,
    pub(super) effects: Vec<SeenEffect>,
    /// How a request under a known key differed from the first.
    differed: Option<String>,
    /// The attempt that claimed most recently.
    pub(super) claimed: usize,
    /// The operation's key, once it has a record.
    key: Option<Key>,
}

pub(super) struct SeenEffect {
    key: String,
    pub(super) at: &'static Location<'static>,
    attempt: usize,
    sent: String,
    answer: Box<dyn Any + Send>,
}

impl std::fmt::Debug for SeenEffect {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} under {}", self.at, self.key)
    }
}

impl Run {
    /// Creates a run, and a receiver for the places that its workers come to.
    pub(super) fn begin() -> (Arc<Self>, UnboundedReceiver<Arrival>) {
        let (arrivals, arrived) = unbounded_channel();
        let run = Self {
            records: MemoryStore::default(),
            arrivals,
            notes: Mutex::default(),
        };
        (Arc::new(run), arrived)
    }

    pub(super) fn notes(&self) -> MutexGuard<'_, RunNotes> {
        self.notes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn tell(&self, what: &str) {
        let seconds = BEGINNING.until(clock()).as_secs() + 10 * 3600;
        let (days, of_day) = (seconds / 86_400, seconds % 86_400);
        let (hours, minutes) = (of_day / 3600, of_day / 60 % 60);
        let day = if days > 0 {
            format!("day {} ", days + 1)
        } else {
            String::new()
        };
        // Writing to a `String` never fails.
        let _written = writeln!(
            self.notes().story,
            "  {day}{hours:02}:{minutes:02}:{:02}  {what}",
            of_day % 60
        );
    }

    /// Reports that a worker has come to a place, and returns what goes wrong there. Never returns if the worker is killed there.
    pub(super) async fn meet(&self, attempt: usize, place: Place) -> Fault {
        let (tell, told) = oneshot::channel();
        if self.arrivals.send((attempt, place, tell)).is_err() {
            return pending().await;
        }
        match told.await {
            Ok(fault) => fault,
            Err(_killed) => pending().await,
        }
    }

    pub(super) fn have_effect<T: Any + Clone + Send>(
        &self,
        attempt: usize,
        key: &str,
        sent: String,
        at: &'static Location<'static>,
        effect: impl FnOnce() -> T,
    ) -> T {
        let known = {
            let notes = self.notes();
            let mut known = notes.effects.iter();
            known
                .find(|known| known.key == key && known.at == at)
                .map(|known| {
                    let differed = (known.sent != sent).then(|| {
                        format!(
                            "At {at}, attempt {} sent {} and attempt {attempt} sent {sent}, both under the key {key}.",
                            known.attempt, known.sent
                        )
                    });
                    (answer_of(&*known.answer), differed)
                })
        };
        if let Some((answer, differed)) = known {
            let sends = if differed.is_some() {
                ", AND SENDS SOMETHING ELSE"
            } else {
                ""
            };
            self.tell(&format!(
                "attempt {attempt} asks again ({at}) under the key {key}{sends}: the system does nothing and answers as before"
            ));
            let mut notes = self.notes();
            notes.differed = notes.differed.take().or(differed);
            return answer;
        }
        let answer = effect();
        self.tell(&format!(
            "attempt {attempt} HAS THE EFFECT ({at}) under the key {key}"
        ));
        self.notes().effects.push(SeenEffect {
            key: key.to_owned(),
            at,
            attempt,
            sent,
            answer: Box::new(answer.clone()),
        });
        answer
    }

    pub(super) fn find<T: Any + Clone + Send>(&self, attempt: usize) -> Option<T> {
        let found = {
            let notes = self.notes();
            notes.effects.first().map(|first| answer_of(&*first.answer))
        };
        let what = if found.is_some() {
            "finds"
        } else {
            "does not find"
        };
        self.tell(&format!(
            "attempt {attempt} looks up the effect and {what} it"
        ));
        found
    }

    pub(super) fn swap(&self, attempt: usize, swap: &Swap) -> Swapped {
        let swapped = self.records.apply(swap);
        self.notes().key = Some(swap.key.clone());
        let what = swap.to.action();
        match swapped {
            Swapped::Applied => {
                self.tell(&format!("attempt {attempt} records: {what}"));
                if swap.to.is_claim() {
                    self.notes().claimed = attempt;
                }
            }
            Swapped::Found(_) => self.tell(&format!("attempt {attempt} may not record: {what}")),
        }
        swapped
    }

    pub(super) fn record(&self) -> Option<Record> {
        let key = self.notes().key.clone()?;
        self.records.record(&key)
    }

    /// Returns whether the operation is claimed, and this attempt was the last to claim it.
    pub(super) fn is_claimed_by(&self, attempt: usize) -> bool {
        let is_open = self.record().is_some_and(|record| record.is_claim());
        is_open && self.notes().claimed == attempt
    }

    /// Returns the story if an effect happened twice or was lost, or if an attempt sent something else under another's
    /// key. `places` says where effects happen without faults.
    pub(super) fn verdict(&self, places: &[&'static Location<'static>]) -> Result<(), Story> {
        let is_done = self
            .record()
            .is_some_and(|record| matches!(record.state, State::Completed { .. }));
        let notes = self.notes();
        let key = notes
            .key
            .as_ref()
            .map(ToString::to_string)
            .unwrap_or_default();
        let twice = notes.effects.iter().enumerate().find_map(|(n, later)| {
            let earlier = notes.effects[..n]
                .iter()
                .find(|effect| effect.at == later.at)?;
            Some((earlier, later))
        });
        let happened = |at: &Location<'_>| notes.effects.iter().any(|effect| effect.at == at);
        let (what, why) = if let Some((earlier, later)) = twice {
            (
                format!("the effect at {} happened twice for {key}", later.at),
                format!(
                    "Attempt {} had another key ({}) than attempt {} ({}), so the called system could not know that it is the same. \
                     Pass `attempt.call_key()`, which is the same for every attempt, or give the consumer a lookup.",
                    later.attempt, later.key, earlier.attempt, earlier.key
                ),
            )
        } else if let Some(differed) = &notes.differed {
            (
                format!("different things were sent under one key for {key}"),
                format!(
                    "{differed} A system that knows the key refuses another body, and that says nothing about the first request. \
                     Send what the fingerprint covers and nothing else, in one order and one spelling."
                ),
            )
        } else if let Some(lost) = places.iter().find(|at| is_done && !happened(at)) {
            (
                format!("the effect at {lost} never happened for {key}, which is COMPLETED: its effect is lost"),
                "A prior attempt may have had its effect, or may not. Have it again under `attempt.call_key()`, or give the \
                 consumer a lookup."
                    .to_owned(),
            )
        } else {
            return Ok(());
        };
        Err(Story(format!("{what}:\n\n{}\n{why}", notes.story)))
    }
}

fn answer_of<T: Any + Clone>(answer: &(dyn Any + Send)) -> T {
    match answer.downcast_ref::<T>() {
        Some(answer) => answer.clone(),
        None => panic!("an earlier answer under this key had another type"),
    }
}

/// Runs a future as if in its own process, whose clocks stand still.
pub(super) fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => panic!("no runtime: {error}"),
    };
    let ended = runtime.block_on(async {
        CLOCK.set(Some((instant(), Duration::ZERO)));
        future.await
    });
    CLOCK.set(None);
    ended
}

//! [`execute`]: one run of a message until it is done, with the faults of a script.

use std::{
    any::Any,
    cell::Cell,
    fmt::Write as _,
    panic::Location,
    pin::{Pin, pin},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures_util::future::{Either, pending, select};
use tokio::sync::{
    mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel},
    oneshot,
};

use super::{Story, Table, World};
use crate::{
    Consumer, Deadline, Handler, Mode, Once,
    protocol::{AttemptEnd, Key, Record, State, Swap, Timestamp},
    store::{MemoryStore, Swapped},
    system::{Instant, elapsed, instant},
    testing::{Message, event},
};

/// The wall clock when a run begins: ten o'clock.
const BEGINNING: Timestamp =
    Timestamp::from_millis(1_800_000_000_000 - 1_800_000_000_000 % 86_400_000 + 36_000_000);
/// Time of an invocation.
const INVOCATION: Duration = Duration::from_secs(60);
/// Time that a queue and a lookup need after the end of a lease.
const REST: Duration = Duration::from_secs(120);
/// A frozen worker thaws long after its lease.
const FREEZE: Duration = Duration::from_secs(20 * 60);
/// Deliveries after which a message is left alone.
const MOST_RECEIVES: usize = 20;

thread_local! {
    /// When the run began by the monotonic clock, and by how much the wall clock is ahead of it.
    static CLOCK: Cell<Option<(Instant, Duration)>> = const { Cell::new(None) };
}

/// The wall clock of all workers.
pub(super) fn clock() -> Timestamp {
    match CLOCK.get() {
        Some((start, ahead)) => BEGINNING + (elapsed(start) + ahead),
        None => BEGINNING,
    }
}

/// The wall clock goes on, and no timer fires.
fn advance(by: Duration) {
    if let Some((start, ahead)) = CLOCK.get() {
        CLOCK.set(Some((start, ahead + by)));
    }
}

/// A place at which something may go wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    BeforeEffect,
    AfterEffect,
    BeforeWrite,
    AfterWrite,
}

/// What goes wrong there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    None,
    Killed,
    Frozen,
    DeliveredTwice,
    AnswerLost,
}

impl Place {
    /// What may go wrong, beginning with nothing.
    const fn faults(self) -> &'static [Fault] {
        use Fault::{AnswerLost, DeliveredTwice, Frozen, Killed, None};
        match self {
            Self::BeforeEffect => &[None, Killed, Frozen, DeliveredTwice],
            Self::AfterEffect => &[None, Killed, Frozen, AnswerLost],
            Self::BeforeWrite => &[None, Killed],
            Self::AfterWrite => &[None, Killed, Frozen, AnswerLost],
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::BeforeEffect => "before its effect",
            Self::AfterEffect => "after its effect, before the answer arrived",
            Self::BeforeWrite => "before a write of its record",
            Self::AfterWrite => "after a write of its record, before the answer arrived",
        }
    }
}

/// A worker has come to a place, and waits to be told what goes wrong there.
type Arrival = (usize, Place, oneshot::Sender<Fault>);

/// One run: the called system, the table, and the story so far.
#[derive(Debug)]
pub(super) struct Run {
    pub(super) records: MemoryStore,
    arrivals: UnboundedSender<Arrival>,
    notes: Mutex<Notes>,
}

#[derive(Debug, Default)]
struct Notes {
    story: String,
    effects: Vec<Effect>,
    /// Key of the operation, once it has a record.
    key: Option<Key>,
}

struct Effect {
    key: String,
    at: &'static Location<'static>,
    attempt: usize,
    answer: Box<dyn Any + Send>,
}

impl std::fmt::Debug for Effect {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} under {}", self.at, self.key)
    }
}

impl Run {
    fn notes(&self) -> MutexGuard<'_, Notes> {
        self.notes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell(&self, what: &str) {
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

    /// A worker comes to a place. Returns what goes wrong, or never, if it is killed there.
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
        at: &'static Location<'static>,
        effect: impl FnOnce() -> T,
    ) -> T {
        let known = {
            let notes = self.notes();
            let mut known = notes.effects.iter();
            known
                .find(|known| known.key == key && known.at == at)
                .map(|known| answer_of(&*known.answer))
        };
        if let Some(answer) = known {
            self.tell(&format!(
                "attempt {attempt} asks again ({at}) under the key {key}: the system does nothing and answers as before"
            ));
            return answer;
        }
        let answer = effect();
        self.tell(&format!(
            "attempt {attempt} HAS THE EFFECT ({at}) under the key {key}"
        ));
        self.notes().effects.push(Effect {
            key: key.to_owned(),
            at,
            attempt,
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
            Swapped::Applied => self.tell(&format!("attempt {attempt} records: {what}")),
            Swapped::Found(_) => self.tell(&format!("attempt {attempt} may not record: {what}")),
        }
        swapped
    }

    fn record(&self) -> Option<Record> {
        let key = self.notes().key.clone()?;
        self.records.record(&key)
    }

    /// The story, if an effect happened twice.
    fn verdict(&self) -> Result<(), Story> {
        let notes = self.notes();
        let twice = notes.effects.iter().enumerate().find_map(|(n, later)| {
            let earlier = notes.effects[..n]
                .iter()
                .find(|effect| effect.at == later.at)?;
            Some((earlier, later))
        });
        let Some((earlier, later)) = twice else {
            return Ok(());
        };
        let key = notes
            .key
            .as_ref()
            .map(ToString::to_string)
            .unwrap_or_default();
        Err(Story(format!(
            "the effect at {} happened twice for {key}:\n\n{}\nAttempt {} had another key ({}) than attempt {} ({}), so the called \
             system could not know that it is the same. Pass `attempt.call_key()`, which is the same for every attempt, or give \
             the consumer a lookup.",
            later.at, notes.story, later.attempt, later.key, earlier.attempt, earlier.key
        )))
    }
}

fn answer_of<T: Any + Clone>(answer: &(dyn Any + Send)) -> T {
    match answer.downcast_ref::<T>() {
        Some(answer) => answer.clone(),
        None => panic!("an earlier answer under this key had another type"),
    }
}

/// What a run did.
pub(super) struct Ended {
    /// At each place that was met, the number of things that could go wrong, and nothing.
    pub(super) taken: Vec<usize>,
    pub(super) receives: usize,
}

/// Runs a message until it is done. `script` says what goes wrong at each place; after its end, nothing does.
pub(super) fn execute<H: Handler>(
    script: &[usize],
    body: &str,
    make: &impl Fn(&World) -> Consumer<Once<Table>, H>,
) -> Result<Ended, Story>
where
    Once<Table>: Mode<H::Output>,
{
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => panic!("no runtime: {error}"),
    };
    let (arrivals, arrived) = unbounded_channel();
    let run = Arc::new(Run {
        records: MemoryStore::default(),
        arrivals,
        notes: Mutex::default(),
    });
    let mut director = Director {
        run: run.clone(),
        script,
        body,
        make,
        arrived,
        taken: Vec::new(),
        attempts: 0,
        id: "m-1",
        sent: BEGINNING,
        receives: 0,
    };
    runtime.block_on(async {
        CLOCK.set(Some((instant(), Duration::ZERO)));
        director.deliver_until_done().await;
    });
    CLOCK.set(None);
    run.verdict()?;
    if script.is_empty() {
        director.succeeded()?;
    }
    Ok(Ended {
        taken: director.taken,
        receives: director.attempts,
    })
}

struct Director<'a, F> {
    run: Arc<Run>,
    script: &'a [usize],
    body: &'a str,
    make: &'a F,
    arrived: UnboundedReceiver<Arrival>,
    taken: Vec<usize>,
    /// Deliveries so far.
    attempts: usize,
    id: &'static str,
    sent: Timestamp,
    /// Of this message.
    receives: u32,
}

impl<H: Handler, F: Fn(&World) -> Consumer<Once<Table>, H>> Director<'_, F>
where
    Once<Table>: Mode<H::Output>,
{
    async fn deliver_until_done(&mut self) {
        while self.attempts < MOST_RECEIVES {
            let is_returned = self.deliver().await;
            match self.run.record() {
                // A handler that panics without a fault would panic in each attempt.
                Some(record)
                    if self.script.is_empty() && record.last_end == Some(AttemptEnd::Panic) =>
                {
                    return;
                }
                Some(record) if record.state == State::Failed => {
                    if self.id != "m-1" {
                        return;
                    }
                    advance(REST);
                    self.run
                        .tell("the message is redriven from the dead-letter queue");
                    (self.id, self.sent, self.receives) = ("m-2", clock(), 0);
                }
                record => {
                    if !is_returned {
                        return;
                    }
                    let lease = record.and_then(|record| record.lease_until());
                    advance(lease.map_or(REST, |until| clock().until(until) + REST));
                }
            }
        }
    }

    /// Delivers the message to a new worker. Returns whether it goes back to the queue.
    fn deliver(&mut self) -> Pin<Box<dyn Future<Output = bool> + '_>> {
        Box::pin(async move {
            self.attempts += 1;
            self.receives += 1;
            let attempt = self.attempts;
            self.run
                .tell(&format!("attempt {attempt} gets the message"));
            let world = World {
                run: self.run.clone(),
                attempt,
            };
            let consumer = Arc::new((self.make)(&world));
            let message = Message::text(self.id, self.body)
                .receive_count(self.receives)
                .sent_at(self.sent);
            let deadline = Deadline::after(clock(), INVOCATION, Duration::from_secs(1));
            let mut process = pin!(consumer.process(event([message]), deadline));
            loop {
                let arrival = match select(pin!(self.arrived.recv()), process.as_mut()).await {
                    Either::Left((arrival, _)) => arrival,
                    Either::Right((answer, _)) => {
                        let is_returned =
                            answer.map_or(true, |answer| !answer.batch_item_failures.is_empty());
                        let what = if is_returned {
                            "returns"
                        } else {
                            "is done with"
                        };
                        self.run
                            .tell(&format!("attempt {attempt} {what} the message"));
                        return is_returned;
                    }
                };
                let Some((of, place, told)) = arrival else {
                    continue;
                };
                let fault = self.choose(place);
                match fault {
                    Fault::None => {}
                    Fault::Killed => {
                        self.run
                            .tell(&format!("attempt {of} is killed {}", place.name()));
                        return true;
                    }
                    Fault::Frozen => {
                        self.run
                            .tell(&format!("attempt {of} is frozen {}", place.name()));
                        advance(FREEZE);
                        self.deliver().await;
                        self.run.tell(&format!("attempt {of} thaws"));
                    }
                    Fault::DeliveredTwice => {
                        self.run
                            .tell("the queue delivers the message a second time");
                        self.deliver().await;
                    }
                    Fault::AnswerLost => {
                        self.run
                            .tell(&format!("the answer to attempt {of} is lost"));
                    }
                }
                // Without a receiver, the handler was dropped meanwhile.
                let _dropped = told.send(fault);
            }
        })
    }

    fn choose(&mut self, place: Place) -> Fault {
        let faults = place.faults();
        let chosen = self.script.get(self.taken.len()).copied().unwrap_or(0);
        self.taken.push(faults.len());
        faults.get(chosen).copied().unwrap_or(Fault::None)
    }

    /// Refuses a handler that does not succeed in a run without faults.
    fn succeeded(&self) -> Result<(), Story> {
        let record = self.run.record();
        let why = match record
            .as_ref()
            .map(|record| (&record.state, record.last_end))
        {
            Some((State::Completed { .. }, _)) => return Ok(()),
            Some((_, Some(AttemptEnd::Panic))) => {
                "the handler panicked in a run without faults. It has no sockets here, since nothing real may be killed halfway: \
                 let its effects go through the ledger, or through a fake"
            }
            Some((State::Failed, _)) => "the handler failed permanently in a run without faults",
            Some(_) => "the handler did not succeed in a run without faults",
            None => "the message was not claimed in a run without faults: check the consumer's key",
        };
        let error = record.as_ref().and_then(Record::last_error);
        let error = error.map(|error| format!(" ({error})")).unwrap_or_default();
        Err(Story(format!(
            "{why}{error}:\n\n{}",
            self.run.notes().story
        )))
    }
}

//! [`execute`]: one run of a message until it is done, with the faults of a script. [`sent_again`]: the message as its
//! producer sends it again.

use std::{
    any::Any,
    cell::Cell,
    collections::BTreeMap,
    fmt::Write as _,
    panic::Location,
    pin::{Pin, pin},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures_util::future::{Either, pending, select};
use serde_json::value::RawValue;
use tokio::sync::{
    mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel},
    oneshot,
};

use super::{Story, Table, World};
use crate::{
    Consumer, Deadline, Handler, Mode, Once, Text,
    protocol::{AttemptEnd, Fingerprint, Key, Record, State, Swap, Timestamp},
    store::{MemoryStore, Swapped},
    system::{Instant, elapsed, instant},
    testing::{Message, event},
};

/// The wall clock when a run begins: ten o'clock.
const BEGINNING: Timestamp =
    Timestamp::from_millis(1_800_000_000_000 - 1_800_000_000_000 % 86_400_000 + 36_000_000);
/// Time of an invocation.
const INVOCATION: Duration = Duration::from_secs(60);
/// Time that a queue needs after the end of a lease.
const REST: Duration = Duration::from_secs(120);
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
    /// The message is in the queue again.
    Redelivery,
}

/// What goes wrong there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    None,
    Killed,
    Frozen,
    DeliveredTwice,
    AnswerLost,
    /// What is delivered is the message that the producer has sent again.
    SentAgain,
}

impl Place {
    /// What may go wrong, beginning with nothing.
    const fn faults(self) -> &'static [Fault] {
        use Fault::{AnswerLost, DeliveredTwice, Frozen, Killed, None, SentAgain};
        match self {
            Self::BeforeEffect => &[None, Killed, Frozen, DeliveredTwice],
            Self::AfterEffect => &[None, Killed, Frozen, AnswerLost],
            Self::BeforeWrite => &[None, Killed],
            Self::AfterWrite => &[None, Killed, Frozen, AnswerLost],
            Self::Redelivery => &[None, SentAgain],
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::BeforeEffect => "before its effect",
            Self::AfterEffect => "after its effect, before the answer arrived",
            Self::BeforeWrite => "before a write of its record",
            Self::AfterWrite => "after a write of its record, before the answer arrived",
            Self::Redelivery => "between two deliveries",
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
    notes: Mutex<RunNotes>,
}

#[derive(Debug, Default)]
struct RunNotes {
    story: String,
    effects: Vec<SeenEffect>,
    /// How a request under a known key differed from the first.
    differed: Option<String>,
    /// The attempt that claimed last.
    claimed: usize,
    /// Key of the operation, once it has a record.
    key: Option<Key>,
}

struct SeenEffect {
    key: String,
    at: &'static Location<'static>,
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
    fn notes(&self) -> MutexGuard<'_, RunNotes> {
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

    fn record(&self) -> Option<Record> {
        let key = self.notes().key.clone()?;
        self.records.record(&key)
    }

    /// Returns whether the attempt holds the claim, or nobody has taken it over yet.
    fn is_claimed_by(&self, attempt: usize) -> bool {
        let is_open = self.record().is_some_and(|record| record.is_claim());
        is_open && self.notes().claimed == attempt
    }

    /// The story, if an effect happened twice, or was lost, or if an attempt sent something else under the key of another.
    /// `places` are those of the effects without faults.
    fn verdict(&self, places: &[&'static Location<'static>]) -> Result<(), Story> {
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

/// What a run did.
pub(super) struct RunEnd {
    /// For each place that was met, what could go wrong there.
    pub(super) taken: Vec<&'static [Fault]>,
    pub(super) receives: usize,
    /// Of each freeze of a worker that held the claim, whether another worker took over.
    pub(super) freezes: Vec<bool>,
    /// Where the effects happened.
    pub(super) places: Vec<&'static Location<'static>>,
}

/// Returns what the producer sends if it sends the message again: the same operation, with the same fingerprint, and with
/// something else changed. `chosen` is what the test says. `None` if nothing can change.
///
/// # Errors
///
/// If what the test says is another operation, or has another fingerprint.
pub(super) fn sent_again<H: Handler>(
    body: &str,
    chosen: Option<&str>,
    make: &impl Fn(&World) -> Consumer<Once<Table>, H>,
) -> Result<Option<String>, Story>
where
    Once<Table>: Mode<H::Output>,
{
    let (world, _) = World::new();
    let consumer = block_on(async { make(&world) });
    let operation = |id: &str, body: &str| {
        let message = Message::text(id, body).into_sqs();
        let read = consumer.read_message::<Text>(message, deadline());
        read.map(|(operation, _)| operation)
    };
    // The run without faults tells why it has no key.
    let Ok(first) = operation("m-1", body) else {
        return Ok(None);
    };
    let differs = |body: &str| {
        let Ok(again) = operation("m-2", body) else {
            return Some("no key");
        };
        let both = first.fingerprint.as_ref().zip(again.fingerprint.as_ref());
        if again.key != first.key {
            Some("another key")
        } else if both.is_some_and(|(one, other): (&Fingerprint, _)| one.differs_from(other)) {
            Some("another fingerprint")
        } else {
            None
        }
    };
    if let Some(chosen) = chosen {
        return match differs(chosen) {
            None => Ok(Some(chosen.to_owned())),
            Some(what) => Err(Story(format!(
                "the message that is sent again has {what}: it must be the same operation with the same payload. Give the consumer \
                 the key and the fingerprint that it has in your `main`, and change what the fingerprint does not cover"
            ))),
        };
    }
    let mut changed = [true, false]
        .into_iter()
        .filter_map(|added| reordered(body, added));
    Ok(changed.find(|again| differs(again).is_none()))
}

/// Returns an object with its members in another order and with white space, and with one more member if it is `added`.
fn reordered(body: &str, added: bool) -> Option<String> {
    let mut members: BTreeMap<String, &RawValue> = serde_json::from_str(body).ok()?;
    if added {
        let mut name = "sentAgain".to_owned();
        while members.contains_key(&name) {
            name.push('_');
        }
        members.insert(name, RawValue::TRUE);
    }
    let members = members.iter().rev();
    let members: Vec<_> = members
        .map(|(name, value)| format!("{}: {value}", serde_json::json!(name)))
        .collect();
    Some(format!("{{ {} }}", members.join(", ")))
}

/// Runs a future as in a process of its own, whose clocks stand still.
fn block_on<T>(future: impl Future<Output = T>) -> T {
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

fn deadline() -> Deadline {
    Deadline::after(clock(), INVOCATION, Duration::from_secs(1))
}

/// Runs a message until it is done. `script` says what goes wrong at each place; after its end, nothing does. `again` is
/// what the producer sends if it sends the message again. `places` are those of the effects without faults; if they are not
/// known yet, this run finds them.
pub(super) fn execute<H: Handler>(
    script: &[usize],
    (body, again): (&str, Option<&str>),
    places: &[&'static Location<'static>],
    make: &impl Fn(&World) -> Consumer<Once<Table>, H>,
) -> Result<RunEnd, Story>
where
    Once<Table>: Mode<H::Output>,
{
    let (World { run, .. }, arrived) = World::new();
    let mut director = Director {
        run: run.clone(),
        script,
        body,
        again,
        make,
        arrived,
        taken: Vec::new(),
        attempts: 0,
        freezes: Vec::new(),
        rest: REST,
        id: "m-1",
        sent: BEGINNING,
        receives: 0,
    };
    block_on(director.deliver_until_done());
    run.verdict(places)?;
    if script.is_empty() {
        director.succeeded()?;
    }
    let effects = &run.notes().effects;
    Ok(RunEnd {
        taken: director.taken,
        receives: director.attempts,
        freezes: director.freezes,
        places: effects.iter().map(|effect| effect.at).collect(),
    })
}

impl World {
    fn new() -> (Self, UnboundedReceiver<Arrival>) {
        let (arrivals, arrived) = unbounded_channel();
        let run = Arc::new(Run {
            records: MemoryStore::default(),
            arrivals,
            notes: Mutex::default(),
        });
        (Self { run, attempt: 0 }, arrived)
    }
}

/// What a delivery leaves in the queue.
#[derive(PartialEq, Eq)]
enum Left {
    Nothing,
    Message,
    /// The message, and not the one that was delivered: that was the one which its producer had sent again.
    Undelivered,
}

struct Director<'a, F> {
    run: Arc<Run>,
    script: &'a [usize],
    body: &'a str,
    /// The body of the message that the producer sends again.
    again: Option<&'a str>,
    make: &'a F,
    arrived: UnboundedReceiver<Arrival>,
    taken: Vec<&'static [Fault]>,
    /// Deliveries so far.
    attempts: usize,
    freezes: Vec<bool>,
    /// After a lease, until the message is delivered again.
    rest: Duration,
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
            let left = self.deliver().await;
            match self.run.record() {
                // A handler that panics without a fault would panic in each attempt.
                Some(record)
                    if self.script.is_empty() && record.last_end == Some(AttemptEnd::Panic) =>
                {
                    return;
                }
                Some(record) if record.state == State::Failed && left != Left::Undelivered => {
                    if self.id != "m-1" {
                        return;
                    }
                    advance(self.rest);
                    self.run
                        .tell("the message is redriven from the dead-letter queue");
                    (self.id, self.sent, self.receives) = ("m-2", clock(), 0);
                }
                _ if left == Left::Nothing => return,
                _ => self.wait_for_lease(),
            }
        }
    }

    /// Time goes on until the claim can be taken over.
    fn wait_for_lease(&self) {
        let lease = self.run.record().and_then(|record| record.lease_until());
        advance(lease.map_or(Duration::ZERO, |until| clock().until(until)) + self.rest);
    }

    /// Returns the next message to deliver, and whether it is the one that its producer has sent again.
    fn next_message(&mut self) -> (Message, bool) {
        let attempt = self.attempts;
        if let Some(again) = self.again.filter(|_| attempt > 1)
            && self.choose(Place::Redelivery) == Fault::SentAgain
        {
            self.run.tell(&format!(
                "attempt {attempt} gets the message, which its producer has sent again"
            ));
            let message = Message::text(format!("again-{attempt}"), again);
            return (message.sent_at(clock()), true);
        }
        self.receives += 1;
        self.run
            .tell(&format!("attempt {attempt} gets the message"));
        let message = Message::text(self.id, self.body);
        let message = message.receive_count(self.receives).sent_at(self.sent);
        (message, false)
    }

    /// Delivers the message to a new worker. Returns what is left in the queue.
    fn deliver(&mut self) -> Pin<Box<dyn Future<Output = Left> + '_>> {
        Box::pin(async move {
            self.attempts += 1;
            let attempt = self.attempts;
            let world = World {
                run: self.run.clone(),
                attempt,
            };
            let consumer = Arc::new((self.make)(&world));
            self.rest = REST + consumer.quarantine().unwrap_or_default();
            let (message, is_sent_again) = self.next_message();
            let returned = if is_sent_again {
                Left::Undelivered
            } else {
                Left::Message
            };
            let mut process = pin!(consumer.process(event([message]), deadline()));
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
                        return if is_returned || is_sent_again {
                            returned
                        } else {
                            Left::Nothing
                        };
                    }
                };
                let Some((of, place, told)) = arrival else {
                    continue;
                };
                let fault = self.choose(place);
                match fault {
                    Fault::None | Fault::SentAgain => {}
                    Fault::Killed => {
                        self.run
                            .tell(&format!("attempt {of} is killed {}", place.name()));
                        return returned;
                    }
                    Fault::Frozen => {
                        self.run
                            .tell(&format!("attempt {of} is frozen {}", place.name()));
                        let holds = self.run.is_claimed_by(of);
                        self.wait_for_lease();
                        self.deliver().await;
                        if holds {
                            self.freezes.push(self.run.notes().claimed != of);
                        }
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
        self.taken.push(faults);
        faults.get(chosen).copied().unwrap_or(Fault::None)
    }

    /// Refuses a handler that does not succeed in a run without faults.
    fn succeeded(&self) -> Result<(), Story> {
        let record = self.run.record();
        let why = match record
            .as_ref()
            .map(|record| (&record.state, record.last_end))
        {
            Some((State::Completed { .. }, _)) if self.run.notes().effects.is_empty() => {
                "the handler succeeded in a run without faults, and had no effect in the ledger: let its effects go through the \
                 ledger"
            }
            Some((State::Completed { .. }, _)) => return Ok(()),
            Some((_, Some(AttemptEnd::Panic))) => {
                "the handler panicked in a run without faults. It has no sockets here, since nothing real may be killed halfway: \
                 let its effects go through the ledger"
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

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::{Attempt, Failure, handler_fn};

    /// Returns the scripts with one more fault of this kind than `script`.
    fn with_one(fault: Fault, script: &[usize], taken: &[&[Fault]]) -> Vec<Vec<usize>> {
        let places = taken.iter().enumerate().skip(script.len());
        let chosen = places.filter_map(|(at, faults)| {
            let mut script = script.to_vec();
            script.resize(at, 0);
            script.push(faults.iter().position(|other| *other == fault)?);
            Some(script)
        });
        chosen.collect()
    }

    #[test]
    fn each_freeze_has_a_takeover_after_a_kill_too() {
        let make = |world: &World| {
            let ledger = world.ledger();
            let charge = handler_fn(move |_: Value, attempt: Attempt| {
                let ledger = ledger.clone();
                async move { Ok::<_, Failure>(ledger.effect(attempt.call_key(), "5", || 5).await?) }
            });
            world.consumer(charge)
        };
        let execute = |script: &[usize]| execute(script, ("{}", None), &[], &make).unwrap();
        let mut killed = vec![Vec::new()];
        for _ in 0..3 {
            let mut with_one_more = Vec::new();
            let mut freezes = Vec::new();
            for script in &killed {
                let taken = execute(script).taken;
                with_one_more.extend(with_one(Fault::Killed, script, &taken));
                for frozen in with_one(Fault::Frozen, script, &taken) {
                    freezes.extend(execute(&frozen).freezes);
                }
            }
            assert!(freezes.len() >= 3, "{freezes:?}");
            assert!(
                freezes.iter().all(|is_taken_over| *is_taken_over),
                "{freezes:?}"
            );
            killed = with_one_more;
        }
    }
}

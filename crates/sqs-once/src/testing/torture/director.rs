//! [`execute`]: runs a message once until it is done, with the faults of a script. [`sent_again`]: the message as its
//! producer sends it again.

use std::{
    collections::BTreeMap,
    panic::Location,
    pin::{Pin, pin},
    sync::Arc,
    time::Duration,
};

use futures_util::future::{Either, select};
use serde_json::value::RawValue;
use tokio::sync::mpsc::UnboundedReceiver;

use super::{
    run::{Arrival, BEGINNING, Fault, Place, Run, advance, block_on, clock},
    story::Story,
    table::Table,
    world::World,
};
use crate::{
    Consumer, Deadline, Handler, Mode, Once, Text,
    protocol::{AttemptEnd, Fingerprint, Record, State, Timestamp},
    testing::{Message, event},
};

/// How long an invocation may take.
const INVOCATION: Duration = Duration::from_secs(60);
/// How long after the end of a lease the queue delivers the message again.
const REST: Duration = Duration::from_secs(120);
/// After this many deliveries, we give up on a message.
const MOST_RECEIVES: usize = 20;

pub(super) struct RunEnd {
    /// The faults that were possible at each place that a worker came to.
    pub(super) taken: Vec<&'static [Fault]>,
    pub(super) receives: usize,
    /// One entry for each freeze of a worker that held the claim: true if another worker took over.
    pub(super) freezes: Vec<bool>,
    /// Where the effects happened.
    pub(super) places: Vec<&'static Location<'static>>,
}

/// Returns the body that the producer sends the second time. It has the same key and fingerprint, but something else has
/// changed. The test may have `chosen` it. Returns `None` if nothing can change.
///
/// # Errors
///
/// Returns a story if the test's choice is another operation or has another fingerprint.
pub(super) fn sent_again<H: Handler>(
    body: &str,
    chosen: Option<&str>,
    make: &impl Fn(&World) -> Consumer<Once<Table>, H>,
) -> Result<Option<String>, Story>
where
    Once<Table>: Mode<H::Output>,
{
    let world = World::of(Run::begin().0, 0);
    let consumer = block_on(async { make(&world) });
    let operation = |id: &str, body: &str| {
        let message = Message::text(id, body).into_sqs();
        let read = consumer.read_message::<Text>(message, deadline());
        read.map(|(operation, _)| operation)
    };
    // The run without faults will say why the message has no key.
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

/// Returns an object with its members in another order and with white space. If `added`, it has one more member.
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

fn deadline() -> Deadline {
    Deadline::after(clock(), INVOCATION, Duration::from_secs(1))
}

/// Runs a message until it is done. `script` says what goes wrong at each place. After the script's end, nothing goes
/// wrong. `again` is the body that the producer sends the second time. `places` says where effects happen without faults.
/// The first run gets an empty list, and finds the places.
pub(super) fn execute<H: Handler>(
    script: &[usize],
    (body, again): (&str, Option<&str>),
    places: &[&'static Location<'static>],
    make: &impl Fn(&World) -> Consumer<Once<Table>, H>,
) -> Result<RunEnd, Story>
where
    Once<Table>: Mode<H::Output>,
{
    let (run, arrived) = Run::begin();
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

/// The queue's content after a delivery.
#[derive(PartialEq, Eq)]
enum Left {
    Nothing,
    Message,
    /// The original message, because the delivered one was the copy that its producer had sent again.
    Undelivered,
}

struct Director<'a, F> {
    run: Arc<Run>,
    script: &'a [usize],
    body: &'a str,
    /// The body that the producer sends again.
    again: Option<&'a str>,
    make: &'a F,
    arrived: UnboundedReceiver<Arrival>,
    taken: Vec<&'static [Fault]>,
    attempts: usize,
    freezes: Vec<bool>,
    /// How long after a lease the message is delivered again.
    rest: Duration,
    id: &'static str,
    sent: Timestamp,
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
                // A handler that panics without a fault would panic in every attempt.
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

    /// Moves the clock on until the claim can be taken over.
    fn wait_for_lease(&self) {
        let lease = self.run.record().and_then(|record| record.lease_until());
        advance(lease.map_or(Duration::ZERO, |until| clock().until(until)) + self.rest);
    }

    /// Returns the next message to deliver, and whether it is the copy that the producer has sent again.
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
            let world = World::of(self.run.clone(), attempt);
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
                // If there is no receiver, the handler was dropped meanwhile.
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

    /// Rejects a handler that does not succeed in a run without faults.
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

    /// Returns the scripts that have one more fault of this kind than `script`.
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

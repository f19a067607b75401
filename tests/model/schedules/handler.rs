//! The handler: one effect outside the table, with an await before and after.

use std::{panic::resume_unwind, time::Duration};

use sqs_once::{Attempt, Deadline, Failure, Once, Operation, Outcome, internal::Delivery};

use crate::schedules::{
    clock::{self, since_start},
    line::{Line, pause},
    world::{KEY, Shared, World, fingerprint, lock},
};

/// Time of an invocation.
pub const BUDGET: Duration = Duration::from_secs(10);
/// Reserve: handlers are cut off at 9 s, and the last write is given up at 9.75 s.
pub const RESERVE: Duration = Duration::from_secs(1);

/// Maximum difference of clocks.
pub const MARGIN: Duration = Duration::from_secs(1);

pub fn once(world: &Shared, worker: usize) -> Once<Line> {
    let world = world.clone();
    let once = Once::new(Line { world, worker });
    once.clock(clock::of_worker).lease_margin(MARGIN)
}

pub fn operation(world: &Shared, worker: usize, delivery: Delivery) -> Operation {
    let payload = lock(world).payload(worker);
    Operation::new(
        KEY.clone(),
        Some(fingerprint(payload).clone()),
        delivery,
        Deadline::after(clock::of_worker(), BUDGET, RESERVE),
    )
}

/// Worker of a message whose effect is outside DynamoDB: `Once::run`.
pub async fn claim_run_complete(world: Shared, worker: usize, delivery: Delivery) -> Outcome {
    let once = once(&world, worker);
    let operation = operation(&world, worker, delivery);
    let charge = |attempt| charge(world, worker, attempt);
    once.run(operation, charge).await
}

/// Charges a card. If informed of an earlier attempt, first looks for its charge.
async fn charge(world: Shared, worker: usize, attempt: Attempt) -> Result<usize, Failure> {
    let _inside = Inside(&world, worker);
    lock(&world).enters(worker, &attempt);
    pause().await;
    let word = lock(&world).acts(worker, attempt.prior().is_some());
    obey(word)?;
    pause().await;
    let word = lock(&world).returns(worker);
    obey(word)?;
    Ok(worker)
}

pub fn obey(word: HandlerEnd) -> Result<(), Failure> {
    match word {
        HandlerEnd::Done | HandlerEnd::NotWritten => Ok(()),
        HandlerEnd::Retryable => Err(Failure::retryable("the gateway is busy")),
        HandlerEnd::NoEffect => Err(Failure::no_effect("the gateway cannot be reached")),
        HandlerEnd::Permanent => Err(Failure::permanent("the order is invalid")),
        HandlerEnd::Declined => Err(Failure::declined("the card is declined")),
        // Panics without printing to stderr.
        HandlerEnd::Panic => resume_unwind(Box::new("scripted")),
    }
}

/// Runs whenever the handler ends: it returns, panics, or is dropped.
pub struct Inside<'a>(pub &'a Shared, pub usize);

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        lock(self.0).promises.left(self.1);
    }
}

/// Answer of a handler at its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HandlerEnd {
    Done,
    Retryable,
    NoEffect,
    Permanent,
    /// The gateway has answered for the call key that it did nothing.
    Declined,
    Panic,
    /// Done, without the effect: the writes were refused.
    NotWritten,
}

impl World {
    pub fn enters(&mut self, worker: usize, attempt: &Attempt) {
        self.log(worker, || {
            let informed = match attempt.history().prior.map(|open| open.first_claimed_at) {
                None => "no attempt is open".into(),
                Some(None) => "an attempt is open".into(),
                Some(Some(at)) => format!("an attempt is open since {}", since_start(at)),
            };
            format!("enters the handler, {informed}")
        });
        let (message, history) = (attempt.message_id(), attempt.history());
        self.promises.enters(worker, message, history);
    }

    /// Makes the effect, unless it was made before or another choice comes first.
    fn acts(&mut self, worker: usize, informed: bool) -> HandlerEnd {
        let charged = self.promises.effects() > 0;
        self.workers[worker].receives_answer(charged);
        if informed && charged {
            self.log(worker, || "looks: the card was charged before".into());
            return HandlerEnd::Done;
        }
        let words = [
            HandlerEnd::Done,
            HandlerEnd::NoEffect,
            HandlerEnd::Retryable,
            HandlerEnd::Permanent,
            HandlerEnd::Panic,
        ];
        let word = words[self.choose(worker, words.len())];
        if word == HandlerEnd::Done {
            self.log(worker, || "charges the card".into());
            self.promises.acts(worker);
        } else {
            self.says(worker, word);
        }
        word
    }

    pub fn returns(&mut self, worker: usize) -> HandlerEnd {
        let words = [HandlerEnd::Done, HandlerEnd::Retryable, HandlerEnd::Panic];
        let word = words[self.choose(worker, words.len())];
        self.says(worker, word);
        word
    }

    pub fn says(&mut self, worker: usize, word: HandlerEnd) {
        self.log(worker, || format!("says {word:?}"));
        self.promises.says(worker, word);
    }
}

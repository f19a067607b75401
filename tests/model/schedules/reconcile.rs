//! Handlers with a lookup: `Once` with `LookUp`, for a gateway without idempotency keys.
//!
//! A charge may be on its way to the gateway for up to [`ON_ITS_WAY`] after it was sent, whatever
//! becomes of its worker meanwhile. The gateway charges the card for each request that arrives.

use std::time::Duration;

use sqs_once::{
    Attempt, Failure, Handler, LookUp, LookedUp, Outcome,
    internal::{AnyLookUp, Delivery, run_handler},
};

use crate::schedules::{
    finds,
    handler::{HandlerEnd, Inside, obey, once, operation},
    keeps_every_promise,
    line::pause,
    promises::output_of,
    scenario::Scenario,
    world::{Shared, World, lock},
};

/// The longest time from a request to its charge.
pub const ON_ITS_WAY: Duration = Duration::from_secs(30);

/// A quarantine that ends before the last charge has arrived.
const TOO_SHORT: Duration = Duration::from_secs(10);

/// The scripted handler of one worker.
struct Charge {
    world: Shared,
    worker: usize,
}

impl Handler for Charge {
    type Message = ();
    type Output = usize;

    async fn handle(&self, (): (), attempt: Attempt) -> Result<usize, Failure> {
        let (world, worker) = (&self.world, self.worker);
        let _inside = Inside(world, worker);
        lock(world).enters(worker, &attempt);
        pause().await;
        let word = lock(world).sends_charge(worker);
        pause().await;
        obey(word)?;
        let word = lock(world).returns(worker);
        obey(word)?;
        Ok(worker)
    }
}

impl LookUp<(), usize> for Charge {
    async fn look_up(&self, (): &(), _: &Attempt) -> Result<LookedUp<usize>, Failure> {
        pause().await;
        let word = lock(&self.world).looks_up(self.worker);
        obey(word)?;
        let charged = lock(&self.world).charged_by();
        Ok(charged.map_or(LookedUp::NotFound, LookedUp::Found))
    }
}

pub async fn claim_look_up_run(world: Shared, worker: usize, delivery: Delivery) -> Outcome {
    let once = once(&world, worker);
    let quarantine = lock(&world).quarantine;
    let mut operation = operation(&world, worker, delivery);
    let charge = Charge { world, worker };
    operation.quarantine = quarantine;
    let look_up = quarantine.map(|_| &charge as &dyn AnyLookUp<Charge>);
    run_handler(&once, (&charge, look_up), operation, ()).await
}

impl World {
    /// The handler sends the charge, unless another choice comes first.
    fn sends_charge(&mut self, worker: usize) -> HandlerEnd {
        let words = [
            HandlerEnd::Done,
            // The charge is on its way, and the gateway does not answer.
            HandlerEnd::Retryable,
            HandlerEnd::NoEffect,
            HandlerEnd::Permanent,
        ];
        let word = words[self.choose(worker, words.len())];
        match word {
            HandlerEnd::Done => {
                self.log(worker, || "charges the card".into());
                self.charge_arrives(worker);
            }
            HandlerEnd::Retryable => {
                self.log(worker, || "sends a charge, and gets no answer".into());
                self.send_on_its_way(worker, ON_ITS_WAY);
                self.promises.says(worker, word);
            }
            _ => self.says(worker, word),
        }
        word
    }

    fn looks_up(&mut self, worker: usize) -> HandlerEnd {
        let charged = self.charged_by();
        self.workers[worker].receives_answer(charged);
        let words = [HandlerEnd::Done, HandlerEnd::Permanent, HandlerEnd::Panic];
        let word = words[self.choose(worker, words.len())];
        self.log(worker, || {
            format!("looks up: {word:?}, charged by {charged:?}")
        });
        if let (HandlerEnd::Done, Some(by)) = (word, charged) {
            self.promises.finds(output_of(by));
        }
        word
    }
}

#[test]
fn reconciled_workers_charge_once() {
    let found = keeps_every_promise(&Scenario::reconciled());
    for outcome in ["reconciled", "conflict", "no_effect"] {
        assert!(found.seen.outcomes().contains(outcome), "{outcome}");
    }
}

/// A worker that was frozen beyond its lease must not send its charge after the thaw.
#[test]
fn frozen_reconciled_workers_charge_once() {
    keeps_every_promise(&Scenario::reconciled().frozen());
}

#[test]
fn skewed_reconciled_workers_charge_once() {
    keeps_every_promise(&Scenario::reconciled().skew());
}

#[test]
fn explorer_finds_missing_quarantine() {
    finds(&Scenario::reconciled().quarantine(Duration::ZERO), "once");
}

#[test]
fn explorer_finds_short_quarantine() {
    finds(&Scenario::reconciled().quarantine(TOO_SHORT), "once");
}

/// The control: without a lookup, a crash after the charge repeats it.
#[test]
fn explorer_finds_second_charge_without_look_up() {
    finds(&Scenario::reconciled().quarantine(None), "once");
}

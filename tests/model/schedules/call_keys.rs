//! A gateway that remembers its answer to each call key, as Stripe and others do.
//!
//! Whatever happens to workers and answers, it charges the card once: an attempt that may have charged has the call key
//! of the attempts before it, and only a decline makes a new one.

use sqs_once::{Attempt, Failure, Outcome, internal::Delivery};

use crate::schedules::{
    finds,
    flaw::Flaw,
    handler::{HandlerEnd, Inside, obey, once, operation},
    keeps_every_promise,
    line::pause,
    scenario::Scenario,
    world::{Shared, World, lock},
};

pub async fn claim_call_run(world: Shared, worker: usize, delivery: Delivery) -> Outcome {
    let once = once(&world, worker);
    let operation = operation(&world, worker, delivery);
    let call = |attempt| call(world, worker, attempt);
    once.run(operation, call).await
}

/// Charges the card under the call key, and then does something else that may fail.
async fn call(world: Shared, worker: usize, attempt: Attempt) -> Result<usize, Failure> {
    let _inside = Inside(&world, worker);
    lock(&world).enters(worker, &attempt);
    pause().await;
    let word = lock(&world).calls(worker, attempt.history().generation);
    obey(word)?;
    pause().await;
    let word = lock(&world).does_more(worker);
    obey(word)?;
    Ok(worker)
}

impl World {
    /// The gateway answers as before, or else decides.
    fn calls(&mut self, worker: usize, generation: u64) -> HandlerEnd {
        let known = self.answered.get(&generation).copied();
        self.workers[worker].receives_answer(known);
        let payload = self.payload(worker);
        let charged = match known {
            // A known key with another body: the gateway says nothing of the first request.
            Some((other, _)) if other != payload => {
                self.says(worker, HandlerEnd::Permanent);
                return HandlerEnd::Permanent;
            }
            Some((_, charged)) => charged,
            None => {
                let charged = self.choose(worker, 2) == 0;
                self.answered.insert(generation, (payload, charged));
                if charged {
                    self.promises.charges(worker);
                }
                charged
            }
        };
        let is_lost = self.choose(worker, 2) == 1;
        let word = match (is_lost, charged) {
            (true, _) => HandlerEnd::Retryable,
            (false, true) => HandlerEnd::Done,
            (false, false) => HandlerEnd::Declined,
        };
        self.log(worker, || {
            format!("calls under key {generation}, charged: {charged}, answer lost: {is_lost}")
        });
        if word != HandlerEnd::Done {
            self.says(worker, word);
        }
        word
    }

    /// A later step of the handler, after the charge.
    fn does_more(&mut self, worker: usize) -> HandlerEnd {
        let words = [
            HandlerEnd::Done,
            HandlerEnd::Permanent,
            HandlerEnd::Retryable,
        ];
        let word = words[self.choose(worker, words.len())];
        self.says(worker, word);
        word
    }
}

#[test]
fn gateway_that_remembers_charges_once() {
    let found = keeps_every_promise(&Scenario::call_keys());
    for outcome in ["permanent_failure", "failed_before", "completed"] {
        assert!(found.seen.outcomes().contains(outcome), "{outcome}");
    }
}

/// An order that fails with one card and is corrected, in whatever order the two come back.
#[test]
fn gateway_that_remembers_charges_once_for_two_payloads() {
    let found = keeps_every_promise(&Scenario {
        fewer: 1,
        ..Scenario::call_keys().payloads()
    });
    for outcome in ["conflict", "failed_before", "key_reused"] {
        assert!(found.seen.outcomes().contains(outcome), "{outcome}");
    }
}

#[test]
fn gateway_that_remembers_charges_once_for_frozen_workers() {
    keeps_every_promise(&Scenario::call_keys().frozen());
}

#[test]
fn explorer_finds_each_flaw_of_a_call_key() {
    for (flaw, promise) in [
        (Flaw::DeclineKeepsGeneration, "P3"),
        (Flaw::ClaimForgetsGeneration, "P3"),
        (Flaw::FailureTakesGeneration, "once"),
    ] {
        println!("{flaw:?}");
        finds(&Scenario::call_keys().with(flaw), promise);
    }
}

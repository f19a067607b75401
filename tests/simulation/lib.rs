//! A deterministic simulation of the consumer. One thread with paused time runs the shipped code in simulated
//! processes, which are killed, frozen and thawed, over a queue, a table and a gateway that fail. Everything follows
//! from a seed: its settings, its messages, its faults and its random numbers.

#![expect(
    missing_docs,
    unreachable_pub,
    reason = "a program for this project's tests"
)]
#![expect(
    clippy::expect_used,
    reason = "a simulation that cannot begin must end"
)]

mod consumer;
mod dice;
mod event;
pub mod features;
pub mod flaws;
mod gateway;
mod lambda;
mod layer;
pub mod ledger;
mod mapping;
pub mod operator;
pub mod oracle;
pub mod outage;
pub mod plan;
mod queue;
mod rarities;
mod s3;
mod sdk;
mod shrink;
mod sqs;
mod stream;
pub mod survey;
mod table;
mod wire;
mod world;

use std::{panic, time::Duration};

use gateway::HANDLER_PANICS;
use ledger::{Event, Story};
use oracle::{Verdict, judge};
use plan::Plan;
pub use shrink::shrink;
use sqs_once::internal::system::set_flaw;
use tokio::runtime::Builder;
use world::World;

/// What happened in a world, and what the oracle says about it.
pub struct Run {
    pub plan: Plan,
    pub events: Vec<(Duration, Event)>,
    pub verdict: Verdict,
}

/// Runs a world, with the product as it is or with one flaw.
pub fn run(plan: Plan, flaw: Option<&'static str>) -> Run {
    // The product's random numbers: jitter and owners.
    fastrand::seed(plan.seed);
    set_flaw(flaw);
    let runtime = Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime");
    let events = runtime.block_on(async {
        let world = World::new(plan.clone());
        mapping::run(&world).await;
        world.ledger.take()
    });
    set_flaw(None);
    let verdict = judge(&plan, &events);
    Run {
        plan,
        events,
        verdict,
    }
}

/// Keeps the panics of handlers, which the consumer catches, out of the output.
pub fn silence_handlers() {
    let print = panic::take_hook();
    panic::set_hook(Box::new(move |panic| {
        let handlers = panic.payload().downcast_ref::<String>();
        if !handlers.is_some_and(|text| text.starts_with(HANDLER_PANICS)) {
            print(panic);
        }
    }));
}

impl Run {
    /// The events of the first violation, for a person.
    pub fn story(&self) -> String {
        let names = self.verdict.violations.first();
        let names = names.map_or_else(Vec::new, |violation| violation.names.clone());
        Story {
            events: &self.events,
            names,
        }
        .to_string()
    }
}

//! Model: processes that crash and freeze, and a network that loses, delays and repeats requests. Stateright
//! visits every state within the bounds of a [`World`].
//!
//! The explorer in `tests/model/schedules` drives the futures that you deploy, one operation at a time. It cannot
//! drive a process with several messages that ends, because it would have to clone its futures. So this model
//! has the steps of such a process, and calls the library's functions of `protocol` for every decision: which
//! claim is admitted, what a failed condition means, who is a suspect, who runs next, how long a lease lasts,
//! what a settlement leaves, whether the circuit admits a message. A change of a rule changes the model.
//!
//! | file | contents |
//! | --- | --- |
//! | `world.rs` | the bounds: messages, processes, and what may go wrong how often |
//! | `state.rs` | messages, records, processes, the network and the clock |
//! | `action.rs`, `options.rs` | the next thing that may happen, and when |
//! | `step.rs` | the next state: SQS, the network and the clock |
//! | `answers.rs`, `handler.rs`, `settle.rs`, `breaker.rs` | the next state: a worker and its circuit breaker |
//! | `table.rs` | the next state: the record that a request changes |
//! | `rules.rs` | the library's decisions, one of which may have a flaw (`flaw.rs`) |
//! | `promises.rs` | the promises, in every state and in the last ones |
//! | `canonical.rs` | which states are the same |
//!
//! # Time
//!
//! A second is the unit. Time passes freely while no process is at work, until SQS shows the next message. While a
//! process is at work, it passes only as a freeze, to any of the instants at which something changes: the end of
//! a lease, a deadline, half of the time, a visibility timeout, a probe. So a path has as many freezes as its
//! world has, and any number of idle hours.
//!
//! # Progress
//!
//! Receives and the clock only grow, and each trouble has a number. So every path ends, and progress is a
//! property of last states: no message is left there. We do not use Stateright's `eventually`, which ignores
//! cycles.
//!
//! # Not modelled
//!
//! - More troubles than the bounds.
//! - Several batches at a time in one process, and FIFO groups.
//! - Throttled and denied requests: to a worker they are requests without an answer.
//! - Different payloads under a key.

mod action;
mod answers;
mod breaker;
mod canonical;
mod flaw;
mod flawed;
mod handler;
mod options;
mod promises;
mod rules;
mod settle;
mod state;
mod step;
mod table;
mod world;

use std::{
    io::{Write as _, stderr},
    sync::atomic::Ordering::Relaxed,
    time::Instant,
};

use stateright::{Checker, HasDiscoveries, Model, Path, Property};

use action::Action;
use promises::{Promise, properties};
use state::State;
use world::World;

impl Model for World {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        self.first_states()
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        World::actions(self, state, actions);
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        Some(self.next(last, action))
    }

    fn properties(&self) -> Vec<Property<Self>> {
        properties()
    }
}

/// The shortest path to a broken promise.
struct Counterexample {
    promise: Promise,
    steps: usize,
    text: String,
}

/// Visits every state, or as many as it takes to find a broken promise.
fn check(world: World) -> Option<Counterexample> {
    let (name, flaw, began) = (world.name, world.rules.flaw, Instant::now());
    // With one thread and in this order, the first broken state has the shortest path.
    let search = world.checker().finish_when(HasDiscoveries::AnyFailures);
    let search = search.spawn_bfs().join();
    let found = search.discovery("keeps every promise");
    let seen = &search.model().seen;
    // Bypasses libtest, which shows the output of failed tests only.
    let _told = writeln!(
        stderr(),
        "checked {name}{}: {} states, {} last states, at most {} receives of a message and {} steps, {:.1} s",
        flaw.map_or(String::new(), |flaw| format!("+{flaw:?}")),
        search.unique_state_count(),
        seen.last_states.load(Relaxed),
        seen.receives.load(Relaxed),
        search.max_depth(),
        began.elapsed().as_secs_f64(),
    );
    found.map(|path| counterexample(search.model(), path))
}

fn counterexample(world: &World, path: Path<State, Action>) -> Counterexample {
    let last = path.last_state();
    let promise = last.broken.or_else(|| world.broken_now(last));
    let promise = promise.expect("the last state breaks a promise");
    let steps = path.into_vec();
    let mut text = format!("{}, {}:\n", promise.name(), world.name);
    for (state, action) in &steps {
        let action = action.as_ref().map_or("end".into(), ToString::to_string);
        text += &format!("{:>4} s  {action}\n", state.now);
    }
    Counterexample {
        promise,
        steps: steps.len() - 1,
        text,
    }
}

fn keeps_every_promise(world: World) {
    if let Some(found) = check(world) {
        panic!("{}", found.text);
    }
}

/// Promises 1, 2, 3, 5, 6 and 7.
#[test]
fn crashing_processes_keep_every_promise() {
    for world in World::small() {
        keeps_every_promise(world);
    }
}

/// The same with more of everything: `make test-deep`.
#[test]
#[ignore = "takes minutes and 3 GB: `make test-deep` runs it"]
fn full_worlds_keep_every_promise() {
    for world in World::full() {
        keeps_every_promise(world);
    }
}

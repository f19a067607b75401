//! `on_duplicate`: called once for each delivery that is answered as a duplicate, with what was recorded of its operation.

use std::collections::BTreeSet;

use super::{Bench, state::State};
use crate::{
    ledger::{Event, Run, Worker},
    plan::Kind,
};

#[derive(Default)]
pub(super) struct Replays {
    /// Deliveries for which it was called: message, receive count and process.
    called: BTreeSet<(String, u32, Worker)>,
}

impl Replays {
    pub(super) fn event(&mut self, event: &Event, bench: &mut Bench<'_>) {
        match event {
            Event::CalledBack {
                message,
                count,
                worker,
                key,
                call_key,
            } => {
                let is_first = self.called.insert((message.clone(), *count, *worker));
                let check = "on_duplicate is called once";
                bench.check(check, is_first, &[key, message], || {
                    format!("it was called again for receive {count} of {message}")
                });
                called_back(message, key, call_key, bench);
            }
            Event::Outcome {
                message,
                count,
                outcome: "duplicate",
                worker,
            } => {
                let delivery = (message.clone(), *count, *worker);
                // It gets the message, so it is not called for one that cannot be decoded.
                let is_readable = bench.messages[message].kind != Kind::Undecodable;
                let is_called = self.called.contains(&delivery);
                let check = "on_duplicate is called once";
                bench.check(check, is_called == is_readable, &[message], || {
                    format!("called for receive {count} of {message}: {is_called}")
                });
            }
            Event::Replayed { key, output } => {
                let run = output.as_deref().and_then(run_of);
                let of_run = run.and_then(|run| bench.keys.get(&run)).cloned();
                bench.check(
                    "P4 a duplicate gets its operation's output",
                    run.is_none() || of_run.as_ref() == Some(key),
                    &[key],
                    || format!("a duplicate of {key} got the output of {of_run:?}"),
                );
            }
            _ => {}
        }
    }
}

/// It gets the call key under which the operation was completed.
fn called_back(message: &str, key: &str, call_key: &str, bench: &mut Bench<'_>) {
    let generation = (bench.states.since(key, bench.at_work_since()))
        .find(|state| state.is_completed())
        .map(State::generation);
    let of = &bench.messages[message];
    let expected = generation.and_then(|generation| bench.call_key(of, generation));
    let holds = expected.as_deref() == Some(call_key);
    let check = "on_duplicate gets its operation's call key";
    bench.check(check, holds, &[key, message], || {
        format!("{message} got {call_key}, and {key} was completed in generation {generation:?}")
    });
}

/// Returns the run whose output this is. A lookup has an output of its own.
pub(super) fn run_of(output: &str) -> Option<Run> {
    let (_, run) = output.rsplit_once("by run ")?;
    run.parse().ok()
}

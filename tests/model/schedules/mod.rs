//! Explorer: the promises of every mode, under every order of events up to a bound.
//!
//! Workers run the library's own futures, polled by hand. At each await of each worker, the
//! explorer tries everything that may come next:
//!
//! | | |
//! | --- | --- |
//! | the network | responds; loses the request or the response; hangs; sends a request twice; delivers it late, when its worker may have given up or crashed; throttles (`network.rs`) |
//! | the table | refuses a transaction, because of a condition of the user's; has forgotten a token (`table.rs`) |
//! | the handler | succeeds, fails retryably or permanently, panics before or after its effect; interprets refused writes (`handler.rs`, `planner.rs`) |
//! | a worker | continues, crashes, or waits while another goes first (`schedule.rs`) |
//! | the clocks | stand; pass the lease; pass a worker's deadline; differ by the lease margin (`clock.rs`) |
//! | an operator | releases the record, or deletes it, in the scenarios of these names |
//! | a gateway | charges or declines, its answer is lost, and it answers a call key as before (`call_keys.rs`) |
//! | the queue | delivers either of two messages with one key, and redelivers them while other workers run (`schedule.rs`) |
//!
//! Every event outside the ordinary course is a deviation. The explorer tries all schedules with
//! up to three deviations, and up to four under `EXPLORE_BOUND=4` (`chooser.rs`). It tries one less
//! if executions take longer, or if another scenario covers nearly as much (`Scenario::fewer`). It
//! checks the promises at every step of a schedule (`promises.rs`), and every message must be
//! settled in the end. It prints the shortest schedule that breaks a promise, with the fewest
//! deviations and then the fewest steps. The output is a time line and a line that repeats it:
//!
//! ```text
//! SCHEDULE=claim:0.0.4.2 cargo test --package model replay -- --nocapture
//! ```
//!
//! In each scenario up to three workers run at a time, and any number may follow. A worker that
//! starts while another runs is a deviation. With a bound of two, three concurrent workers meet
//! each other and no other deviation.
//!
//! | mode | scenarios | its table |
//! | --- | --- | --- |
//! | `Once` (`claim.rs`, `call_keys.rs`) | `claim`, `grouped`, and `claim` frozen, skewed, after a crash, with an operator, deleted, with two payloads (also on a FIFO queue); `call_keys`, also frozen, and with two payloads | the record (`records.rs`), by the library's rule of a swap |
//! | `Once` with a lookup (`reconcile.rs`) | `reconciled`, also frozen and skewed | the same, and a gateway at which charges arrive late |
//! | `Once` with `Done`, `Inbox` (`transactions.rs`) | `commit`, also frozen, and `inbox` | the same, and the item that the writes change |
//!
//! The explorer is tested too: on a table with one flaw (`flaw.rs`) it must find the promise that
//! the flaw breaks.
//!
//! # Not tried
//!
//! - More deviations than the bound.
//! - Wall clocks that differ by more than the lease margin.
//! - The end of the retention, but for the deletion of the record.
//! - The SDK's own retries and timeouts: the fates of a call stand for them.
//! - DynamoDB itself: `tests/wire/swaps.rs` tests its conditions against the same
//!   rules, `tests/wire/modes` its transactions.
//!
//! # Another mode of the library
//!
//! Add a function beside `claim_run_complete` in `handler.rs` and a `Scenario` of it. The function
//! notifies the promises when its handler enters, acts and leaves. A further promise is one more
//! check in `promises.rs`.
//!
//! # Why a custom explorer
//!
//! - `loom` and `shuttle` try the interleavings of threads that share memory. They replace
//!   `std::sync` or `tokio` in the code under test. Workers here share only a table, their crashes
//!   and lost responses matter, and the code under test stays as it ships.
//! - `stateright` checks a model: states that can be cloned and hashed. A future cannot be cloned, so a
//!   model has the steps of a worker once more.
//! - `turmoil` and `madsim` simulate networks and time from random seeds. They do not rule out the
//!   schedules that they miss.
//!
//! A future polled by hand needs none of them: it stops at each await by itself.

mod call_keys;
mod chooser;
mod claim;
mod clock;
mod flaw;
mod handler;
mod line;
mod network;
mod planner;
mod promises;
mod reconcile;
mod records;
mod refusal;
mod request;
mod scenario;
mod schedule;
mod table;
mod timeline;
mod transactions;
mod wire;
mod world;

use std::{collections::BTreeSet, env, str::FromStr as _};

use chooser::{Found, Schedule, Visited};
use flaw::Flaw;
use scenario::Scenario;
use schedule::Ended;

/// Maximum number of deviations: `EXPLORE_BOUND`.
pub(crate) fn bound() -> u32 {
    env::var("EXPLORE_BOUND").map_or(3, |bound| bound.parse().expect("a number"))
}

/// The broken promise, the time line, and the line that repeats it.
fn replayed(scenario: &Scenario, schedule: &Schedule) -> (Ended, String) {
    let (ended, timeline) = scenario.replay(schedule);
    let line = scenario.line(schedule);
    let text = format!(
        "{ended:?}\n\n{timeline}\nSCHEDULE={line} cargo test --package model replay -- --nocapture\n"
    );
    (ended, text)
}

fn keeps_every_promise(scenario: &Scenario) -> Found {
    let found = scenario.explore(bound() - scenario.fewer, Visited::default);
    if let Some(schedule) = &found.broken {
        panic!("{}", replayed(scenario, schedule).1);
    }
    found
}

/// Two schedules that lead to the same state are explored once. If the hash of a state missed
/// anything, exploring each schedule would find more states.
#[test]
fn pruning_loses_no_state() {
    let scenarios = [
        Scenario::claim(),
        Scenario::grouped(),
        Scenario::claim().frozen(),
        Scenario::claim().skew(),
        Scenario::claim().after_crash(),
        Scenario::claim().payloads(),
        Scenario::commit().frozen(),
        Scenario::inbox(),
    ];
    for scenario in scenarios {
        let once_each = scenario.explore(2, Visited::default);
        let every_path = scenario.explore(2, Visited::on_every_path);
        assert!(once_each.executions < every_path.executions);
        let once_each: BTreeSet<u64> = once_each.seen.states().collect();
        let every_path: BTreeSet<u64> = every_path.seen.states().collect();
        let lost = every_path.difference(&once_each).count();
        assert_eq!(lost, 0, "of {} states", every_path.len());
    }
}

/// Pruning also keeps the shortest schedule.
#[test]
fn pruning_keeps_shortest_schedule() {
    for scenario in [
        Scenario::claim().with(Flaw::UndoClosesAttempts),
        Scenario::claim().with(Flaw::OwnerNotCompared),
        Scenario::commit().with(Flaw::WritesGoFirst),
    ] {
        let steps = |seen| {
            let schedule = scenario.explore(3, seen).broken.expect("a flaw");
            match replayed(&scenario, &schedule).0 {
                Ended::Broken(_, steps) => steps,
                ended => panic!("{ended:?}"),
            }
        };
        assert_eq!(steps(Visited::default), steps(Visited::on_every_path));
    }
}

/// Explores a table with a flaw, and expects the promise that the flaw breaks.
fn finds(scenario: &Scenario, promise: &str) {
    let found = scenario.explore(3, Visited::default);
    let schedule = found.broken.expect("the flaw breaks no promise");
    let (ended, text) = replayed(scenario, &schedule);
    println!("{text}");
    let Ended::Broken(how, _) = ended else {
        panic!("the repeated schedule breaks no promise")
    };
    assert!(how.starts_with(promise), "{how}");
}

/// Repeats the schedule in `SCHEDULE`, with its time line. Without `SCHEDULE`, repeats one that was
/// just found: its line must describe the execution fully.
#[test]
fn replay() {
    let repeat = |line: &str| {
        let (name, schedule) = line.split_once(':').expect("scenario:choices");
        let scenario = Scenario::named(name).expect("a scenario of scenario.rs");
        replayed(&scenario, &Schedule::from_str(schedule).unwrap())
    };
    if let Ok(line) = env::var("SCHEDULE") {
        let (ended, text) = repeat(&line);
        println!("{text}");
        assert_eq!(ended, Ended::Well);
    } else {
        let scenario = Scenario::claim().with(Flaw::UndoClosesAttempts);
        let found = scenario.explore(3, Visited::default);
        let line = scenario.line(&found.broken.expect("the flaw breaks no promise"));
        assert!(matches!(repeat(&line).0, Ended::Broken(..)));
    }
}

//! The promises of every mode, in every order in which things can happen and go wrong.
//!
//! Workers run the library's own futures, polled by hand. At each await of each worker, the
//! explorer tries everything that may come next:
//!
//! | | |
//! | --- | --- |
//! | the network | answers; loses the request, or the answer; says nothing; sends it twice; delivers it late, when its worker may have given up or crashed; throttles (`network.rs`) |
//! | the table | refuses a transaction or a change, because of a condition of the user's; has forgotten a token; shows a reader what was there before (`table.rs`, `items.rs`) |
//! | the handler | succeeds, fails retryably or permanently, panics before or after its effect; decides what refused writes mean (`handler.rs`, `planner.rs`, `changer.rs`) |
//! | a worker | goes on, crashes, or is left standing while another goes first (`schedule.rs`) |
//! | the clocks | stand; pass the lease; pass a worker's deadline; differ by the lease margin (`clock.rs`) |
//! | the queue | delivers either of two messages with one key, again too, while others are at work (`schedule.rs`) |
//!
//! What is not the ordinary course of a day is a deviation, and all schedules with up to three
//! of them are tried, up to four by `make test-deep` (`chooser.rs`); where executions take longer,
//! or another scenario goes nearly as far, one less (`Scenario::fewer`). In each, the promises are
//! checked at every step (`promises.rs`), and every message must in the end be settled. The shortest
//! schedule that breaks a promise, with the fewest deviations and then the fewest steps, is printed
//! as a time line with the line that repeats it:
//!
//! ```text
//! SCHEDULE=claim:0.0.4.2 cargo test --test explore replay -- --nocapture
//! ```
//!
//! In each scenario up to three workers are at work at a time, and any number follows. Each that
//! comes while another is at work is a deviation: with a bound of two, three of them meet each
//! other and nothing else.
//!
//! | mode | scenarios | its table |
//! | --- | --- | --- |
//! | `Once` (`claim.rs`) | `claim`, `untimed`, `skewed`, `skewed_untimed`, `reopened` | the `MemoryStore` that ships |
//! | `Once` with `Done`, `Inbox` (`transactions.rs`) | `commit`, `commit_untimed`, `inbox`, `first_look` | the same, and the item that the writes change |
//! | `OnItem` (`on_item.rs`) | `create`, `update`, `retain`, `modify` | the real SDK over a wire of ours, and dynoxide in this process |
//!
//! That the explorer can fail is tested too: on a table with one flaw (`flaw.rs`) it must find
//! the promise which that flaw breaks.
//!
//! # What it does not try
//!
//! More deviations than the bound. Wall clocks that differ by more than the lease margin. The end
//! of the retention. Other payloads under the key. The SDK's own retries
//! and timeouts: they are fates of a call. DynamoDB itself: `tests/store_conformance.rs` holds its
//! condition expressions to the same rules, `tests/modes` its transactions.
//!
//! # Another mode of the library
//!
//! Another way to run a message is another function beside `claim_run_complete` in `handler.rs`
//! and a `Scenario` of it. It tells the promises when its handler enters, acts and leaves; what
//! it promises beyond these is one more check in `promises.rs`.
//!
//! # Why an explorer of our own
//!
//! - `loom` and `shuttle` try the interleavings of threads that share memory, by taking the
//!   place of `std::sync` or `tokio` in the code under test. Workers here share nothing but a
//!   table, their crashes and lost answers are what matters, and the code under test stays as it
//!   ships.
//! - `stateright` checks a model: states that can be cloned and hashed. A future can't be, so it
//!   would be a second protocol, written for the checker.
//! - `turmoil` and `madsim` simulate networks and time from random seeds; what they don't meet
//!   they don't rule out.
//!
//! A future that is polled by hand needs none of them: it stops at each await by itself.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    unreachable_pub,
    reason = "tests fail by panicking; each module says what the others may use"
)]

mod changer;
mod chooser;
mod claim;
mod clock;
mod flaw;
mod handler;
mod items;
mod line;
mod network;
mod on_item;
mod planner;
mod promises;
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

use changer::Way;
use chooser::{Found, Schedule, Seen};
use flaw::Flaw;
use scenario::Scenario;
use schedule::Ended;

/// How many deviations there may be: `EXPLORE_BOUND`, which `make test-deep` sets.
fn bound() -> u32 {
    env::var("EXPLORE_BOUND").map_or(3, |bound| bound.parse().expect("a number"))
}

/// What broke, the time line, and how to see it again.
fn told(scenario: &Scenario, schedule: &Schedule) -> (Ended, String) {
    let (ended, timeline) = scenario.replay(schedule);
    let line = scenario.line(schedule);
    let text = format!(
        "{ended:?}\n\n{timeline}\nSCHEDULE={line} cargo test --test explore replay -- --nocapture\n"
    );
    (ended, text)
}

fn keeps_every_promise(scenario: &Scenario) -> Found {
    let found = scenario.explore(bound() - scenario.fewer, Seen::default);
    if let Some(schedule) = &found.broken {
        panic!("{}", told(scenario, schedule).1);
    }
    found
}

/// Two schedules that lead to the same state are followed up once. Were anything missing from what
/// is taken for the state, following up each would lead to more.
#[test]
fn pruning_loses_no_state() {
    let mut scenarios = vec![
        Scenario::claim(),
        Scenario::untimed(),
        Scenario::skewed(),
        Scenario::reopened(),
        Scenario::commit_untimed(),
        Scenario::inbox(),
        Scenario::first_look(),
    ];
    // They take longer, and with one deviation nothing would be left out.
    if bound() > 3 {
        scenarios
            .extend([Way::Create, Way::Update, Way::Retain, Way::Modify].map(Scenario::on_item));
    }
    for scenario in scenarios {
        let once_each = scenario.explore(2, Seen::default);
        let every_path = scenario.explore(2, Seen::on_every_path);
        assert!(once_each.executions < every_path.executions);
        let once_each: BTreeSet<u64> = once_each.seen.states().collect();
        let every_path: BTreeSet<u64> = every_path.seen.states().collect();
        let lost = every_path.difference(&once_each).count();
        assert_eq!(lost, 0, "of {} states", every_path.len());
    }
}

/// Nor does it miss what is shorter.
#[test]
fn pruning_keeps_shortest_schedule() {
    for scenario in [
        Scenario::claim().with(Flaw::RestoreWithoutOwner),
        Scenario::claim().with(Flaw::CompletionWithoutOwner),
        Scenario::commit().with(Flaw::EndLeaseWithoutCondition),
    ] {
        let steps = |seen| {
            let schedule = scenario.explore(3, seen).broken.expect("a flaw");
            match told(&scenario, &schedule).0 {
                Ended::Broken(_, steps) => steps,
                ended => panic!("{ended:?}"),
            }
        };
        assert_eq!(steps(Seen::default), steps(Seen::on_every_path));
    }
}

/// Explores a table with a flaw; it must come to the promise that the flaw breaks.
fn finds(scenario: &Scenario, promise: &str) {
    let found = scenario.explore(3, Seen::default);
    let schedule = found.broken.expect("a flaw that breaks nothing");
    let (ended, text) = told(scenario, &schedule);
    println!("{text}");
    let Ended::Broken(how, _) = ended else {
        panic!("the schedule breaks nothing when it is repeated")
    };
    assert!(how.starts_with(promise), "{how}");
}

/// Repeats the schedule that `SCHEDULE` names, with its time line. Without it, one that was just
/// found: a line says all that there is to say of an execution.
#[test]
fn replay() {
    let repeat = |line: &str| {
        let (name, schedule) = line.split_once(':').expect("scenario:choices");
        let scenario = Scenario::named(name).expect("a scenario of scenario.rs");
        told(&scenario, &Schedule::from_str(schedule).unwrap())
    };
    if let Ok(line) = env::var("SCHEDULE") {
        let (ended, text) = repeat(&line);
        println!("{text}");
        assert_eq!(ended, Ended::Well);
    } else {
        let scenario = Scenario::claim().with(Flaw::RestoreWithoutOwner);
        let found = scenario.explore(3, Seen::default);
        let line = scenario.line(&found.broken.expect("a flaw that breaks nothing"));
        assert!(matches!(repeat(&line).0, Ended::Broken(..)));
    }
}

//! What is explored: how a worker handles a message, how many there are, on which table.

use std::{
    io::{Write as _, stderr},
    pin::Pin,
};

use sqs_once::{Delivery, Outcome};

use crate::{
    chooser::{Chooser, Found, Schedule, Seen, search},
    clock::Clocks,
    handler,
    schedule::{Ended, execute},
    table::Flaw,
    timeline::Timeline,
    world::Shared,
};

/// How a worker handles one delivery, effect included: a mode of the library. Another mode is
/// another function, which tells the [`Promises`](crate::promises::Promises) what happens.
pub type Work = fn(Shared, usize, Delivery) -> Pin<Box<dyn Future<Output = Outcome>>>;

#[derive(Clone, Debug)]
pub struct Scenario {
    pub name: String,
    pub work: Work,
    /// At most so many at work at a time; any number may follow.
    pub workers: usize,
    /// Messages with the same key. Each may be delivered at any time, and again.
    pub messages: usize,
    pub freeze: Freeze,
    pub flaw: Option<Flaw>,
}

/// What a worker's own timers do while it is frozen until its lease is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Freeze {
    /// They go on, as when a process is stopped or starved: they fire when it thaws.
    Timed,
    /// They stand still, as when a whole machine is suspended: only a clock tells.
    Untimed,
}

impl Scenario {
    /// Claim, run the handler, complete, for an effect outside DynamoDB.
    pub fn claim() -> Self {
        Self {
            name: "claim".into(),
            work: |world, worker, delivery| {
                Box::pin(handler::claim_run_complete(world, worker, delivery))
            },
            workers: 2,
            messages: 2,
            freeze: Freeze::Timed,
            flaw: None,
        }
    }

    /// The same with up to three workers at a time: every schedule of two, and more.
    pub fn three_workers() -> Self {
        Self {
            name: "three_workers".into(),
            workers: 3,
            ..Self::claim()
        }
    }

    /// The same with workers whose timers do not tell them how long they were frozen.
    pub fn untimed() -> Self {
        Self {
            name: "untimed".into(),
            freeze: Freeze::Untimed,
            ..Self::claim()
        }
    }

    /// The same on a table with a flaw.
    pub fn flawed(flaw: Flaw) -> Self {
        Self {
            name: format!("{flaw:?}"),
            flaw: Some(flaw),
            ..Self::claim()
        }
    }

    /// The scenario of that name.
    pub fn named(name: &str) -> Option<Self> {
        let sound = [Self::claim(), Self::three_workers(), Self::untimed()];
        let mut all = sound.into_iter().chain(Flaw::ALL.map(Self::flawed));
        all.find(|scenario| scenario.name == name)
    }

    /// Tries every schedule with at most `bound` deviations, up to the first that breaks a
    /// promise.
    pub fn explore(&self, bound: u32, seen: fn() -> Seen) -> Found {
        let clocks = Clocks::new();
        let found = search(bound, seen, |seen, chooser| {
            let (ended, chooser, _) = execute(self, &clocks, seen, chooser, Timeline::default());
            (chooser, !matches!(ended, Ended::Broken(_)))
        });
        // Past libtest, which shows only what failed.
        let _told = writeln!(
            stderr(),
            "explored {}: {} executions with at most {bound} deviations, {} states in the last round",
            self.name,
            found.executions,
            found.seen.states().len(),
        );
        found
    }

    /// Runs one schedule, and writes down what happens.
    pub fn replay(&self, schedule: &Schedule) -> (Ended, Timeline) {
        let (clocks, mut seen) = (Clocks::new(), Seen::on_every_path());
        let chooser = Chooser::new(schedule);
        let (ended, _, timeline) = execute(self, &clocks, &mut seen, chooser, Timeline::written());
        (ended, timeline)
    }

    /// A schedule of this scenario, in one line: see `replay` in `main.rs`.
    pub fn line(&self, schedule: &Schedule) -> String {
        format!("{}:{schedule}", self.name)
    }
}

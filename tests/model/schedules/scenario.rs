//! Scenarios: a worker's mode, the messages, and the table.

use std::{
    io::{Write as _, stderr},
    pin::Pin,
    time::Duration,
};

use sqs_once::{Outcome, internal::Delivery};

use crate::schedules::{
    call_keys,
    chooser::{Chooser, Found, Schedule, Visited, search},
    clock::Clocks,
    flaw::Flaw,
    handler, planner,
    reconcile::{self, ON_ITS_WAY},
    schedule::{Ended, execute},
    timeline::Timeline,
    world::{Message, Shared},
};

/// Processing of one delivery, effect included: a mode of the library. Another mode is another
/// function, which notifies the [`Promises`](crate::schedules::promises::Promises).
pub type Work = fn(Shared, usize, Delivery) -> Pin<Box<dyn Future<Output = Outcome>>>;

#[derive(Clone, Debug)]
pub struct Scenario {
    pub name: String,
    pub work: Work,
    pub effect: Effect,
    /// True if a refused claim over nothing comes without the record.
    pub groups: bool,
    /// True if an operator may release the record at any time.
    pub operated: bool,
    /// True if the record may be deleted at any time.
    pub deleted: bool,
    /// The payload of each message. All have the same key, and may be delivered at any time, and again.
    pub payloads: Vec<usize>,
    /// The messages are a FIFO group. The next one waits until the one before is settled.
    pub fifo: bool,
    /// A settled message that comes back must be settled again: its acknowledgement was lost, or no copy can be made.
    pub returns: bool,
    pub freeze: Freeze,
    /// Quarantine of handlers with a lookup. `None`: the handler does not look up.
    pub quarantine: Option<Duration>,
    /// Every second worker's clock is ahead by the lease margin.
    pub clocks_differ: bool,
    /// A worker crashed after its effect before the schedule begins.
    pub begins_after_a_crash: bool,
    /// Number of deviations by which its bound is lower than the others'.
    pub fewer: u32,
    pub flaw: Option<Flaw>,
}

/// Place of the effect, which must happen once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Outside the table: the handler makes it.
    Outside,
    /// In the table: a transaction makes it.
    InTable,
}

/// Behaviour of a worker's own timers while it is frozen until its lease has expired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Freeze {
    /// They continue, as when a process is stopped or starved: they fire on the thaw.
    Timed,
    /// They stand still, as when a whole machine is suspended: only the wall clock shows it.
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
            effect: Effect::Outside,
            groups: false,
            operated: false,
            deleted: false,
            payloads: vec![0; 2],
            fifo: false,
            returns: false,
            freeze: Freeze::Timed,
            quarantine: None,
            clocks_differ: false,
            begins_after_a_crash: false,
            fewer: 0,
            flaw: None,
        }
    }

    /// The same with workers whose timers stand still while frozen.
    pub fn frozen(self) -> Self {
        Self {
            name: format!("{}_frozen", self.name),
            freeze: Freeze::Untimed,
            ..self
        }
    }

    /// The same with workers whose clocks differ by the lease margin.
    pub fn skew(self) -> Self {
        Self {
            name: format!("{}_skew", self.name),
            clocks_differ: true,
            fewer: 1,
            ..self
        }
    }

    /// The same after a crash: every run is a takeover.
    pub fn after_crash(self) -> Self {
        Self {
            name: format!("{}_after_crash", self.name),
            begins_after_a_crash: true,
            fewer: 1,
            ..self
        }
    }

    /// The same with an operator who releases the record at any time.
    pub fn operator(self) -> Self {
        Self {
            name: format!("{}_operator", self.name),
            operated: true,
            ..self
        }
    }

    /// The same with a record that is deleted at any time.
    pub fn deletion(self) -> Self {
        Self {
            name: format!("{}_deleted", self.name),
            deleted: true,
            ..self
        }
    }

    /// The same with a second payload under the key: a corrected order, or a producer's mistake.
    pub fn payloads(self) -> Self {
        Self {
            name: format!("{}_payloads", self.name),
            payloads: vec![0, 1],
            returns: true,
            ..self
        }
    }

    /// The same on a FIFO queue.
    pub fn fifo(self) -> Self {
        Self {
            name: format!("{}_fifo", self.name),
            fifo: true,
            fewer: 1,
            ..self
        }
    }

    /// The messages, none of which is sent.
    pub fn messages(&self) -> Vec<Message> {
        let payloads = self.payloads.iter();
        let message = |payload: &usize| Message {
            payload: *payload,
            sent: None,
        };
        payloads.map(message).collect()
    }

    /// Claim, call a gateway that remembers its answers by call key, complete.
    pub fn call_keys() -> Self {
        Self {
            name: "call_keys".into(),
            work: |world, worker, delivery| {
                Box::pin(call_keys::claim_call_run(world, worker, delivery))
            },
            ..Self::claim()
        }
    }

    /// The same with batched writes: a refused claim over nothing is followed by a read.
    pub fn grouped() -> Self {
        Self {
            name: "grouped".into(),
            groups: true,
            ..Self::claim()
        }
    }

    /// Claim, look up if an attempt is open, run the handler, complete. The gateway has no idempotency
    /// keys, and charges arrive late.
    pub fn reconciled() -> Self {
        Self {
            name: "reconciled".into(),
            work: |world, worker, delivery| {
                Box::pin(reconcile::claim_look_up_run(world, worker, delivery))
            },
            quarantine: Some(ON_ITS_WAY),
            fewer: 1,
            ..Self::claim()
        }
    }

    /// The same with a different quarantine. `None`: without lookup.
    pub fn quarantine(self, quarantine: impl Into<Option<Duration>>) -> Self {
        let quarantine = quarantine.into();
        Self {
            name: format!(
                "{}~{}",
                self.name,
                quarantine.map_or(-1.0, |wait| wait.as_secs_f64())
            ),
            quarantine,
            ..self
        }
    }

    /// Claim, plan, commit together with the record.
    pub fn commit() -> Self {
        Self {
            name: "commit".into(),
            work: |world, worker, delivery| {
                Box::pin(planner::claim_plan_commit(world, worker, delivery))
            },
            effect: Effect::InTable,
            fewer: 1,
            ..Self::claim()
        }
    }

    /// Plan, commit together with the record.
    pub fn inbox() -> Self {
        Self {
            name: "inbox".into(),
            work: |world, worker, delivery| Box::pin(planner::plan_commit(world, worker, delivery)),
            fewer: 0,
            ..Self::commit()
        }
    }

    /// The same on a table with a flaw.
    pub fn with(self, flaw: Flaw) -> Self {
        Self {
            name: format!("{}+{flaw:?}", self.name),
            flaw: Some(flaw),
            ..self
        }
    }

    /// The scenario of that name.
    pub fn named(name: &str) -> Option<Self> {
        let (base, flaw) = match name.split_once('+') {
            Some((base, flaw)) => (base, Some(flaw)),
            None => (name, None),
        };
        let all = [
            Self::claim(),
            Self::grouped(),
            Self::claim().frozen(),
            Self::claim().skew(),
            Self::claim().skew().frozen(),
            Self::claim().after_crash(),
            Self::claim().operator(),
            Self::claim().deletion(),
            Self::claim().payloads(),
            Self::claim().payloads().fifo(),
            Self::claim().payloads().after_crash(),
            Self::call_keys(),
            Self::call_keys().payloads(),
            Self::call_keys().frozen(),
            Self::reconciled(),
            Self::reconciled().frozen(),
            Self::reconciled().skew(),
            Self::commit(),
            Self::commit().frozen(),
            Self::inbox(),
        ];
        let (base, quarantine) = match base.split_once('~') {
            Some((base, seconds)) => (base, seconds.parse::<f64>().ok()),
            None => (base, None),
        };
        let base = all.into_iter().find(|scenario| scenario.name == base)?;
        let base = match quarantine {
            Some(seconds) => base.quarantine(Duration::try_from_secs_f64(seconds).ok()),
            None => base,
        };
        let Some(flaw) = flaw else { return Some(base) };
        let mut flaws = Flaw::ALL.into_iter();
        let flaw = flaws.find(|known| format!("{known:?}") == flaw)?;
        Some(base.with(flaw))
    }

    /// Tries every schedule with at most `bound` deviations, and returns the shortest that breaks a
    /// promise.
    pub fn explore(&self, bound: u32, seen: fn() -> Visited) -> Found {
        let clocks = Clocks::new();
        let found = search(bound, seen, |seen, chooser| {
            let (ended, chooser, _) = execute(self, &clocks, seen, chooser, Timeline::default());
            let broken_after = match ended {
                Ended::Broken(_, steps) => Some(steps),
                Ended::Well | Ended::Visited => None,
            };
            (chooser, broken_after)
        });
        // Bypasses libtest, which shows the output of failed tests only.
        let _told = writeln!(
            stderr(),
            "explored {}: {} executions with at most {bound} deviations, {} states in the last round",
            self.name,
            found.executions,
            found.seen.states().len(),
        );
        found
    }

    /// Runs one schedule, and records its time line.
    pub fn replay(&self, schedule: &Schedule) -> (Ended, Timeline) {
        let (clocks, mut seen) = (Clocks::new(), Visited::on_every_path());
        let chooser = Chooser::new(schedule);
        let (ended, _, timeline) = execute(self, &clocks, &mut seen, chooser, Timeline::written());
        (ended, timeline)
    }

    /// A schedule of this scenario, in one line: see `replay` in `main.rs`.
    pub fn line(&self, schedule: &Schedule) -> String {
        format!("{}:{schedule}", self.name)
    }
}

//! [`survey`]: many worlds, on all processors.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    panic::{self, AssertUnwindSafe},
    sync::{Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

use crate::{
    Run,
    oracle::{CHECKS, Violation},
    plan::Level,
};

/// What many worlds showed.
#[derive(Debug)]
pub struct Survey {
    started: Instant,
    took: Duration,
    pub worlds: usize,
    pub receives: usize,
    /// Those of worlds whose table is at the wire.
    pub receives_at_the_wire: usize,
    /// How often each check could have failed.
    pub exercised: BTreeMap<&'static str, usize>,
    /// Most receives of a good message in which nothing went wrong.
    pub most_calm: usize,
    /// The first violation of each world that has one, by seed.
    pub violations: BTreeMap<u64, Violation>,
}

impl Survey {
    /// Returns the checks that could never fail, the faults that never happened, and those that are not listed.
    pub fn idle(&self) -> Vec<&'static str> {
        let listed: BTreeSet<_> = CHECKS.iter().copied().collect();
        let exercised = self.exercised.keys().copied().collect();
        listed.symmetric_difference(&exercised).copied().collect()
    }

    fn panicked(&mut self, seed: u64) {
        let violation = Violation {
            check: "nothing panics",
            what: "see the message above".into(),
            names: Vec::new(),
        };
        self.violations.insert(seed, violation);
    }

    fn add(&mut self, run: Run) {
        self.took = self.started.elapsed();
        self.worlds += 1;
        self.receives += run.verdict.receives;
        if run.plan.level != Level::Store {
            self.receives_at_the_wire += run.verdict.receives;
        }
        self.most_calm = self.most_calm.max(run.verdict.most_calm);
        for (check, times) in run.verdict.exercised {
            *self.exercised.entry(check).or_default() += times;
        }
        if let Some(violation) = run.verdict.violations.into_iter().next() {
            self.violations.insert(run.plan.seed, violation);
        }
    }
}

impl fmt::Display for Survey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} seeds, {} receives, {:.1} s, {} violations",
            self.worlds,
            self.receives,
            self.took.as_secs_f64(),
            self.violations.len()
        )
    }
}

/// Runs a world of each seed. `look` sees what they showed so far, after each world.
pub fn survey(
    seeds: impl Iterator<Item = u64> + Send,
    world: impl Fn(u64) -> Run + Sync,
    look: impl Fn(&Survey) + Sync,
) -> Survey {
    let seeds = Mutex::new(seeds);
    let survey = Mutex::new(Survey {
        started: Instant::now(),
        took: Duration::ZERO,
        worlds: 0,
        receives: 0,
        receives_at_the_wire: 0,
        exercised: BTreeMap::new(),
        most_calm: 0,
        violations: BTreeMap::new(),
    });
    in_parallel(&seeds, |seed| {
        // Handlers' panics are the product's to catch.
        let run = panic::catch_unwind(AssertUnwindSafe(|| world(seed)));
        locked(&survey, |survey| {
            match run {
                Ok(run) => survey.add(run),
                Err(_) => survey.panicked(seed),
            }
            look(survey);
        });
    });
    survey.into_inner().unwrap_or_else(PoisonError::into_inner)
}

/// Does something with each item, on all processors.
pub fn in_parallel<T>(items: &Mutex<impl Iterator<Item = T> + Send>, of: impl Fn(T) + Sync) {
    let threads = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(item) = locked(items, Iterator::next) {
                    of(item);
                }
            });
        }
    });
}

fn locked<T, O>(of: &Mutex<T>, run: impl FnOnce(&mut T) -> O) -> O {
    run(&mut of.lock().unwrap_or_else(PoisonError::into_inner))
}

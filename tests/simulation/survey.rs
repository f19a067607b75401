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
    features::{Feature, Group, features},
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
    /// In how many worlds two features met.
    pub pairs: BTreeMap<(Feature, Feature), usize>,
    /// How many features a world had, and how many of them are faults, in all worlds.
    pub features: usize,
    pub faults: usize,
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

    /// Returns the features that could have met, and never did.
    pub fn strangers(&self) -> Vec<(&'static str, &'static str)> {
        let all: BTreeSet<_> = self
            .pairs
            .keys()
            .flat_map(|(one, other)| [one, other])
            .collect();
        let pairs = all.iter().enumerate().flat_map(|(n, one)| {
            let rest = all.iter().skip(n + 1);
            rest.map(move |other| (**one, **other))
        });
        let strangers =
            pairs.filter(|pair| pair.0.can_meet(pair.1) && !self.pairs.contains_key(pair));
        strangers
            .map(|(one, other)| (one.name, other.name))
            .collect()
    }

    /// Says how rare a violation would have to be to stay unseen. If one world in n has one, 3n worlds show none with a
    /// probability of 5 % (the rule of three).
    pub fn significance(&self) -> String {
        let worlds = self.worlds;
        match self.violations.len() {
            0 if worlds < 3 => "too few worlds to say how rare a violation is".to_owned(),
            0 => format!(
                "if one world in {} had a violation, one of these {worlds} would have shown it with a probability of 95 %",
                worlds / 3
            ),
            found => format!("one world in {} has a violation", worlds / found),
        }
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
        let mut features = features(&run.plan);
        features.sort_unstable();
        self.features += features.len();
        let faults = features.iter().filter(|of| of.group == Group::Fault);
        self.faults += faults.count();
        for (n, one) in features.iter().enumerate() {
            for other in &features[n + 1..] {
                *self.pairs.entry((*one, *other)).or_default() += 1;
            }
        }
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
        pairs: BTreeMap::new(),
        features: 0,
        faults: 0,
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

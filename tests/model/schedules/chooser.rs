//! Depth-first search over every choice of an execution.
//!
//! An execution asks its [`Chooser`] wherever the world has more than one next event. The search
//! repeats the execution. It replays the choices of the last run up to a point, takes the next
//! option there, and then the first option everywhere. Only one list of choices is stored, and that
//! list is the schedule that repeats the execution.
//!
//! Deviations are counted. The first options of a choice are free. Each other option is a
//! **deviation** from an undisturbed run. A search has a bound on deviations. It goes through the
//! executions without any, then those with one, with two, and so on. The first round that breaks a
//! promise is the last. Its first hit may have come late, so the rest of the round is searched for
//! a hit after fewer steps. The result is the **shortest** schedule: the fewest deviations that
//! break a promise, and then the fewest steps.

use std::{
    collections::{BTreeSet, HashMap},
    fmt,
    str::FromStr,
};

/// One choice: the option taken, the number of free options, the number of options.
#[derive(Clone, Copy, Debug)]
struct Choice {
    taken: usize,
    free: usize,
    of: usize,
}

impl Choice {
    fn cost(self) -> u32 {
        u32::from(self.taken >= self.free)
    }
}

/// Makes the choices of one execution: the given ones, and then always the first option.
#[derive(Debug, Default)]
pub struct Chooser {
    given: Vec<usize>,
    made: Vec<Choice>,
    spent: u32,
}

impl Chooser {
    pub fn new(schedule: &Schedule) -> Self {
        Self {
            given: schedule.0.clone(),
            ..Self::default()
        }
    }

    /// Picks one of the options `0..of`, of which the first `free` are no deviations.
    pub fn choose(&mut self, free: usize, of: usize) -> usize {
        assert!(1 <= free && free <= of, "the first option is always free");
        let taken = self.given.get(self.made.len()).copied().unwrap_or(0);
        assert!(
            taken < of,
            "the schedule is of another program: no option {taken}"
        );
        let choice = Choice { taken, free, of };
        self.spent += choice.cost();
        self.made.push(choice);
        taken
    }

    /// True if all later choices are the chooser's own.
    pub fn past_given_choices(&self) -> bool {
        self.made.len() >= self.given.len()
    }

    /// Number of deviations so far.
    pub fn spent(&self) -> u32 {
        self.spent
    }

    pub fn schedule(&self) -> Schedule {
        let mut taken: Vec<usize> = self.made.iter().map(|choice| choice.taken).collect();
        while taken.last() == Some(&0) {
            taken.pop();
        }
        Schedule(taken)
    }

    /// The next schedule in depth-first order with no more than `bound` deviations.
    fn next(mut self, bound: u32) -> Option<Schedule> {
        while let Some(choice) = self.made.pop() {
            self.spent -= choice.cost();
            let next = Choice {
                taken: choice.taken + 1,
                ..choice
            };
            if next.taken < next.of && self.spent + next.cost() <= bound {
                let taken = self.made.iter().chain([&next]).map(|choice| choice.taken);
                return Some(Schedule(taken.collect()));
            }
        }
        None
    }
}

/// The choices of one execution, in one line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Schedule(Vec<usize>);

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let taken: Vec<String> = self.0.iter().map(ToString::to_string).collect();
        f.write_str(&taken.join("."))
    }
}

impl FromStr for Schedule {
    type Err = std::num::ParseIntError;

    fn from_str(line: &str) -> Result<Self, Self::Err> {
        let taken = line.split('.').filter(|taken| !taken.is_empty());
        Ok(Self(taken.map(str::parse).collect::<Result<_, _>>()?))
    }
}

/// States visited by the executions of a round.
///
/// Two schedules often lead to the same state of the whole world, since most steps of two workers
/// do not concern each other. Such a state is explored once. A state is known by a hash of 64 bits,
/// and kept with the fewest deviations that led there.
#[derive(Debug, Default)]
pub struct Visited {
    states: HashMap<u64, u32>,
    outcomes: BTreeSet<&'static str>,
    every_path: bool,
    /// The smallest number of steps after which a promise was broken.
    broken_after: Option<usize>,
}

impl Visited {
    /// Counts the states without pruning: every schedule runs to its end.
    pub fn on_every_path() -> Self {
        Self {
            every_path: true,
            ..Self::default()
        }
    }

    /// True if the state was explored with so many deviations spent, or fewer.
    pub fn before(&mut self, state: u64, spent: u32) -> bool {
        let least = self.states.entry(state).or_insert(u32::MAX);
        if *least <= spent {
            return !self.every_path;
        }
        *least = spent;
        false
    }

    /// True if a promise was broken before in as many steps, or fewer.
    pub fn no_shorter(&self, steps: usize) -> bool {
        self.broken_after.is_some_and(|broken| broken <= steps)
    }

    /// Number of steps to each state, once it matters: exploration after more steps may have been
    /// cut short.
    pub fn way_there(&self, steps: usize) -> Option<usize> {
        self.broken_after.map(|_| steps)
    }

    pub fn outcome(&mut self, name: &'static str) {
        self.outcomes.insert(name);
    }

    /// The states, in no order.
    pub fn states(&self) -> impl ExactSizeIterator<Item = u64> {
        self.states.keys().copied()
    }

    /// How attempts ended.
    pub fn outcomes(&self) -> &BTreeSet<&'static str> {
        &self.outcomes
    }
}

/// Result of a search.
#[derive(Debug)]
pub struct Found {
    /// The shortest schedule that breaks a promise, if any does.
    pub broken: Option<Schedule>,
    pub executions: u64,
    /// By the last round, which repeats all the rounds before it.
    pub seen: Visited,
}

/// Runs `execute` for every schedule with at most `bound` deviations, round by round. Stops after
/// the first round in which `execute` reports a broken promise and its number of steps. `new` makes
/// the memory of each round.
pub fn search(
    bound: u32,
    new: fn() -> Visited,
    mut execute: impl FnMut(&mut Visited, Chooser) -> (Chooser, Option<usize>),
) -> Found {
    let mut found = Found {
        broken: None,
        executions: 0,
        seen: new(),
    };
    for bound in 0..=bound {
        found.seen = new();
        let mut next = Some(Schedule::default());
        while let Some(schedule) = next {
            found.executions += 1;
            let (chooser, broken_after) = execute(&mut found.seen, Chooser::new(&schedule));
            if broken_after.is_some_and(|steps| !found.seen.no_shorter(steps)) {
                found.broken = Some(chooser.schedule());
                found.seen.broken_after = broken_after;
            }
            next = chooser.next(bound);
        }
        if found.broken.is_some() {
            break;
        }
    }
    found
}

#[test]
fn schedule_found_is_the_shortest() {
    // The first deviation breaks the promise after so many steps.
    let broken_after = [3, 2, 4, 5];
    let found = search(2, Visited::default, |_, mut chooser| {
        let broken = broken_after.into_iter().find(|_| chooser.choose(1, 2) == 1);
        (chooser, broken)
    });
    assert_eq!(found.broken, Some(Schedule(vec![0, 1])));
}

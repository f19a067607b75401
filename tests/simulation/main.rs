//! The program of `make simulate` and `make soak`.
//!
//! | variable | what runs |
//! | --- | --- |
//! | `SEEDS` | the worlds of this many seeds, 1,000 if it is not set |
//! | `PAIRS` | with all pairs of features that met |
//! | `WITH` | of these worlds, and of those with a flaw, only those with each of these features, divided by commas |
//! | `MINUTES` | worlds of drawn seeds, for this long |
//! | `FLAW` | the first world that shows this flaw of the product, or those of `all`; with `SEED`, its story |
//! | `SEED` | one world, with its story; `NAMES` are the messages and keys of the story, or `all` |
//! | `OUTAGE` | outages of half a day |

use std::{
    collections::BTreeSet,
    env,
    process::ExitCode,
    sync::Mutex,
    time::{Duration, Instant, SystemTime},
};

use simulation::{
    Run,
    features::features,
    flaws::{self, Flaw, Found},
    ledger::Story,
    outage::{self, survive},
    plan::Plan,
    run, shrink, silence_handlers,
    survey::{Survey, in_parallel, survey},
};

fn main() -> ExitCode {
    silence_handlers();
    if env::var_os("OUTAGE").is_some() {
        return outages();
    }
    let flaw = env::var("FLAW").ok().map(|flaw| &*flaw.leak());
    if let Some(seed) = number("SEED") {
        return one(seed, flaw);
    }
    if let Some(flaw) = flaw {
        return find_flaws(flaw);
    }
    let survey = match number("MINUTES") {
        Some(minutes) => {
            let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
            let first = since.unwrap_or_default().as_secs() << 16;
            println!("seeds from {first}, {minutes} minutes");
            let end = Instant::now() + Duration::from_secs(60 * minutes);
            show((first..).take_while(|_| Instant::now() < end), None)
        }
        None => {
            let seeds = number("SEEDS").unwrap_or(1000);
            show(chosen(seeds), usize::try_from(seeds).ok())
        }
    };
    // A few worlds do not have every fault. The fixed seeds of the test do.
    let idle = survey.idle();
    let is_idle = survey.worlds >= 5000 && !idle.is_empty();
    if is_idle {
        println!("never exercised: {idle:?}");
    }
    let violated = survey.violations.first_key_value();
    if let Some((&seed, _)) = violated {
        one(seed, None);
    }
    println!("{survey}");
    println!("{}", survey.significance());
    ExitCode::from(u8::from(violated.is_some() || is_idle))
}

fn number(variable: &str) -> Option<u64> {
    env::var(variable).ok()?.parse().ok()
}

/// Returns the seeds below `end` whose worlds have the features that are asked for.
fn chosen(end: u64) -> impl Iterator<Item = u64> + Send {
    let names = env::var("WITH").unwrap_or_default();
    let names: Vec<_> = names.split_terminator(',').map(str::to_owned).collect();
    (0..end).filter(move |seed| {
        if names.is_empty() {
            return true;
        }
        let features = features(&Plan::draw(*seed));
        let has = |name| features.iter().any(|of| of.name == name);
        names.iter().all(has)
    })
}

/// Runs worlds, and prints a line for each violation and a line now and then.
fn show(seeds: impl Iterator<Item = u64> + Send, of: Option<usize>) -> Survey {
    let shown = Mutex::new(BTreeSet::new());
    let every = of.map_or(2000, |of| of.div_ceil(10));
    let look = |survey: &Survey| {
        for (seed, violation) in &survey.violations {
            if shown.lock().is_ok_and(|mut shown| shown.insert(*seed)) {
                println!(
                    "make simulate SEED={seed}: {}: {}",
                    violation.check, violation.what
                );
            }
        }
        if survey.worlds.is_multiple_of(every.max(1)) && Some(survey.worlds) != of {
            println!("... {survey}");
        }
    };
    let survey = survey(seeds, |seed| run(Plan::draw(seed), None), look);
    for (check, times) in &survey.exercised {
        println!("{times:>9}  {check}");
    }
    let wire = survey.receives_at_the_wire;
    println!("{wire:>9}  receives of all whose writes went through the SDK");
    let calm = survey.most_calm;
    println!("{calm:>9}  receives of one good message in which nothing went wrong, at most");
    let mut pairs: Vec<_> = survey
        .pairs
        .iter()
        .map(|(pair, met)| (*met, pair))
        .collect();
    pairs.sort_unstable();
    let worlds = survey.worlds.max(1);
    println!(
        "features of a world: {}, of which faults: {}; {} pairs of features met, these the least:",
        survey.features / worlds,
        survey.faults / worlds,
        pairs.len()
    );
    let all = env::var_os("PAIRS").is_some();
    for (met, (one, other)) in pairs.iter().take(if all { usize::MAX } else { 10 }) {
        println!("{met:>9}  {}, {}", one.name, other.name);
    }
    println!("never met: {:?}", survey.strangers());
    survey
}

/// Prints a world and the story of what went wrong in it, made smaller first.
fn one(seed: u64, flaw: Option<&'static str>) -> ExitCode {
    let run = run(Plan::draw(seed), flaw);
    let violated = !run.verdict.violations.is_empty();
    let run = if violated { shrink(run, flaw) } else { run };
    println!("{:#?}", run.plan);
    match env::var("NAMES") {
        Ok(names) => {
            let names = names.split(',').map(str::to_owned).collect();
            let events = &run.events;
            print!("{}", Story { events, names });
        }
        Err(_) => print!("{}", run.story()),
    }
    for violation in &run.verdict.violations {
        println!("{}: {}", violation.check, violation.what);
    }
    let Run { verdict, .. } = run;
    println!(
        "{} receives; repeat with: make simulate SEED={seed}",
        verdict.receives
    );
    ExitCode::from(u8::from(violated))
}

fn outages() -> ExitCode {
    println!("timeout  out for 12 hours  batch  receives  of one message  dead  done after");
    let plans = outage::OUTAGES.into_iter().flat_map(|services| {
        let of = move |batch| outage::plans(services, batch);
        outage::BATCHES.into_iter().flat_map(of)
    });
    let started = Instant::now();
    let (plans, lost) = (Mutex::new(plans), Mutex::new(0));
    in_parallel(&plans, |plan| {
        let survival = survive(plan);
        println!("{survival}");
        if !survival.is_kept() {
            println!("{:#?}", survival.violations.first());
            if let Ok(mut lost) = lost.lock() {
                *lost += 1;
            }
        }
    });
    let lost = lost.into_inner().unwrap_or_default();
    println!(
        "{:.1} s, {lost} violations",
        started.elapsed().as_secs_f64()
    );
    ExitCode::from(u8::from(lost > 0))
}

/// Prints the first world that shows a flaw, or those of `all` flaws, as lines of the table in twins.rs.
fn find_flaws(named: &str) -> ExitCode {
    let seeds = number("SEEDS").unwrap_or(1000);
    let flaws = flaws::in_product().into_iter();
    let flaws = flaws.filter(|flaw| named == "all" || flaw.name == named);
    let flaws: Vec<_> = flaws.collect();
    if flaws.is_empty() {
        println!("FLAW={named}: there is no flaw of this name, see tests/simulation/twins.rs");
        return ExitCode::from(2);
    }
    let missed = Mutex::new(0);
    in_parallel(
        &Mutex::new(flaws.into_iter()),
        |Flaw { name, file, line }| {
            let name: &'static str = name.leak();
            match flaws::find(name, chosen(seeds)) {
                Some(Found {
                    seed,
                    check,
                    receives,
                }) => {
                    println!(
                        "    (\"{name}\", {seed}, \"{check}\"), // {file}:{line}, {receives} receives"
                    );
                }
                None => {
                    println!("    // {name}: not found in {seeds} seeds, {file}:{line}");
                    if let Ok(mut missed) = missed.lock() {
                        *missed += 1;
                    }
                }
            }
        },
    );
    ExitCode::from(u8::from(missed.into_inner().unwrap_or_default() > 0))
}

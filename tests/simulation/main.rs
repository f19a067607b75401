//! `make simulate`: runs many seeds, or one.

use std::{
    collections::BTreeMap,
    env,
    process::ExitCode,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::Instant,
};

use simulation::{Run, ledger::Story, plan::Plan, run, shrink};

fn main() -> ExitCode {
    let number = |name: &str| {
        env::var(name)
            .ok()
            .and_then(|text| text.parse::<u64>().ok())
    };
    std::panic::set_hook(Box::new(|_| ()));
    if let Some(seed) = number("SEED") {
        return one(run(Plan::draw(seed), None));
    }
    let seeds = number("SEEDS").unwrap_or(2000);
    let started = Instant::now();
    let [next, receives, calm] = [(); 3].map(|()| AtomicU64::new(0));
    let found = Mutex::new((Vec::new(), BTreeMap::<&str, usize>::new()));
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Relaxed);
                    if seed >= seeds {
                        return;
                    }
                    let run = run(Plan::draw(seed), None);
                    receives.fetch_add(run.verdict.receives as u64, Relaxed);
                    let mut found = found.lock().unwrap_or_else(PoisonError::into_inner);
                    calm.fetch_max(run.verdict.most_calm as u64, Relaxed);
                    for (check, times) in run.verdict.exercised {
                        *found.1.entry(check).or_default() += times;
                    }
                    if let Some(violation) = run.verdict.violations.first() {
                        println!("SEED={seed}: {}: {}", violation.check, violation.what);
                        found.0.push(seed);
                    }
                }
            });
        }
    });
    let (violated, exercised) = found.into_inner().unwrap_or_else(PoisonError::into_inner);
    for (check, times) in exercised {
        println!("{times:>9}  {check}");
    }
    println!(
        "{:>9}  most receives of a good message in which nothing went wrong",
        calm.into_inner()
    );
    println!(
        "{seeds} seeds, {} receives, {:.1} s, {} violations",
        receives.into_inner(),
        started.elapsed().as_secs_f64(),
        violated.len()
    );
    ExitCode::from(u8::from(!violated.is_empty()))
}

/// Prints a world, made smaller if it violates a promise. `NAMES` are the messages and keys of the story.
fn one(run: Run) -> ExitCode {
    let violated = !run.verdict.violations.is_empty();
    let run = if violated { shrink(run, None) } else { run };
    println!("{:#?}", run.plan);
    for violation in &run.verdict.violations {
        println!("{}: {}", violation.check, violation.what);
    }
    match env::var("NAMES") {
        Ok(names) => {
            let names = names.split(',').map(str::to_owned).collect();
            let events = &run.events;
            print!("{}", Story { events, names });
        }
        Err(_) => print!("{}", run.story()),
    }
    ExitCode::from(u8::from(violated))
}

//! One seed for each test with chance in it.

use std::env;

/// `None` if it is not set.
fn named() -> Option<u64> {
    match env::var("CHAOS_SEED").ok()?.as_str() {
        "new" => Some(fastrand::u64(..)),
        seed => Some(seed.parse().expect("CHAOS_SEED is a whole number, or new")),
    }
}

/// The seed that `CHAOS_SEED` names, a new one for `CHAOS_SEED=new`, or else `default`. Prints how to repeat the run.
pub fn or(default: u64) -> u64 {
    let seed = named().unwrap_or(default);
    eprintln!("CHAOS_SEED={seed} repeats this run");
    seed
}

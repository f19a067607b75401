//! Properties that hold for random records, keys, payloads and batches.

mod batches;
mod decisions;
mod identities;
mod isolation;

use proptest::test_runner::{Config, RngSeed, TestRunner};

/// A runner that a test starts by itself, for which proptest keeps no failing cases. Prints the seed that repeats them.
fn runner(cases: u32) -> TestRunner {
    let mut config = Config {
        failure_persistence: None,
        ..Config::with_cases(cases)
    };
    if let RngSeed::Random = config.rng_seed {
        config.rng_seed = RngSeed::Fixed(fastrand::u64(..));
    }
    eprintln!("PROPTEST_RNG_SEED={} repeats these cases", config.rng_seed);
    TestRunner::new(config)
}

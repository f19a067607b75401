//! Prerequisites that `cargo test` alone does not provide: release builds, Python tools, an emulator.
//!
//! On a fresh clone the tests that need one are skipped, and standard error names `make test`, which
//! provides them all. It sets `SQS_ONCE_REQUIRE_ALL`, so that a missing prerequisite fails the test instead.

use std::{
    io::Write,
    sync::{Mutex, Once, PoisonError},
};

/// Environment variable. If it is set, a missing prerequisite is a failure.
const REQUIRE_ALL: &str = "SQS_ONCE_REQUIRE_ALL";

/// Writes once to standard error that tests are skipped, past the output capture of the harness.
///
/// # Panics
///
/// With the reason, if `SQS_ONCE_REQUIRE_ALL` is set.
#[track_caller]
pub fn report_skipped(reason: &str) {
    static REPORT: Once = Once::new();
    assert!(std::env::var_os(REQUIRE_ALL).is_none(), "{reason}");
    REPORT.call_once(|| {
        let this = std::env::current_exe().unwrap();
        let suite = this.file_stem().unwrap().to_string_lossy();
        let suite = suite.rsplit_once('-').map_or(&*suite, |(name, _)| name);
        let line = format!("\nSKIPPED tests of `{suite}`: {reason}. `make test` runs them.\n");
        std::io::stderr().write_all(line.as_bytes()).unwrap();
    });
}

/// Skips all tests of a suite, for suites in which each test has the missing prerequisite.
///
/// Ends the process, so that the harness does not count the tests as passed.
#[track_caller]
pub fn skip_suite(reason: &str) -> ! {
    static ENDING: Mutex<()> = Mutex::new(());
    let _until_exit = ENDING.lock().unwrap_or_else(PoisonError::into_inner);
    report_skipped(reason);
    std::process::exit(0)
}

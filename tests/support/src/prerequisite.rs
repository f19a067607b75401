//! Prerequisites that `cargo test` alone does not provide: release builds, Python tools, an emulator.
//!
//! A test without its prerequisite fails. Skipped, it would count as passed.

use std::env;

/// The reason of a test that needs an emulator.
pub const NO_EMULATOR: &str = "AWS_ENDPOINT_URL names no emulator";

/// Fails a test that lacks a prerequisite, for this reason.
///
/// # Panics
///
/// Always.
#[track_caller]
pub fn missing(reason: &str) -> ! {
    panic!("{reason}. `make test` provides what the tests need")
}

/// The emulator at `AWS_ENDPOINT_URL`.
///
/// # Panics
///
/// If the variable is not set.
#[track_caller]
pub fn emulator() -> String {
    let endpoint = env::var("AWS_ENDPOINT_URL").unwrap_or_default();
    if endpoint.is_empty() {
        missing(NO_EMULATOR);
    }
    endpoint
}

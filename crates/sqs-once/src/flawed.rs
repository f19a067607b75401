//! [`flawed`]: makes the product misbehave at one place on demand, to prove that tests notice it. In the simulation, a
//! feature switches flaws on. In all other tests, `make flaws` does so by `--cfg flaws`. Otherwise `flawed` is `false`, and
//! the compiler drops the code behind it.

#[cfg(feature = "simulation")]
use std::cell::Cell;
#[cfg(all(flaws, not(feature = "simulation")))]
use std::{env, sync::LazyLock};

#[cfg(feature = "simulation")]
thread_local! {
    static FLAW: Cell<Option<&'static str>> = const { Cell::new(None) };
}

/// Returns whether this thread runs with the flaw of this name.
#[cfg(feature = "simulation")]
#[must_use]
pub fn flawed(flaw: &str) -> bool {
    FLAW.get() == Some(flaw)
}

/// Returns whether the variable `FLAW` names this flaw.
#[cfg(all(flaws, not(feature = "simulation")))]
#[must_use]
pub fn flawed(flaw: &str) -> bool {
    static FLAW: LazyLock<Option<String>> = LazyLock::new(|| env::var("FLAW").ok());
    FLAW.as_deref() == Some(flaw)
}

/// Returns `false`.
#[cfg(not(any(flaws, feature = "simulation")))]
#[must_use]
pub const fn flawed(_: &str) -> bool {
    false
}

/// Switches one flaw on for this thread, or all of them off.
#[cfg(feature = "simulation")]
pub fn set_flaw(flaw: Option<&'static str>) {
    FLAW.set(flaw);
}

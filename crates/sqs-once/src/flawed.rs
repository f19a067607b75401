//! [`flawed`]: a place at which the product behaves wrongly on demand, so that tests prove that they find that. The
//! simulation switches flaws on by a feature, and `make flaws` in all other tests by `--cfg flaws`. Without both it is
//! `false`, and the compiler drops what depends on it.

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

/// Makes the product behave wrongly at one place on this thread, or nowhere.
#[cfg(feature = "simulation")]
pub fn set_flaw(flaw: Option<&'static str>) {
    FLAW.set(flaw);
}

//! [`flawed`]: a place at which the product behaves wrongly on demand, so that the simulation proves that it finds that.
//! Without the feature `simulation` it is `false`, and the compiler drops what depends on it.

#[cfg(feature = "simulation")]
use std::cell::Cell;

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

/// Returns `false`.
#[cfg(not(feature = "simulation"))]
#[must_use]
pub const fn flawed(_: &str) -> bool {
    false
}

/// Makes the product behave wrongly at one place on this thread, or nowhere.
#[cfg(feature = "simulation")]
pub fn set_flaw(flaw: Option<&'static str>) {
    FLAW.set(flaw);
}

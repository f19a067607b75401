//! `flawed!`: a place at which the product behaves wrongly on demand, so that the simulation proves that it finds that.
//! Without the feature `simulation` it is `false`, and the compiler drops what depends on it.

#[cfg(feature = "simulation")]
use std::cell::Cell;

#[cfg(feature = "simulation")]
thread_local! {
    static FLAW: Cell<Option<&'static str>> = const { Cell::new(None) };
}

/// Returns whether this thread runs with the flaw of this name.
macro_rules! flawed {
    ($name:literal) => {{
        #[cfg(feature = "simulation")]
        let flawed = $crate::flawed::is_set($name);
        #[cfg(not(feature = "simulation"))]
        let flawed = false;
        flawed
    }};
}

pub(crate) use flawed;

/// Makes the product behave wrongly at one place on this thread, or nowhere.
#[cfg(feature = "simulation")]
pub fn set_flaw(flaw: Option<&'static str>) {
    FLAW.set(flaw);
}

#[cfg(feature = "simulation")]
pub(crate) fn is_set(flaw: &str) -> bool {
    FLAW.get() == Some(flaw)
}

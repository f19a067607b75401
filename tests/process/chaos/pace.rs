//! Time limits of the workers, as multiples of one number. They suit a machine with nothing else to do. A
//! worker that misses its timeout without an injected fault proves that the machine is slower, and the
//! workers after it get twice the time. So a busy machine does not use up the receives of good messages.

use std::{
    fmt,
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use crate::chaos::{DEADLINE_RESERVE, GATEWAY_TIMEOUT};

/// Timeout after which Lambda kills the function, on a machine with nothing else to do.
pub(crate) const FUNCTION_TIMEOUT: Duration = Duration::from_secs(2);

/// How many times longer than planned the time limits of a worker are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Pace(u32);

impl Pace {
    pub(crate) const PLANNED: Self = Self(1);

    /// With 32 seconds for a batch of some milliseconds, a worker that does not answer hangs.
    pub(crate) const SLOWEST: Self = Self(16);

    pub(crate) fn of(self, planned: Duration) -> Duration {
        planned * self.0
    }

    /// Timeout after which Lambda kills the function.
    pub(crate) fn function_timeout(self) -> Duration {
        self.of(FUNCTION_TIMEOUT)
    }

    pub(crate) fn gateway_timeout(self) -> Duration {
        self.of(GATEWAY_TIMEOUT)
    }

    pub(crate) fn deadline_reserve(self) -> Duration {
        self.of(DEADLINE_RESERVE)
    }
}

impl fmt::Display for Pace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The machine, as slow as this run has seen it.
pub(crate) struct Machine(AtomicU32);

impl Default for Machine {
    fn default() -> Self {
        Self(AtomicU32::new(Pace::PLANNED.0))
    }
}

impl Machine {
    /// The pace of a worker that starts now.
    pub(crate) fn pace(&self) -> Pace {
        Pace(self.0.load(Ordering::Relaxed))
    }

    /// A worker at this pace missed its timeout, and no fault was to blame.
    pub(crate) fn is_slower_than(&self, pace: Pace) {
        let slower = (2 * pace.0).min(Pace::SLOWEST.0);
        self.0.fetch_max(slower, Ordering::Relaxed);
    }
}

#[test]
fn each_missed_timeout_doubles_the_time_once() {
    let machine = Machine::default();
    for pace in [machine.pace(), machine.pace()] {
        machine.is_slower_than(pace);
    }
    assert_eq!(machine.pace().function_timeout(), 2 * FUNCTION_TIMEOUT);
    for _ in 0..9 {
        machine.is_slower_than(machine.pace());
    }
    assert_eq!(machine.pace(), Pace::SLOWEST);
}

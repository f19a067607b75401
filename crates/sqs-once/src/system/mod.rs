//! Time, spawned tasks and randomness. The crates of this project get them only from here, and clippy enforces that.
//!
//! A simulation replaces what is behind this module. Each simulated process has its own clocks, its tasks end when it is
//! killed, and random numbers come from a seed. Rules get the wall-clock time as an argument, from a clock that tests can
//! replace ([`Once::clock`](crate::Once::clock)).
#![expect(
    clippy::disallowed_methods,
    reason = "all other modules use this module"
)]

// Not part of the library: tests/simulation/product compiles it together with these sources.
#[cfg(feature = "simulation")]
#[path = "../../../../tests/simulation/product/simulated.rs"]
pub(crate) mod simulated;

use std::{
    io::{self, IsTerminal as _, Write as _},
    time::{Duration, SystemTime},
};

use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
pub use tokio::time::Instant;
use tokio::{runtime::Handle, task::JoinSet};

#[cfg(not(feature = "simulation"))]
use tokio::time::{Sleep, Timeout};

#[cfg(feature = "simulation")]
pub(crate) use simulated::HeldBytes;
#[cfg(feature = "simulation")]
pub use simulated::{sleep, timeout, timeout_at};

use crate::protocol::{Owner, Timestamp};

impl Timestamp {
    /// Returns the current wall-clock time.
    ///
    /// ```
    /// use sqs_once::protocol::Timestamp;
    ///
    /// assert!(Timestamp::now() > Timestamp::from_millis(1_700_000_000_000));
    /// ```
    #[must_use]
    pub fn now() -> Self {
        #[cfg(feature = "simulation")]
        if let Some(now) = simulated::wall_clock() {
            return now;
        }
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        Self::default() + since.unwrap_or_default()
    }
}

impl Owner {
    /// Creates a unique token: a random UUID (version 4, RFC 9562) in 22 characters (base64url, RFC 4648).
    ///
    /// ```
    /// use sqs_once::protocol::Owner;
    ///
    /// assert_ne!(Owner::fresh(), Owner::fresh());
    /// ```
    #[must_use]
    pub fn fresh() -> Self {
        #[cfg(feature = "simulation")]
        if simulated::Process::current().is_some() {
            let random = fastrand::u128(..).to_be_bytes();
            return Self::from_stored(BASE64_URL_SAFE_NO_PAD.encode(random));
        }
        Self::from_stored(BASE64_URL_SAFE_NO_PAD.encode(uuid::Uuid::new_v4()))
    }
}

/// Returns a random number from 0 up to but not including 1.
pub fn random_fraction() -> f64 {
    fastrand::f64()
}

/// Returns a random number from 0 to `max`, for jitter.
pub(crate) fn random_up_to(max: u64) -> u64 {
    fastrand::u64(..=max)
}

/// Returns the time on the process's monotonic clock, which never goes back. The clock may stand still while Lambda has
/// frozen the process.
#[must_use]
pub fn instant() -> Instant {
    #[cfg(feature = "simulation")]
    if let Some(now) = simulated::instant() {
        return now;
    }
    Instant::now()
}

/// Returns the time since `start` on the monotonic clock.
#[must_use]
pub fn elapsed(start: Instant) -> Duration {
    instant().saturating_duration_since(start)
}

/// Waits this long on the process's monotonic clock.
#[cfg(not(feature = "simulation"))]
pub fn sleep(duration: Duration) -> Sleep {
    tokio::time::sleep(duration)
}

/// Runs `future`, and drops it if it has not ended after `duration`.
#[cfg(not(feature = "simulation"))]
pub fn timeout<F: Future>(duration: Duration, future: F) -> Timeout<F> {
    tokio::time::timeout(duration, future)
}

/// Runs `future`, and drops it if it has not ended at `end`.
#[cfg(not(feature = "simulation"))]
pub fn timeout_at<F: Future>(end: Instant, future: F) -> Timeout<F> {
    tokio::time::timeout_at(end, future)
}

/// Runs `future` in a task that nobody waits for. Drops it if there is no runtime.
pub fn spawn(future: impl Future<Output = ()> + Send + 'static) {
    if let Ok(runtime) = Handle::try_current() {
        drop(runtime.spawn(in_process(future)));
    }
}

/// Runs `future` in a task of `tasks`.
pub(crate) fn spawn_in<T: Send + 'static>(
    tasks: &mut JoinSet<T>,
    future: impl Future<Output = T> + Send + 'static,
) {
    tasks.spawn(in_process(future));
}

#[cfg(not(feature = "simulation"))]
fn in_process<F: Future>(future: F) -> F {
    future
}

#[cfg(feature = "simulation")]
use simulated::in_process;

/// Returns whether standard output is a terminal.
pub(crate) fn prints_to_terminal() -> bool {
    #[cfg(feature = "simulation")]
    if simulated::Process::current().is_some() {
        return false;
    }
    io::stdout().is_terminal()
}

/// Writes lines to standard output in one go, so that lines of concurrent invocations do not mix.
pub(crate) fn print(lines: &[u8]) {
    #[cfg(feature = "simulation")]
    if let Some(process) = simulated::Process::current() {
        return process.print(lines);
    }
    // There's nowhere to report that standard output failed.
    _ = io::stdout().lock().write_all(lines);
}

/// The bytes of a body in memory. Only a simulation counts them.
#[cfg(not(feature = "simulation"))]
#[derive(Debug)]
pub(crate) struct HeldBytes;

#[cfg(not(feature = "simulation"))]
impl HeldBytes {
    pub(crate) fn bytes(_: usize) -> Self {
        Self
    }
}

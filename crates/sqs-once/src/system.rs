//! Time, tasks of their own and randomness. The crates of this project use no others, and clippy enforces that.
//!
//! A simulation replaces what is behind this module: the runtime's paused time, its tasks, and a seed. Rules get the
//! wall clock's time as an argument, from a clock that tests can replace ([`Once::clock`](crate::Once::clock)).
#![expect(
    clippy::disallowed_methods,
    reason = "all other modules use this module"
)]

use std::time::{Duration, SystemTime};

pub use tokio::time::Instant;
use tokio::{
    runtime::Handle,
    time::{Sleep, Timeout},
};

use crate::protocol::{Owner, Timestamp};

impl Timestamp {
    /// Returns the current time of the wall clock.
    ///
    /// ```
    /// use sqs_once::protocol::Timestamp;
    ///
    /// assert!(Timestamp::now() > Timestamp::from_millis(1_700_000_000_000));
    /// ```
    #[must_use]
    pub fn now() -> Self {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        Self::default() + since.unwrap_or_default()
    }
}

impl Owner {
    /// Creates a unique token: 32 random hex digits (UUID version 4, RFC 9562).
    ///
    /// ```
    /// use sqs_once::protocol::Owner;
    ///
    /// assert_ne!(Owner::fresh(), Owner::fresh());
    /// ```
    #[must_use]
    pub fn fresh() -> Self {
        Self::from_stored(uuid::Uuid::new_v4().simple().to_string())
    }
}

/// Returns a random number of at least 0 and below 1.
pub fn random_fraction() -> f64 {
    fastrand::f64()
}

/// Returns a random number from 0 to `max`, for jitter.
pub(crate) fn random_up_to(max: u64) -> u64 {
    fastrand::u64(..=max)
}

/// Returns the time of the runtime's clock, which never goes back. It may stand still while Lambda has the process
/// frozen.
#[must_use]
pub fn instant() -> Instant {
    Instant::now()
}

/// Waits for a time of the runtime's clock.
pub fn sleep(duration: Duration) -> Sleep {
    tokio::time::sleep(duration)
}

/// Drops `future` if it has not ended after `duration`.
pub fn timeout<F: Future>(duration: Duration, future: F) -> Timeout<F> {
    tokio::time::timeout(duration, future)
}

/// Drops `future` if it has not ended at `end`.
pub fn timeout_at<F: Future>(end: Instant, future: F) -> Timeout<F> {
    tokio::time::timeout_at(end, future)
}

/// Runs `future` in a task that nobody waits for. Without a runtime, drops it.
pub fn spawn(future: impl Future<Output = ()> + Send + 'static) {
    if let Ok(runtime) = Handle::try_current() {
        drop(runtime.spawn(future));
    }
}

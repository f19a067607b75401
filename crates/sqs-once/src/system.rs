//! Wall clock and randomness. Only this module reads them, and clippy enforces that.
//!
//! Other modules get the time from a clock that tests can replace ([`Once::clock`](crate::Once::clock)).
#![expect(
    clippy::disallowed_methods,
    reason = "all other modules use this module"
)]

use std::time::SystemTime;

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

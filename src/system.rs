//! Wall clock and randomness: the only module that reads them.
//!
//! Tests replace the clock ([`Once::clock`](crate::Once::clock)), so no other module may read it by
//! itself; clippy enforces that.
#![expect(
    clippy::disallowed_methods,
    reason = "the module that the others have to use"
)]

use std::time::SystemTime;

use crate::protocol::{Owner, Timestamp};

impl Timestamp {
    /// The wall clock's time.
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
    /// A token that no other claim has: 32 random hex digits (UUID version 4, RFC 9562).
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

/// A random number from 0 to 1, for jitter.
pub(crate) fn random_fraction() -> f64 {
    fastrand::f64()
}

/// A random number from 0 to `most`, for jitter.
pub(crate) fn random_up_to(most: u64) -> u64 {
    fastrand::u64(..=most)
}

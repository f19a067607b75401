//! [`Timestamp`]: milliseconds since the Unix epoch.

use std::{
    fmt,
    time::{Duration, SystemTime},
};

use serde::{Deserialize, Serialize};

/// A point in time: milliseconds since the Unix epoch.
///
/// ```
/// use std::time::Duration;
/// use sqs_once::protocol::Timestamp;
///
/// let at = Timestamp::from_millis(1_500) + Duration::from_millis(1);
/// assert_eq!((at.as_millis(), at.as_secs(), at.as_secs_ceil()), (1_501, 1, 2));
/// assert_eq!(at.until(Timestamp::default()), Duration::ZERO);
/// ```
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Timestamp(u64);

impl Timestamp {
    /// Creates a time from milliseconds since the epoch.
    #[must_use]
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis)
    }

    /// Returns milliseconds since the epoch.
    #[must_use]
    pub const fn as_millis(self) -> u64 {
        self.0
    }

    /// Returns whole seconds since the epoch, rounded down.
    #[must_use]
    pub const fn as_secs(self) -> u64 {
        self.0 / 1000
    }

    /// Returns whole seconds since the epoch, rounded up. The result is never earlier than `self`.
    #[must_use]
    pub const fn as_secs_ceil(self) -> u64 {
        self.0.div_ceil(1000)
    }

    /// Returns the time from `self` to `later`, or zero if `later` is not after `self`.
    #[must_use]
    pub fn until(self, later: Self) -> Duration {
        Duration::from_millis(later.0.saturating_sub(self.0))
    }
}

/// A pause of a process, in wall-clock time, because the monotonic clock may stand still while Lambda has the process
/// frozen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Pause {
    pub(crate) length: Duration,
    pub(crate) end: Timestamp,
}

impl Pause {
    pub(crate) fn new(now: Timestamp, length: Duration) -> Self {
        let end = now + length;
        Self { length, end }
    }

    /// Returns whether the pause is on at this time. If somebody set the clock back to before the pause began, the pause is
    /// over. Otherwise the pause would last too long.
    pub(crate) fn is_on(self, now: Timestamp) -> bool {
        now < self.end && now.until(self.end) <= self.length
    }
}

/// Displays the time in RFC 3339, to the second: `2026-11-21T10:50:00Z`.
impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        /// The end of the year 9999, the last year of RFC 3339.
        const LAST: u64 = 253_402_300_799;
        let since = Duration::from_secs(self.as_secs().min(LAST));
        humantime::format_rfc3339_seconds(SystemTime::UNIX_EPOCH + since).fmt(f)
    }
}

impl std::ops::Add<Duration> for Timestamp {
    type Output = Self;

    /// Adds `span`, and saturates on overflow.
    fn add(self, span: Duration) -> Self {
        Self(
            self.0
                .saturating_add(u64::try_from(span.as_millis()).unwrap_or(u64::MAX)),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clock_that_steps_back_ends_a_pause() {
        let (begin, length) = (Timestamp::from_millis(100_000), Duration::from_secs(10));
        let pause = Pause::new(begin, length);
        for (millis, expected) in [
            (0, false),
            (99_999, false),
            (100_000, true),
            (109_999, true),
            (110_000, false),
            (u64::MAX, false),
        ] {
            assert_eq!(pause.is_on(Timestamp(millis)), expected, "{millis}");
        }
    }

    #[test]
    fn timestamp_is_shown_in_rfc_3339() {
        let shown = |millis| Timestamp::from_millis(millis).to_string();
        assert_eq!(shown(1_795_258_200_999), "2026-11-21T10:50:00Z");
        assert_eq!(shown(u64::MAX), "9999-12-31T23:59:59Z");
    }
}

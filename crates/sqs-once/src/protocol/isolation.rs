//! Isolation after a crash: a message whose handler may have ended its process runs alone.
//!
//! A handler that runs out of memory, overflows its stack or blocks past Lambda's timeout takes down the other messages of its
//! process. Afterwards their records show an open attempt, and nobody recorded how it ended. A message that claims such a
//! record is a *suspect*: its handler starts only when no other handler runs. If the process dies again, we know which message
//! did it.
//!
//! 1. The claim of a suspect counts the attempt in its record (`exclusive_attempts`) and takes a lease that is much longer
//!    than the attempt ([`CrashWaits`]).
//! 2. When the worker records the end of the attempt, it removes the count and ends the lease. Only a death
//!    leaves both, and then the message rests until the lease ends.
//! 3. If the process died in this way more often than there are waits, the handler does not start any more: the
//!    message is `crashed`.
//!
//! The functions do no I/O and read no clock.

use std::time::Duration;

use super::record::{Record, State, Timestamp};
use crate::flawed::flawed;

/// How long a message rests each time the process dies while the message runs alone. A death after the last of these waits makes
/// it `crashed`.
///
/// ```
/// use std::time::Duration;
/// use sqs_once::protocol::CrashWaits;
///
/// let waits = CrashWaits::default();
/// assert_eq!(waits.after_death(1), Some(Duration::from_secs(20 * 60)));
/// assert_eq!(waits.after_death(4), None);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CrashWaits(Option<Vec<Duration>>);

impl Default for CrashWaits {
    /// Waits 20 minutes, 2 hours and 10 hours.
    ///
    /// If a broken build dies at every message and you replace it within twelve hours, none of the messages
    /// becomes `crashed`.
    fn default() -> Self {
        const MINUTE: Duration = Duration::from_secs(60);
        Self::new([20 * MINUTE, 120 * MINUTE, 600 * MINUTE])
    }
}

impl CrashWaits {
    /// Creates the waits: one for each death, in order.
    #[must_use]
    pub fn new(waits: impl IntoIterator<Item = Duration>) -> Self {
        Self(Some(waits.into_iter().collect()))
    }

    /// Turns isolation off: every message runs alongside others, and no message becomes `crashed`.
    #[must_use]
    pub const fn off() -> Self {
        Self(None)
    }

    /// Returns whether messages are isolated at all.
    #[must_use]
    pub const fn is_off(&self) -> bool {
        self.0.is_none()
    }

    /// Returns how long the message rests after the process died for the n-th time while the message ran alone. Returns
    /// `None` if the message is `crashed` then, or if isolation is off.
    #[must_use]
    pub fn after_death(&self, n: u64) -> Option<Duration> {
        let place = usize::try_from(n.checked_sub(1)?).ok()?;
        self.0.as_ref()?.get(place).copied()
    }
}

/// How a claim's handler may run, given the record that the claim replaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// The handler runs alongside others.
    Clear,
    /// An earlier attempt may have ended its process, so the handler runs alone.
    Suspect {
        /// How many earlier attempts ran alone without a recorded end.
        exclusive_attempts: u64,
    },
    /// The handler does not run, because the process died more often than there are waits.
    Crashed {
        /// How many attempts ran alone without a recorded end.
        exclusive_attempts: u64,
    },
}

/// Decides how a claim's handler runs. The message is a suspect if the claim replaces an `IN_PROGRESS` record without `last_end`.
#[must_use]
pub fn standing(replaced: Option<&Record>, waits: &CrashWaits) -> Standing {
    let Some(Record {
        state: State::InProgress { .. },
        last_end: None,
        exclusive_attempts,
        ..
    }) = replaced.filter(|_| !waits.is_off() && !flawed("no message is a suspect"))
    else {
        return Standing::Clear;
    };
    let exclusive_attempts = *exclusive_attempts;
    if exclusive_attempts > 0 && waits.after_death(exclusive_attempts).is_none() {
        Standing::Crashed { exclusive_attempts }
    } else {
        Standing::Suspect { exclusive_attempts }
    }
}

/// Returns whether a message that is [`Standing::Crashed`] gets one last lookup, if the handler has one.
///
/// The lookup runs alone, and the record counts it like an attempt. If the process dies once more, the count exceeds
/// what this function allows, and the message is `crashed` without another lookup.
#[must_use]
pub(super) fn has_last_look_up(exclusive_attempts: u64, waits: &CrashWaits) -> bool {
    let earlier = exclusive_attempts.saturating_sub(1);
    earlier == 0 || waits.after_death(earlier).is_some()
}

/// Returns when the lease of the n-th attempt alone ends (n counts from 1), if the attempt starts now. An ordinary lease would
/// end at `lease_until`, and this one never ends earlier.
pub(super) fn lease_alone(
    n: u64,
    waits: &CrashWaits,
    now: Timestamp,
    lease_until: Timestamp,
) -> Timestamp {
    let wait = waits
        .after_death(n)
        .filter(|_| !flawed("a suspect does not rest"));
    let rest = wait.map(|wait| now + wait);
    rest.map_or(lease_until, |rest| rest.max(lease_until))
}

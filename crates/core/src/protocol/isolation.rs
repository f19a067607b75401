//! Isolation after a crash: a message whose handler may have ended its process runs alone.
//!
//! A handler that runs out of memory, overflows its stack or blocks until Lambda's timeout takes the
//! other messages of its process with it. The record shows it afterwards: an attempt is open, and
//! nobody recorded how it ended. The next claim of such a record is a *suspect*. Its handler starts
//! when no other handler runs. If the process dies again, the message did it.
//!
//! 1. Before a suspect starts, its record counts the attempt (`exclusive_attempts`), and gets a lease
//!    that is much longer than the attempt ([`CrashWaits`]).
//! 2. A recorded end removes the count, and ends the lease. So only a death leaves both: the message
//!    rests until the lease ends.
//! 3. A claim over more deaths alone than there are waits starts nothing: a `crashed` message.
//!
//! The functions have no I/O and no clock.

use std::time::Duration;

use super::{
    decision::{Before, Claimed},
    record::{State, Timestamp},
};

/// How long a message rests after each death alone. After one death more the message is `crashed`.
///
/// ```
/// use std::time::Duration;
/// use sqs_once::protocol::isolation::CrashWaits;
///
/// let waits = CrashWaits::default();
/// assert_eq!(waits.after_death(1), Some(Duration::from_secs(20 * 60)));
/// assert_eq!(waits.after_death(4), None);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CrashWaits(Option<Vec<Duration>>);

impl Default for CrashWaits {
    /// 20 minutes, 2 hours and 10 hours.
    ///
    /// A build that ends its process at every message convicts none of them if it is replaced within
    /// twelve hours.
    fn default() -> Self {
        const MINUTE: Duration = Duration::from_secs(60);
        Self::new([20 * MINUTE, 120 * MINUTE, 600 * MINUTE])
    }
}

impl CrashWaits {
    /// These waits, in the order of the deaths.
    #[must_use]
    pub fn new(waits: impl IntoIterator<Item = Duration>) -> Self {
        Self(Some(waits.into_iter().collect()))
    }

    /// No isolation: every message runs beside others, and none is `crashed`.
    #[must_use]
    pub const fn off() -> Self {
        Self(None)
    }

    /// Returns whether messages are isolated at all.
    #[must_use]
    pub const fn is_off(&self) -> bool {
        self.0.is_none()
    }

    /// The rest after the n-th death alone, from 1. `None` if the message then is `crashed`.
    #[must_use]
    pub fn after_death(&self, n: u64) -> Option<Duration> {
        let place = usize::try_from(n.checked_sub(1)?).ok()?;
        self.0.as_ref()?.get(place).copied()
    }
}

/// How the handler of a claim runs, by the record that the claim replaced.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// The handler runs beside others.
    Clear,
    /// The handler runs alone.
    Suspect {
        /// Attempts alone before this one that have no recorded end.
        exclusive_attempts: u64,
    },
    /// The handler does not run: the message died alone once more than it may.
    Crashed {
        /// Attempts alone that have no recorded end.
        exclusive_attempts: u64,
    },
}

/// Decides how the handler of a claim runs.
///
/// | replaced record | standing |
/// | --- | --- |
/// | absent, of another program, or with a `last_end` | clear |
/// | without an open attempt, and without a count | clear |
/// | `IN_PROGRESS`, with more attempts alone than waits | crashed |
/// | any other | suspect |
///
/// A count beside a `last_end` does not count: a version without isolation recorded that end. The
/// record of a claim whose answer was lost does not show what it replaced, so it convicts nobody.
#[doc(hidden)]
#[must_use]
pub fn standing(claimed: &Claimed, waits: &CrashWaits) -> Standing {
    if waits.is_off() || claimed.last_end.is_some() {
        return Standing::Clear;
    }
    let was_in_progress = match &claimed.before {
        Before::Nothing => return Standing::Clear,
        Before::Record(before) if before.attempts == 0 => return Standing::Clear,
        Before::Record(before) => matches!(before.state, State::InProgress { .. }),
        Before::Unknown => false,
    };
    let exclusive_attempts = claimed.exclusive_attempts;
    if exclusive_attempts == 0 && claimed.open_since.is_none() {
        Standing::Clear
    } else if was_in_progress
        && exclusive_attempts > 0
        && waits.after_death(exclusive_attempts).is_none()
    {
        Standing::Crashed { exclusive_attempts }
    } else {
        Standing::Suspect { exclusive_attempts }
    }
}

/// The end of the lease of the n-th attempt alone, from 1, that starts now. Never before
/// `lease_until`, the end of an ordinary lease.
#[doc(hidden)]
#[must_use]
pub fn lease_alone(
    n: u64,
    waits: &CrashWaits,
    now: Timestamp,
    lease_until: Timestamp,
) -> Timestamp {
    let rest = waits.after_death(n).map(|wait| now + wait);
    rest.map_or(lease_until, |rest| rest.max(lease_until))
}

/// The messages of a batch, as the order of suspects sees them.
#[doc(hidden)]
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Waiting {
    /// Other messages of the batch that run, or can still start.
    pub active: usize,
    /// Attempts alone and place in the batch of each suspect that waits.
    pub suspects: Vec<(u64, usize)>,
}

/// Returns the place of the suspect that may start now.
///
/// No suspect starts while another message of the batch is active. A running suspect is active too. Then
/// the one with the fewest attempts alone starts: it is the least likely to end the process.
#[doc(hidden)]
#[must_use]
pub fn next_suspect(waiting: &Waiting) -> Option<usize> {
    let next = waiting.suspects.iter().min();
    let (_, place) = next.filter(|_| waiting.active == 0)?;
    Some(*place)
}

/// Returns whether a message that is no suspect may still start: while a suspect waits, only in the
/// first half of the batch's time.
#[doc(hidden)]
#[must_use]
pub fn may_start_beside(suspects_wait: bool, time: Duration, time_left: Duration) -> bool {
    !suspects_wait || time_left >= time / 2
}

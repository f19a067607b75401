//! [`Deadline`]: the time limits of an invocation, with a reserve for outcomes and the response.

use std::time::Duration;

use crate::{
    flawed::flawed,
    protocol::Timestamp,
    system::{self, Instant},
};

/// The time limits of an invocation.
///
/// ```text
///  now                           handler_cutoff   write_until  respond_by  invocation_end
///   |---- claims, handlers ------------|-- outcomes ----|----------|-------------|
///                                      |<-------------- reserve ---------------->|
/// ```
///
/// | time | part of the reserve used | event |
/// | --- | --- | --- |
/// | [`handler_cutoff`](Self::handler_cutoff) | 0 | handlers are cut off |
/// | [`write_until`](Self::write_until) | 3/4 | the last settlement or commit |
/// | [`respond_by`](Self::respond_by) | 7/8 | the response, with unfinished messages as batch item failures |
/// | [`invocation_end`](Self::invocation_end) | all | Lambda ends the process |
///
/// For a large batch, a `Consumer` keeps back more time, because every message adds to the response. The
/// first three times are then earlier.
///
/// A lease lasts until the end of the invocation, plus a margin because the clocks of two workers differ.
#[derive(Clone, Copy, Debug)]
pub struct Deadline {
    invocation_end: Timestamp,
    handler_cutoff: Instant,
    write_until: Instant,
    respond_by: Instant,
    start_by: Instant,
}

/// Longest budget. No invocation lasts this long, and clock arithmetic cannot overflow with it.
const MAX_BUDGET: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// Earliest deadline that we take for a real one. A runtime that knows no deadline sends a smaller number.
const FIRST_DEADLINE: Timestamp = Timestamp::from_millis(1_000_000_000_000);

/// Memory of a function with one vCPU, in MB (*AWS Lambda Developer Guide*, "Configure Lambda function
/// memory").
pub(crate) const MEMORY_OF_A_VCPU: u32 = 1769;
/// The smallest memory size of a function, in MB.
pub(crate) const LEAST_MEMORY: u32 = 128;

/// CPU time on a whole vCPU that one message needs after handlers are cut off: for its part of the response, for its
/// metrics, and to free its memory. We measured 3.4 µs (10,000 messages, on 7 % of a core) and left room for slower cores.
const WORK_PER_MESSAGE: Duration = Duration::from_micros(10);

/// Returns the time that each message needs after the cutoff in a function with this much memory. More than one vCPU does
/// not help, because a single thread does this work.
pub(crate) fn reserve_per_message(memory_mb: u32) -> Duration {
    WORK_PER_MESSAGE * MEMORY_OF_A_VCPU / memory_mb.clamp(LEAST_MEMORY, MEMORY_OF_A_VCPU)
}

impl Deadline {
    /// Creates a deadline that ends `budget` after `now`.
    ///
    /// | parameter | meaning | maximum |
    /// | --- | --- | --- |
    /// | `now` | current time of the wall clock, for leases | |
    /// | `budget` | time until the deadline | 365 days |
    /// | `reserve` | part of the budget for outcomes and response | half of the budget |
    ///
    /// The monotonic clock decides when handlers are cut off.
    ///
    /// ```
    /// use std::time::Duration;
    /// use sqs_once::{Deadline, protocol::Timestamp};
    ///
    /// let second = Duration::from_secs(1);
    /// let deadline = Deadline::after(Timestamp::now(), 10 * second, second);
    /// assert!(deadline.time_left() <= 9 * second);
    /// ```
    #[must_use]
    pub fn after(now: Timestamp, budget: Duration, reserve: Duration) -> Self {
        let budget = budget.min(MAX_BUDGET);
        let reserve = reserve.min(budget / 2);
        let start = system::instant();
        let handler_cutoff = start + (budget - reserve);
        Self {
            invocation_end: now + budget,
            handler_cutoff,
            write_until: start + (budget - reserve / 4),
            respond_by: start + (budget - reserve / 8),
            start_by: handler_cutoff,
        }
    }

    /// Creates the deadline of a Lambda invocation.
    ///
    /// `at` comes from the header `Lambda-Runtime-Deadline-Ms` (*AWS Lambda Developer Guide*, "Using the
    /// Lambda runtime API for custom runtimes").
    ///
    /// An `at` before September 2001 (10^12 ms) means that the runtime knows no deadline, as under `cargo
    /// lambda watch`. The budget is then `assumed_timeout`. If a real deadline has already passed, no time is
    /// left and no handler starts.
    ///
    /// ```
    /// use std::time::Duration;
    /// use sqs_once::{Deadline, protocol::Timestamp};
    ///
    /// let (now, second) = (Timestamp::now(), Duration::from_secs(1));
    /// let known = Deadline::of_invocation(now, now + 30 * second, 300 * second, second);
    /// assert_eq!(known.invocation_end(), now + 30 * second);
    /// let unknown = Deadline::of_invocation(now, Timestamp::default(), 300 * second, second);
    /// assert_eq!(unknown.invocation_end(), now + 300 * second);
    /// ```
    #[must_use]
    pub fn of_invocation(
        now: Timestamp,
        at: Timestamp,
        assumed_timeout: Duration,
        reserve: Duration,
    ) -> Self {
        let budget = if at <= now && at < FIRST_DEADLINE {
            assumed_timeout
        } else {
            now.until(at) + Duration::from_secs(flawed("the deadline is a second late").into())
        };
        Self::after(now, budget, reserve)
    }

    /// Keeps back more time for the response, at most half of the time left.
    ///
    /// Handlers must then also start earlier, unless that would leave no time to start one.
    pub fn keep_back(self, more: Duration) -> Self {
        let more = more.min(self.time_left() / 2);
        let handler_cutoff = self.handler_cutoff - more;
        let start_by = self.start_by.checked_sub(more).unwrap_or(handler_cutoff);
        let starts_none = self.may_start() && start_by <= system::instant();
        Self {
            invocation_end: self.invocation_end,
            handler_cutoff,
            write_until: self.write_until - more,
            respond_by: self.respond_by - more,
            start_by: if starts_none {
                handler_cutoff
            } else {
                start_by
            },
        }
    }

    /// Sets how much time must be left for a handler to start.
    ///
    /// Has no effect if less than `needed` is left when you call it, because then no handler could ever start.
    ///
    /// ```
    /// use std::time::Duration;
    /// use sqs_once::{Deadline, protocol::Timestamp};
    ///
    /// let second = Duration::from_secs(1);
    /// let deadline = Deadline::after(Timestamp::now(), 10 * second, second);
    /// assert!(deadline.min_time_to_start(5 * second).may_start());
    /// ```
    #[must_use]
    pub fn min_time_to_start(self, needed: Duration) -> Self {
        let start_by = match self.time_left().checked_sub(needed) {
            Some(slack) => system::instant() + slack,
            None => self.handler_cutoff,
        };
        Self { start_by, ..self }
    }

    /// Returns whether a claimed operation may begin at this wall-clock time. A claim takes time, and Lambda may have frozen
    /// the process until its lease was over. We do not use up the lease margin, because a worker whose clock is ahead sees the
    /// lease expire earlier.
    pub(crate) fn may_begin(&self, now: Timestamp) -> bool {
        self.may_start() && !self.has_ended(now)
    }

    /// Returns whether the worker's right to run has ended, by the wall clock. Timers stand still while Lambda freezes
    /// the process.
    pub(crate) fn has_ended(&self, now: Timestamp) -> bool {
        now > self.invocation_end
    }

    /// Returns this deadline without a minimum time: a handler may start until the cutoff.
    pub(crate) fn without_min_time(self) -> Self {
        let start_by = self.handler_cutoff;
        Self { start_by, ..self }
    }

    /// Returns this deadline, but no handler may start any more.
    pub(crate) fn without_starts(self) -> Self {
        let start_by = system::instant();
        Self { start_by, ..self }
    }

    /// Returns whether enough time is left to start a handler.
    #[must_use]
    pub fn may_start(&self) -> bool {
        system::instant() < self.start_by
    }

    /// Returns the time at which Lambda ends the process.
    #[must_use]
    pub const fn invocation_end(&self) -> Timestamp {
        self.invocation_end
    }

    /// Returns the time left for handlers: zero once they are cut off.
    #[must_use]
    pub fn time_left(&self) -> Duration {
        self.handler_cutoff
            .saturating_duration_since(system::instant())
    }

    /// Returns the time at which handlers are cut off.
    pub const fn handler_cutoff(&self) -> Instant {
        self.handler_cutoff
    }

    /// Returns the time after which no handler may start.
    pub const fn start_by(&self) -> Instant {
        self.start_by
    }

    /// Returns the time limit for settlements and commits.
    pub const fn write_until(&self) -> Instant {
        self.write_until
    }

    /// Returns the time limit for the response to Lambda.
    pub const fn respond_by(&self) -> Instant {
        self.respond_by
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const NOW: Timestamp = Timestamp::from_millis(1_800_000_000_000);

    #[tokio::test(start_paused = true)]
    async fn passed_deadline_leaves_no_time() {
        let of = |at| Deadline::of_invocation(NOW, at, 300 * SECOND, SECOND);
        for at in [NOW, FIRST_DEADLINE] {
            assert!(!of(at).may_start(), "{at}");
            assert_eq!(of(at).time_left(), Duration::ZERO, "{at}");
        }
        let unknown = Timestamp::from_millis(FIRST_DEADLINE.as_millis() - 1);
        for at in [Timestamp::default(), unknown] {
            assert_eq!(of(at).time_left(), 299 * SECOND, "{at}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn time_kept_back_moves_every_limit() {
        let before = Deadline::after(NOW, 10 * SECOND, SECOND).min_time_to_start(2 * SECOND);
        let after = before.keep_back(3 * SECOND);
        assert_eq!(after.invocation_end(), before.invocation_end());
        for limit in [
            Deadline::handler_cutoff,
            Deadline::write_until,
            Deadline::respond_by,
            Deadline::start_by,
        ] {
            assert_eq!(limit(&before) - limit(&after), 3 * SECOND);
        }
        let half = before.keep_back(60 * SECOND);
        assert_eq!(half.time_left(), before.time_left() / 2);
    }

    /// Without this, no message of a large batch would ever start.
    #[tokio::test(start_paused = true)]
    async fn time_kept_back_leaves_handlers_a_start() {
        let deadline = Deadline::after(NOW, 10 * SECOND, SECOND).min_time_to_start(7 * SECOND);
        assert!(deadline.keep_back(3 * SECOND).may_start());
        tokio::time::advance(3 * SECOND).await;
        assert!(!deadline.keep_back(SECOND).may_start());
    }

    #[test]
    fn reserve_per_message_follows_share_of_vcpu() {
        let micros = [128, 256, 1769, 10_240].map(|mb| reserve_per_message(mb).as_micros());
        assert_eq!(micros, [138, 69, 10, 10]);
        assert_eq!(reserve_per_message(0), reserve_per_message(LEAST_MEMORY));
    }
}

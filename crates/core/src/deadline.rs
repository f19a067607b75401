//! [`Deadline`]: the time limits of an invocation, with a reserve for outcomes and response.

use std::time::Duration;

use tokio::time::Instant;

use crate::protocol::Timestamp;

/// Time limits of an invocation.
///
/// ```text
///  now                                    stop          end  answer  at
///   |---- claims, handlers ----------------|-- outcomes --|----|------|
///                                          |<-------- reserve ------->|
/// ```
///
/// | time | part of the reserve gone | event |
/// | --- | --- | --- |
/// | *stop* | 0 | handlers are cut off |
/// | *end* | 3/4 | the last settlement or commit |
/// | *answer* | 7/8 | the response, with unfinished messages as batch item failures |
/// | *at* | all | Lambda ends the process |
///
/// A `Consumer` keeps more time back for a large batch, since each message has its
/// part in the response. *stop*, *end* and *answer* are then earlier by that time.
///
/// A lease lasts until *at* plus a margin for differences between workers' clocks.
#[derive(Clone, Copy, Debug)]
pub struct Deadline {
    at: Timestamp,
    stop: Instant,
    end: Instant,
    answer: Instant,
    latest_start: Instant,
}

/// Maximum budget: longer than any invocation, and small enough for clock arithmetic.
const MAX_BUDGET: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// A deadline before this is not a point in time, but what a runtime sends that knows none.
const FIRST_DEADLINE: Timestamp = Timestamp::from_millis(1_000_000_000_000);

/// Memory of a function with one vCPU, in MB (*AWS Lambda Developer Guide*, "Configure Lambda function
/// memory").
pub const MEMORY_OF_A_VCPU: u32 = 1769;
/// The least memory of a function, in MB.
pub const LEAST_MEMORY: u32 = 128;

/// CPU time that one message costs after *stop*, on a whole vCPU: its part in the response, the metrics and the
/// freed memory. Measured: 3.4 µs (10,000 messages, on 7 % of a core); the rest is for slower cores.
const WORK_PER_MESSAGE: Duration = Duration::from_micros(10);

/// Time that each message needs after *stop*, in a function with so much memory. More than one vCPU
/// does not help: the work is done in one thread.
pub fn reserve_per_message(memory_mb: u32) -> Duration {
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
    /// Handlers are cut off by the monotonic clock.
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
        let start = Instant::now();
        let stop = start + (budget - reserve);
        Self {
            at: now + budget,
            stop,
            end: start + (budget - reserve / 4),
            answer: start + (budget - reserve / 8),
            latest_start: stop,
        }
    }

    /// Creates the deadline of a Lambda invocation.
    ///
    /// `at` comes from the header `Lambda-Runtime-Deadline-Ms` (*AWS Lambda Developer Guide*,
    /// "Using the Lambda runtime API for custom runtimes").
    ///
    /// If `at` is before September 2001 (10^12 ms), the deadline is unknown, as under
    /// `cargo lambda watch`. The budget is then `assumed_timeout`. If a later `at` has passed, no time
    /// is left, and nothing starts.
    ///
    /// ```
    /// use std::time::Duration;
    /// use sqs_once::{Deadline, protocol::Timestamp};
    ///
    /// let (now, second) = (Timestamp::now(), Duration::from_secs(1));
    /// let known = Deadline::of_invocation(now, now + 30 * second, 300 * second, second);
    /// assert_eq!(known.at(), now + 30 * second);
    /// let unknown = Deadline::of_invocation(now, Timestamp::default(), 300 * second, second);
    /// assert_eq!(unknown.at(), now + 300 * second);
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
            now.until(at)
        };
        Self::after(now, budget, reserve)
    }

    /// Keeps more time back for the response, at most half of the time left.
    ///
    /// Handlers start so much earlier too, unless none could start any more.
    pub fn keep_back(self, more: Duration) -> Self {
        let more = more.min(self.time_left() / 2);
        let stop = self.stop - more;
        let latest_start = self.latest_start.checked_sub(more).unwrap_or(stop);
        let starts_none = self.may_start() && latest_start <= Instant::now();
        Self {
            at: self.at,
            stop,
            end: self.end - more,
            answer: self.answer - more,
            latest_start: if starts_none { stop } else { latest_start },
        }
    }

    /// Sets the minimum time left at which a handler may start.
    ///
    /// Has no effect if less time than `needed` is left already, because no handler could ever
    /// start.
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
        let latest_start = match self.time_left().checked_sub(needed) {
            Some(slack) => Instant::now() + slack,
            None => self.stop,
        };
        Self {
            latest_start,
            ..self
        }
    }

    /// Returns whether enough time is left to start a handler.
    #[must_use]
    pub fn may_start(&self) -> bool {
        Instant::now() < self.latest_start
    }

    /// Returns the time at which Lambda ends the process.
    #[must_use]
    pub const fn at(&self) -> Timestamp {
        self.at
    }

    /// Returns the time left for handlers. Zero once handlers are cut off.
    #[must_use]
    pub fn time_left(&self) -> Duration {
        self.stop.saturating_duration_since(Instant::now())
    }

    /// Returns the time at which handlers are cut off.
    pub const fn stop(&self) -> Instant {
        self.stop
    }

    /// Returns the time after which no handler may start.
    pub const fn latest_start(&self) -> Instant {
        self.latest_start
    }

    /// Returns the time limit for settlements and commits.
    pub const fn end(&self) -> Instant {
        self.end
    }

    /// Returns the time limit for the response to Lambda.
    pub const fn answer(&self) -> Instant {
        self.answer
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
        assert_eq!(after.at(), before.at());
        for limit in [
            Deadline::stop,
            Deadline::end,
            Deadline::answer,
            Deadline::latest_start,
        ] {
            assert_eq!(limit(&before) - limit(&after), 3 * SECOND);
        }
        let half = before.keep_back(60 * SECOND);
        assert_eq!(half.time_left(), before.time_left() / 2);
    }

    /// Otherwise no message of a large batch would ever start.
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

//! [`Deadline`]: how long an invocation has, and what it keeps back to end well.

use std::time::Duration;

use tokio::time::Instant;

use crate::protocol::Timestamp;

/// How long an invocation has.
///
/// ```text
///  now                                    stop          end  answer  at
///   |---- claims, handlers ----------------|-- outcomes --|----|------|
///                                          |<-------- reserve ------->|
/// ```
///
/// Handlers are cut off at *stop*. Outcomes are written until *end*, when three quarters of
/// the reserve are gone; at *answer*, half of what is left later, the batch is answered without
/// what is still missing. At *at*, Lambda ends the process, so a lease lasts until *at* plus a
/// margin for clocks that differ.
#[derive(Clone, Copy, Debug)]
pub struct Deadline {
    at: Timestamp,
    stop: Instant,
    end: Instant,
    answer: Instant,
    latest_start: Instant,
}

/// Longer than any invocation, and short enough for every clock.
const LONGEST: Duration = Duration::from_secs(365 * 24 * 60 * 60);

impl Deadline {
    /// `budget` from now on (a year at most), `reserve` of it kept back (half of it at most).
    ///
    /// `now` is the wall clock's time, which leases are made of; the cuts are measured by the
    /// monotonic clock.
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
        let budget = budget.min(LONGEST);
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

    /// The deadline of an invocation as Lambda gives it: `at`, in the runtime's header
    /// `Lambda-Runtime-Deadline-Ms` (*AWS Lambda Developer Guide*, "Using the Lambda runtime
    /// API for custom runtimes").
    ///
    /// Where that is not later than `now`, as under `cargo lambda watch`, no deadline is known,
    /// and `assumed_timeout` is the budget.
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
        let budget = if at > now {
            now.until(at)
        } else {
            assumed_timeout
        };
        Self::after(now, budget, reserve)
    }

    /// The same deadline for handlers that take up to `needed`: with less time left, none is
    /// started. Without effect where there is less from the beginning, and nothing would ever
    /// be started.
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

    /// Returns whether there is time enough to start a handler.
    #[must_use]
    pub fn may_start(&self) -> bool {
        Instant::now() < self.latest_start
    }

    /// When Lambda ends the process.
    #[must_use]
    pub const fn at(&self) -> Timestamp {
        self.at
    }

    /// How long a handler still has. Zero when it is being cut off.
    #[must_use]
    pub fn time_left(&self) -> Duration {
        self.stop.saturating_duration_since(Instant::now())
    }

    /// When handlers are cut off.
    pub(crate) const fn stop(&self) -> Instant {
        self.stop
    }

    /// When the last outcome must have been written.
    pub(crate) const fn end(&self) -> Instant {
        self.end
    }

    /// When the batch is answered, whatever is missing.
    pub(crate) const fn answer(&self) -> Instant {
        self.answer
    }
}

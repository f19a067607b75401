//! [`Deadline`]: the time limits of an invocation, with a reserve for outcomes and response.

use std::time::Duration;

use tokio::{
    task::futures::TaskLocalFuture,
    time::{Instant, Timeout, timeout_at},
};

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
    /// If `at` is not after `now`, the deadline is unknown, as under `cargo lambda watch`. The
    /// budget is then `assumed_timeout`.
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
    pub(crate) const fn stop(&self) -> Instant {
        self.stop
    }

    /// Returns the time after which no handler may start.
    pub(crate) const fn latest_start(&self) -> Instant {
        self.latest_start
    }

    /// Returns the time limit for settlements and commits.
    pub(crate) const fn end(&self) -> Instant {
        self.end
    }

    /// Returns the time limit for the response to Lambda.
    pub(crate) const fn answer(&self) -> Instant {
        self.answer
    }
}

tokio::task_local! {
    /// Time limit of the request in progress. A store has no parameter for it.
    static LIMIT: Instant;
}

/// Runs a request to a store until `limit`, and lets the store read the time left.
pub(crate) fn until<F: Future>(limit: Instant, request: F) -> Timeout<TaskLocalFuture<Instant, F>> {
    timeout_at(limit, LIMIT.scope(limit, request))
}

/// Returns the time left of the request in progress. `None` if its caller has set no limit.
pub(crate) fn time_left_of_request() -> Option<Duration> {
    let limit = LIMIT.try_with(|limit| *limit).ok()?;
    Some(limit.saturating_duration_since(Instant::now()))
}

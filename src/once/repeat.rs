//! Repeats a request until it is answered, or no time is left.

use std::time::Duration;

use tokio::time::{Instant, sleep, timeout_at};

use crate::{protocol::Key, store::StoreError, system};

/// The answer to a request.
pub(super) struct Answered<T> {
    pub(super) answer: T,
    /// The error of an earlier attempt that got no answer, and may still be applied.
    pub(super) unanswered: Option<StoreError>,
}

/// A request that was not answered before its time ended, or that cannot succeed.
pub(super) struct GivenUp {
    pub(super) error: StoreError,
    /// One of the attempts got no answer, so the request may have been applied.
    pub(super) may_have_been_applied: bool,
}

/// Sends a request again while a repetition may succeed. The request must be safe to repeat.
///
/// # Errors
///
/// [`GivenUp`] after an error that a repetition cannot change, or at `until`.
pub(super) async fn repeat<T, F>(
    until: Instant,
    action: &'static str,
    key: &Key,
    send: impl Fn() -> F,
) -> Result<Answered<T>, GivenUp>
where
    F: Future<Output = Result<T, StoreError>>,
{
    let mut pauses = RetryPauses::until(until);
    let (mut unanswered, mut contended) = (None, None);
    loop {
        let error = match timeout_at(until, send()).await {
            Ok(Ok(answer)) => return Ok(Answered { answer, unanswered }),
            Ok(Err(error)) => error,
            Err(_elapsed) => {
                // An error of an earlier attempt tells more, such as throttling.
                let error = unanswered.or(contended);
                let error = error.unwrap_or_else(|| StoreError::OutOfTime {
                    action,
                    key: key.to_string(),
                });
                return Err(GivenUp {
                    error,
                    may_have_been_applied: true,
                });
            }
        };
        let again = error.may_pass() && pauses.pause().await;
        match (again, error.may_have_been_applied()) {
            (true, true) => unanswered = Some(error),
            (true, false) => contended = Some(error),
            (false, last) => {
                return Err(GivenUp {
                    may_have_been_applied: last || unanswered.is_some(),
                    error: unanswered.filter(|_| !last).unwrap_or(error),
                });
            }
        }
    }
}

/// Pauses between attempts at one request: a random time up to 20 ms at first, doubled each time,
/// up to a second.
///
/// No pause is longer than half of the time left. So when the contention ends 100 ms before the
/// time does, an attempt follows in which the request can succeed.
pub(super) struct RetryPauses {
    longest: Duration,
    until: Instant,
}

/// With less time left, no further attempt can succeed.
const TOO_LATE: Duration = Duration::from_millis(10);

impl RetryPauses {
    pub(super) fn until(until: Instant) -> Self {
        Self {
            longest: Duration::from_millis(20),
            until,
        }
    }

    /// Pauses. Returns false where no time is left for another attempt.
    pub(super) async fn pause(&mut self) -> bool {
        let left = self.until.saturating_duration_since(Instant::now());
        if left <= TOO_LATE {
            return false;
        }
        let pause = self.longest.mul_f64(system::random_fraction());
        sleep(pause.min(left / 2)).await;
        self.longest = (self.longest * 2).min(Duration::from_secs(1));
        true
    }
}

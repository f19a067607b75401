//! Retries of requests until an answer or the deadline.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::{deadline, meter::timed, protocol::Key, store::StoreError, system};

/// The answer to a request.
pub(super) struct Answered<T> {
    pub(super) answer: T,
    /// Error of an earlier try without an answer. DynamoDB may still apply that request.
    pub(super) unanswered: Option<StoreError>,
}

/// A request without an answer before the deadline, or one that cannot succeed.
pub(super) struct GivenUp {
    pub(super) error: StoreError,
    /// True if one try got no answer, so DynamoDB may have applied the request.
    pub(super) may_have_been_applied: bool,
}

/// Sends a request, and retries while a retry may succeed. The request must be safe to repeat.
///
/// # Errors
///
/// [`GivenUp`] after an error that is not retryable, or at `until`.
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
    // The last error explains best: throttling, or a missing permission. `unanswered` holds the last
    // error without an answer.
    let (mut unanswered, mut rejected) = (None, None);
    loop {
        let answer = timed(deadline::until(until, send())).await;
        let error = match answer {
            Ok(Ok(answer)) => return Ok(Answered { answer, unanswered }),
            Ok(Err(error)) => error,
            Err(_elapsed) => {
                let error = rejected.or(unanswered);
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
        let may_have_been_applied = error.may_have_been_applied();
        if !(error.may_pass() && pauses.pause().await) {
            return Err(GivenUp {
                error,
                may_have_been_applied: may_have_been_applied || unanswered.is_some(),
            });
        }
        if may_have_been_applied {
            (unanswered, rejected) = (Some(error), None);
        } else {
            rejected = Some(error);
        }
    }
}

/// Random pauses between tries of one request. The upper limit starts at 20 ms, and doubles with
/// each pause up to one second.
///
/// No pause is longer than half of the time left. So if contention ends 100 ms before the deadline,
/// there is time for another try.
pub(super) struct RetryPauses {
    longest: Duration,
    until: Instant,
}

/// Minimum time left for another try. With less time, no answer can arrive.
const MIN_TIME_FOR_TRY: Duration = Duration::from_millis(10);

impl RetryPauses {
    pub(super) fn until(until: Instant) -> Self {
        Self {
            longest: Duration::from_millis(20),
            until,
        }
    }

    /// Pauses, and returns true. Returns false if no time is left for another try.
    pub(super) async fn pause(&mut self) -> bool {
        let left = self.until.saturating_duration_since(Instant::now());
        if left <= MIN_TIME_FOR_TRY {
            return false;
        }
        let pause = self.longest.mul_f64(system::random_fraction());
        sleep(pause.min(left / 2)).await;
        self.longest = (self.longest * 2).min(Duration::from_secs(1));
        true
    }
}

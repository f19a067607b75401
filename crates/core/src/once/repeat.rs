//! The loops that repeat a failed request: one of claims, and one of the writes that follow.
//!
//! | class of the failure | a claim | a write that follows |
//! | --- | --- | --- |
//! | contended | for at most two seconds or a tenth of the time left, within the budget of `Health` | until its end |
//! | denied | no | after an effect, for at most a minute |
//! | invalid | no | no |
//! | unanswered | twice | until its end |

use std::time::Duration;

use tokio::time::{Instant, sleep, timeout_at};

use super::health::Health;
use crate::{
    deadline::Deadline,
    meter::Meter,
    protocol::{Key, Unavailability},
    store::{RequestContext, StoreError},
    system,
};

/// How long a contended claim is retried.
const MAX_CLAIM_TIME: Duration = Duration::from_secs(2);
/// How often an unanswered claim is retried.
const CLAIM_REPETITIONS: u32 = 2;
/// How long a denied write is retried after an effect. New credentials and permissions take seconds.
const MAX_DENIED: Duration = Duration::from_secs(60);
/// How long the last retry of a denied write waits for its response.
const TIME_FOR_A_DENIAL: Duration = Duration::from_secs(1);
/// Maximum time for a write that only shortens somebody's wait.
pub(crate) const MAX_BRIEF: Duration = Duration::from_secs(2);
/// Upper limits of the first random pause and of every pause.
const PAUSES: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));
/// The same after a denied request.
const LONG_PAUSES: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(5));

/// The answer to a request.
#[derive(Debug)]
pub struct Answered<T> {
    /// The answer.
    pub answer: T,
    /// Last error of an earlier copy without an answer. DynamoDB may still apply that copy.
    pub unanswered: Option<StoreError>,
    /// Number of copies without an answer.
    pub(crate) copies_unanswered: u32,
}

/// A request without an answer in time, or one that cannot succeed.
#[derive(Debug)]
pub struct GivenUp {
    /// The last error.
    pub error: StoreError,
    /// True if a copy got no answer, so DynamoDB may have applied the request.
    pub may_have_been_applied: bool,
}

/// How long a request is repeated.
#[derive(Clone, Debug)]
pub struct Effort<'a> {
    /// End of the last copy's wait for an answer.
    until: Instant,
    /// For the store.
    context: RequestContext,
    /// How long to retry after the first contention. `None`: until `until`.
    contended: Option<Duration>,
    /// When to stop retrying a denied write. `None`: it is not retried.
    denied: Option<Instant>,
    /// How often an unanswered request is retried. `None`: until `until`.
    unanswered: Option<u32>,
    budget: Option<&'a Health>,
}

impl<'a> Effort<'a> {
    /// A claim: nothing has happened yet, and the message returns anyway.
    pub(super) fn claim(deadline: Deadline, budget: &'a Health, context: RequestContext) -> Self {
        Self {
            until: deadline.stop(),
            context,
            contended: Some(MAX_CLAIM_TIME.min(deadline.time_left() / 10)),
            denied: None,
            unanswered: Some(CLAIM_REPETITIONS),
            budget: Some(budget),
        }
    }

    /// A write that records an effect: without it, the effect is repeated.
    pub(crate) fn after_effect(end: Instant, meter: &Meter) -> Self {
        let now = Instant::now();
        let left = end.saturating_duration_since(now);
        // A copy that is cut off before its answer would leave open whether it was applied.
        let for_last_answer = TIME_FOR_A_DENIAL.min(left / 4);
        Self {
            denied: Some(now + (left - for_last_answer).min(MAX_DENIED)),
            ..Self::commit(end, meter)
        }
    }

    /// A renewal of a lease, until the lease ends.
    pub(crate) fn renewal(cut: Instant, meter: &Meter) -> Self {
        Self {
            denied: Some(cut),
            ..Self::commit(cut, meter)
        }
    }

    /// A write that is the effect itself. A denied one has changed nothing.
    pub fn commit(end: Instant, meter: &Meter) -> Self {
        Self {
            until: end,
            context: RequestContext::until(end, meter),
            contended: None,
            denied: None,
            unanswered: None,
            budget: None,
        }
    }

    /// A write that only shortens somebody's wait. A place is worth more.
    pub(crate) fn brief(end: Instant, meter: &Meter) -> Self {
        Self::commit(end.min(Instant::now() + MAX_BRIEF), meter)
    }

    /// For the store that the request goes to.
    pub const fn context(&self) -> &RequestContext {
        &self.context
    }
}

/// Sends a request, and repeats it for as long as `effort` says. The request must be safe to repeat.
///
/// # Errors
///
/// [`GivenUp`] after an error that no repetition can help, or when the effort ends.
pub async fn repeat<T, F>(
    effort: &Effort<'_>,
    action: &'static str,
    key: &Key,
    send: impl Fn() -> F,
) -> Result<Answered<T>, GivenUp>
where
    F: Future<Output = Result<T, StoreError>>,
{
    let meter = &effort.context.meter;
    let mut contended = None;
    let mut unanswered_pauses = RetryPauses::until(effort.until);
    let mut denied = effort.denied.map(RetryPauses::long_until);
    // The last error explains best: throttling, or a missing permission.
    let (mut unanswered, mut rejected) = (None, None);
    let mut copies_unanswered = 0;
    loop {
        let error = match meter.timed(timeout_at(effort.until, send())).await {
            Ok(Ok(answer)) => {
                return Ok(Answered {
                    answer,
                    unanswered,
                    copies_unanswered,
                });
            }
            Ok(Err(error)) => error,
            Err(_elapsed) => {
                let error = rejected
                    .or(unanswered)
                    .unwrap_or_else(|| StoreError::OutOfTime {
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
        copies_unanswered += u32::from(may_have_been_applied);
        let again = match error.kind() {
            Some(Unavailability::Contended) => {
                let pauses = contended.get_or_insert_with(|| {
                    let end = effort.contended.map(|time| Instant::now() + time);
                    RetryPauses::until(end.unwrap_or(effort.until))
                });
                effort.budget.is_none_or(Health::take_repetition) && pauses.pause().await
            }
            Some(Unavailability::Denied) => match &mut denied {
                Some(pauses) => pauses.pause().await,
                None => false,
            },
            Some(Unavailability::Unanswered) => match effort.unanswered {
                Some(most) if copies_unanswered > most => false,
                // At once: the connection was dead, and the calls of a group fail together and form a
                // group again.
                _ if copies_unanswered == 1 => unanswered_pauses.is_time_left(),
                _ => unanswered_pauses.pause().await,
            },
            Some(Unavailability::Invalid) | None => false,
        };
        if !again {
            return Err(GivenUp {
                error,
                may_have_been_applied: copies_unanswered > 0,
            });
        }
        if may_have_been_applied {
            (unanswered, rejected) = (Some(error), None);
        } else {
            rejected = Some(error);
        }
    }
}

/// Random pauses between copies of one request. Their upper limit doubles with each pause.
///
/// No pause is longer than half of the time left. So if contention ends 100 ms before the deadline,
/// there is time for another copy.
pub struct RetryPauses {
    longest: Duration,
    limit: Duration,
    until: Instant,
}

/// Least time left for a retry. With less, no response could arrive.
const MIN_TIME_FOR_TRY: Duration = Duration::from_millis(10);

impl RetryPauses {
    /// Pauses of a request that is repeated until this time.
    #[must_use]
    pub const fn until(until: Instant) -> Self {
        Self::new(PAUSES, until)
    }

    const fn long_until(until: Instant) -> Self {
        Self::new(LONG_PAUSES, until)
    }

    const fn new((first, limit): (Duration, Duration), until: Instant) -> Self {
        Self {
            longest: first,
            limit,
            until,
        }
    }

    fn is_time_left(&self) -> bool {
        self.until.saturating_duration_since(Instant::now()) > MIN_TIME_FOR_TRY
    }

    /// Pauses, and returns true. Returns false if no time is left for another copy.
    pub async fn pause(&mut self) -> bool {
        if !self.is_time_left() {
            return false;
        }
        let left = self.until.saturating_duration_since(Instant::now());
        let pause = self.longest.mul_f64(system::random_fraction());
        sleep(pause.min(left / 2)).await;
        self.longest = (self.longest * 2).min(self.limit);
        true
    }
}

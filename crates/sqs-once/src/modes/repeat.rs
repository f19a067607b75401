//! The loop that repeats failed requests: claims, and the writes that follow a claim.
//!
//! | kind of failure | a claim | a write that follows |
//! | --- | --- | --- |
//! | contended | for at most two seconds or a tenth of the time left, within the budget of `Health` | until its end |
//! | denied | no | after an effect, for at most a minute |
//! | invalid | no | no |
//! | unanswered | twice | until its end |

use std::time::Duration;

use super::health::Health;
use crate::{
    deadline::Deadline,
    meter::Meter,
    protocol::{Key, RequestErrorKind},
    store::{RequestContext, StoreError},
    system::{self, Instant, sleep, timeout_at},
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

/// A response, with what is known about earlier copies of the request.
#[derive(Debug)]
pub(crate) struct Answered<T> {
    /// The response.
    pub answer: T,
    /// Last error of an earlier copy that got no response. DynamoDB may still apply that copy.
    pub unanswered: Option<StoreError>,
    /// Number of copies that got no response.
    pub(crate) copies_unanswered: u32,
}

/// The error of a request that got no response in time, or cannot succeed.
#[derive(Debug)]
pub(crate) struct GivenUp {
    /// The last error.
    pub error: StoreError,
    /// True if a copy got no response, so that DynamoDB may have applied the request.
    pub may_have_been_applied: bool,
}

/// How long a request is repeated.
#[derive(Clone, Debug)]
pub struct Effort<'a> {
    /// When the last copy stops waiting for a response.
    until: Instant,
    /// Context that the store gets with each request.
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
    /// Effort for a claim. Nothing has happened yet, and the message returns to the queue anyway.
    pub(super) fn claim(deadline: Deadline, budget: &'a Health, context: RequestContext) -> Self {
        Self {
            until: deadline.handler_cutoff(),
            context,
            contended: Some(MAX_CLAIM_TIME.min(deadline.time_left() / 10)),
            denied: None,
            unanswered: Some(CLAIM_REPETITIONS),
            budget: Some(budget),
        }
    }

    /// Effort for a write that records an effect. Without the record, a retry would repeat the effect.
    pub(crate) fn after_effect(end: Instant, meter: &Meter) -> Self {
        let now = system::instant();
        let left = end.saturating_duration_since(now);
        // If we cut off a copy before its response arrives, we cannot know whether it was applied.
        let for_last_answer = TIME_FOR_A_DENIAL.min(left / 4);
        Self {
            denied: Some(now + (left - for_last_answer).min(MAX_DENIED)),
            ..Self::commit(end, meter)
        }
    }

    /// Effort for counting an attempt alone, without which the handler must not start.
    pub(crate) fn attempt_alone(latest: Instant, meter: &Meter) -> Self {
        Self {
            denied: Some(latest),
            ..Self::commit(latest, meter)
        }
    }

    /// Effort for a write that is the effect itself. If it is denied, nothing has changed.
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

    /// Effort for a write that only shortens somebody's wait. It must not occupy the worker for long.
    pub(crate) fn brief(end: Instant, meter: &Meter) -> Self {
        Self::commit(end.min(system::instant() + MAX_BRIEF), meter)
    }

    /// Returns the context for the store.
    pub const fn context(&self) -> &RequestContext {
        &self.context
    }
}

/// Sends a request and repeats it as long as `effort` allows. The request must be safe to repeat.
///
/// # Errors
///
/// [`GivenUp`] after an error that a repetition cannot change, or when the effort ends.
pub(crate) async fn repeat<T, F>(
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
    // The last rejection explains most: throttling, or a missing permission.
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
            Some(RequestErrorKind::Contended) => {
                let pauses = contended.get_or_insert_with(|| {
                    let end = effort.contended.map(|time| system::instant() + time);
                    RetryPauses::until(end.unwrap_or(effort.until))
                });
                effort.budget.is_none_or(Health::take_repetition) && pauses.pause().await
            }
            Some(RequestErrorKind::Denied) => match &mut denied {
                Some(pauses) => pauses.pause().await,
                None => false,
            },
            Some(RequestErrorKind::Unanswered) => match effort.unanswered {
                Some(most) if copies_unanswered > most => false,
                // At once: the connection was dead. The calls of a batched write fail together, and so become
                // one batched write again.
                _ if copies_unanswered == 1 => unanswered_pauses.is_time_left(),
                _ => unanswered_pauses.pause().await,
            },
            Some(RequestErrorKind::Invalid) | None => false,
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

/// Random pauses between the copies of one request. Their upper limit doubles with each pause.
///
/// A pause takes at most half of the time left. So if contention ends 100 ms before the deadline, there is
/// still time for another copy.
pub(crate) struct RetryPauses {
    longest: Duration,
    limit: Duration,
    until: Instant,
}

/// Least time left for a retry. With less, no response could arrive.
const MIN_TIME_FOR_TRY: Duration = Duration::from_millis(10);

impl RetryPauses {
    /// Creates the pauses of a request that is repeated until this time.
    #[must_use]
    pub(crate) const fn until(until: Instant) -> Self {
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
        self.until.saturating_duration_since(system::instant()) > MIN_TIME_FOR_TRY
    }

    /// Pauses and returns true. Returns false if no time is left for another copy.
    pub(crate) async fn pause(&mut self) -> bool {
        if !self.is_time_left() {
            return false;
        }
        let left = self.until.saturating_duration_since(system::instant());
        let pause = self.longest.mul_f64(system::random_fraction());
        sleep(pause.min(left / 2)).await;
        self.longest = (self.longest * 2).min(self.limit);
        true
    }
}

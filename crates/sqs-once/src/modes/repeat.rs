//! The loop that repeats failed requests: claims, and the writes that follow a claim.
//!
//! | kind of failure | a claim | a write that follows |
//! | --- | --- | --- |
//! | contended | three times, for at most two seconds or a tenth of the time left | until its end |
//! | denied | once, after a moment | after an effect, for at most a minute; without one, once |
//! | invalid | no | no |
//! | unanswered | twice | until its end |

use std::time::Duration;

use crate::{
    deadline::Deadline,
    flawed::flawed,
    meter::Meter,
    protocol::{Key, RequestErrorKind},
    store::{RequestContext, StoreError},
    system::{self, Instant, sleep, timeout_at},
};

/// How long and how often a contended claim is retried. So lasting throttling at most quadruples the number of
/// claims.
const MAX_CLAIM_TIME: Duration = Duration::from_secs(2);
const CONTENDED_REPETITIONS: u32 = 3;
/// How often an unanswered claim is retried.
const CLAIM_REPETITIONS: u32 = 2;
/// How often a denied write is retried before there was an effect. A process that was frozen signs with an
/// old clock or old credentials once.
const DENIED_REPETITIONS: u32 = 1;
/// How long a denied write is retried after an effect. New credentials and permissions take seconds.
const MAX_DENIED: Duration = Duration::from_secs(60);
/// How long the last retry of a denied write waits for its response.
const TIME_FOR_A_DENIAL: Duration = Duration::from_secs(1);
/// Maximum time for a write that only shortens somebody's wait.
pub(crate) const MAX_BRIEF: Duration = Duration::from_secs(2);
/// Upper limits of the first random pause and of every pause.
const PAUSES: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));
/// The same for a contended claim, which has few of them.
const CLAIM_PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(1));
/// The same after a denied request.
const LONG_PAUSES: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(5));

/// A response, with what is known about earlier copies of the request.
#[derive(Debug)]
pub(crate) struct Answered<T> {
    /// The response.
    pub answer: T,
    /// Last error of an earlier copy that got no response. DynamoDB may still apply that copy.
    pub unanswered: Option<StoreError>,
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
pub(crate) struct Effort {
    /// When the last copy stops waiting for a response.
    until: Instant,
    /// Context that the store gets with each request.
    context: RequestContext,
    /// How often to retry a contended request, and how long after the first contention. `None`: until
    /// `until`.
    contended: Option<(u32, Duration)>,
    /// How often a denied write is retried, and until when.
    denied: (u32, Instant),
    /// How often an unanswered request is retried. `None`: until `until`.
    unanswered: Option<u32>,
}

impl Effort {
    /// Effort for a claim. Nothing has happened yet, and the message returns to the queue anyway.
    pub(super) fn claim(deadline: Deadline, context: RequestContext) -> Self {
        let until = deadline.handler_cutoff();
        let contended = MAX_CLAIM_TIME.min(deadline.time_left() / 10);
        Self {
            until,
            context,
            contended: Some((CONTENDED_REPETITIONS, contended)),
            denied: (DENIED_REPETITIONS, until),
            unanswered: Some(CLAIM_REPETITIONS),
        }
    }

    /// Effort for a write that records an effect. Without the record, a retry would repeat the effect.
    pub(crate) fn after_effect(end: Instant, meter: &Meter) -> Self {
        let now = system::instant();
        let left = end.saturating_duration_since(now);
        // If we cut off a copy before its response arrives, we cannot know whether it was applied.
        let for_last_answer = TIME_FOR_A_DENIAL.min(left / 4);
        Self {
            denied: (u32::MAX, now + (left - for_last_answer).min(MAX_DENIED)),
            unanswered: flawed("a completion is sent once").then_some(0),
            ..Self::commit(end, meter)
        }
    }

    /// Effort for a write that is the effect itself. If it is denied, nothing has changed.
    pub(crate) fn commit(end: Instant, meter: &Meter) -> Self {
        Self {
            until: end,
            context: RequestContext::until(end, meter),
            contended: None,
            denied: (DENIED_REPETITIONS, end),
            unanswered: None,
        }
    }

    /// Effort for a write that only shortens somebody's wait. It must not occupy the worker for long.
    pub(crate) fn brief(end: Instant, meter: &Meter) -> Self {
        Self::commit(end.min(system::instant() + MAX_BRIEF), meter)
    }

    /// Returns the context for the store.
    pub(crate) const fn context(&self) -> &RequestContext {
        &self.context
    }
}

/// Sends a request and repeats it as long as `effort` allows. The request must be safe to repeat.
///
/// # Errors
///
/// [`GivenUp`] after an error that a repetition cannot change, or when the effort ends.
pub(crate) async fn repeat<T, F>(
    effort: &Effort,
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
    let mut denied_pauses = RetryPauses::new(LONG_PAUSES, effort.denied.1);
    let (mut copies_contended, mut copies_denied) = (0, 0);
    // The last rejection explains most: throttling, or a missing permission.
    let (mut unanswered, mut rejected) = (None, None);
    let mut copies_unanswered = 0;
    loop {
        let error = match meter.timed(timeout_at(effort.until, send())).await {
            Ok(Ok(answer)) => {
                return Ok(Answered { answer, unanswered });
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
                copies_contended += 1;
                let pauses = contended.get_or_insert_with(|| match effort.contended {
                    Some((_, time)) => RetryPauses::new(CLAIM_PAUSES, system::instant() + time),
                    None => RetryPauses::until(effort.until),
                });
                effort
                    .contended
                    .is_none_or(|(most, _)| copies_contended <= most)
                    && pauses.pause().await
            }
            Some(RequestErrorKind::Denied) => {
                copies_denied += 1;
                copies_denied <= effort.denied.0 && denied_pauses.pause().await
            }
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

/// Random pauses between the copies of one request. Their upper limit doubles with each pause, and half of it is
/// fixed, so that they grow.
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
        let pause = self
            .longest
            .mul_f64((1.0 + system::random_fraction()) / 2.0);
        sleep(pause.min(left / 2)).await;
        self.longest = (self.longest * 2).min(self.limit);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MILLISECOND: Duration = Duration::from_millis(1);

    /// Pauses so often, and returns how long each pause was.
    async fn paused(pauses: &mut RetryPauses, times: usize) -> Vec<Duration> {
        let mut took = Vec::new();
        for _ in 0..times {
            let start = system::instant();
            if !pauses.pause().await {
                break;
            }
            took.push(system::elapsed(start));
        }
        took
    }

    #[tokio::test(start_paused = true)]
    async fn pauses_double_up_to_their_limit() {
        let mut pauses = RetryPauses::until(system::instant() + Duration::from_secs(60));
        let longest = [20, 40, 80, 160, 320, 640, 1000, 1000];
        let took = paused(&mut pauses, longest.len()).await;
        for (took, longest) in took.into_iter().zip(longest) {
            let longest = longest * MILLISECOND;
            // A timer may fire a millisecond late.
            let expected = longest / 2..=longest + MILLISECOND;
            assert!(expected.contains(&took), "{took:?} of {longest:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn pause_takes_half_of_the_time_left() {
        let until = system::instant() + 100 * MILLISECOND;
        let mut pauses = RetryPauses::new(LONG_PAUSES, until);
        let took = paused(&mut pauses, 10).await;
        assert_eq!(took, [50, 25, 13, 6].map(|n| n * MILLISECOND));
    }

    #[tokio::test(start_paused = true)]
    async fn last_copy_of_a_denied_write_has_time_for_its_answer() {
        let now = system::instant();
        for (left, until) in [(400, 300), (10_000, 9_000), (900_000, 60_000)] {
            let effort = Effort::after_effect(now + left * MILLISECOND, &Meter::default());
            assert_eq!(effort.denied.1 - now, until * MILLISECOND, "{left} ms");
        }
    }
}

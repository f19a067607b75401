//! The loop that retries failed requests: claims, and the writes that follow a claim.
//!
//! | kind of failure | how many times a claim is retried | how many times a write that follows is retried |
//! | --- | --- | --- |
//! | contended | three times, for at most two seconds or a tenth of the time left | until its time limit |
//! | denied | once, after a moment | after an effect, for at most a minute; without one, once |
//! | invalid | never | never |
//! | unanswered | twice | until its time limit |
//!
//! An unanswered write may have been applied. So `decide` recognizes a claim's own record (`Decision::Mine`), `finish` compares
//! stamps, and `claim` undoes a claim that we give up on here.

use std::time::Duration;

use crate::{
    flawed::flawed,
    protocol::{Key, RequestErrorKind},
    store::{RequestContext, StoreError},
    system::{self, Instant, sleep, timeout_at},
};

/// How long and how many times a contended claim is retried. Even if throttling lasts, this at most quadruples the number of
/// claims.
const MAX_CLAIM_TIME: Duration = Duration::from_secs(2);
const CONTENDED_REPETITIONS: u32 = 3;
/// How many times an unanswered claim is retried.
const CLAIM_REPETITIONS: u32 = 2;
/// How many times a denied request is retried if there was no effect. A process that was frozen may sign one request with an
/// old clock or old credentials.
const DENIED_REPETITIONS: u32 = 1;
/// How long a denied write is retried after an effect. New credentials and permissions take seconds.
const MAX_DENIED: Duration = Duration::from_secs(60);
/// How long the last retry of a denied write waits for its response.
const TIME_FOR_A_DENIAL: Duration = Duration::from_secs(1);
/// How long a request is retried if its context has no limit.
const NO_LIMIT: Duration = Duration::from_secs(900);
/// Maximum time for a write that only shortens somebody's wait.
const MAX_BRIEF: Duration = Duration::from_secs(2);
/// Upper limits of the first random pause and of every pause.
const PAUSES: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));
/// The limits for a contended claim, which gets only a few pauses.
const CLAIM_PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(1));
/// The limits after a denied request.
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

/// How long a request is retried, at most until the limit of its context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Patience {
    /// A claim. Nothing has happened yet, and the message returns to the queue anyway.
    Claim,
    /// A write that records an effect. Without the record, a retry would repeat the effect.
    AfterEffect,
    /// A write that is the effect itself. If it is denied, nothing has changed.
    Commit,
    /// A write that only shortens somebody's wait. It must not occupy the worker for long.
    Brief,
}

impl Patience {
    /// Returns when the last copy stops waiting for a response: no later than `end`.
    pub(crate) fn until(self, end: Instant) -> Instant {
        if self == Self::Brief {
            end.min(system::instant() + MAX_BRIEF)
        } else {
            end
        }
    }

    /// Returns how many times a contended request is retried, and for how long after the first contention. Returns `None`
    /// if only the limit ends the retries.
    fn contended(self, left: Duration) -> Option<(u32, Duration)> {
        (self == Self::Claim).then(|| (CONTENDED_REPETITIONS, MAX_CLAIM_TIME.min(left / 10)))
    }

    /// Returns how many times a denied request is retried, and for how long.
    fn denied(self, left: Duration) -> (u32, Duration) {
        if self == Self::AfterEffect {
            // If we cut off a copy before its response arrives, we cannot know whether it was applied.
            let for_last_answer = TIME_FOR_A_DENIAL.min(left / 4);
            (u32::MAX, (left - for_last_answer).min(MAX_DENIED))
        } else {
            (DENIED_REPETITIONS, left)
        }
    }

    /// Returns how many times an unanswered request is retried, or `None` if only the limit ends the retries.
    fn unanswered(self) -> Option<u32> {
        match self {
            Self::Claim => Some(CLAIM_REPETITIONS),
            Self::AfterEffect if flawed("a completion is sent once") => Some(0),
            Self::AfterEffect | Self::Commit | Self::Brief => None,
        }
    }
}

/// Sends a request and retries it for as long as `patience` allows. The request must be safe to repeat.
///
/// # Errors
///
/// Returns [`GivenUp`] if retrying can't help, or when the patience ends.
pub(crate) async fn repeat<T, F>(
    patience: Patience,
    context: &RequestContext,
    action: &'static str,
    key: &Key,
    send: impl Fn() -> F,
) -> Result<Answered<T>, GivenUp>
where
    F: Future<Output = Result<T, StoreError>>,
{
    let meter = &context.meter;
    let now = system::instant();
    let until = context.limit.unwrap_or(now + NO_LIMIT);
    let left = until.saturating_duration_since(now);
    let most_contended = patience.contended(left);
    let (most_denied, denied_for) = patience.denied(left);
    let mut contended = None;
    let mut unanswered_pauses = RetryPauses::until(until);
    let mut denied_pauses = RetryPauses::new(LONG_PAUSES, now + denied_for);
    let (mut copies_contended, mut copies_denied) = (0, 0);
    // We report the last rejection, because throttling or a missing permission explains more than a missing response.
    let (mut unanswered, mut rejected) = (None, None);
    let mut copies_unanswered = 0;
    loop {
        let error = match meter.timed(timeout_at(until, send())).await {
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
                let pauses = contended.get_or_insert_with(|| match most_contended {
                    Some((_, time)) => RetryPauses::new(CLAIM_PAUSES, system::instant() + time),
                    None => RetryPauses::until(until),
                });
                most_contended.is_none_or(|(most, _)| copies_contended <= most)
                    && pauses.pause().await
            }
            Some(RequestErrorKind::Denied) => {
                copies_denied += 1;
                copies_denied <= most_denied && denied_pauses.pause().await
            }
            Some(RequestErrorKind::Unanswered) => match patience.unanswered() {
                Some(most) if copies_unanswered > most => false,
                // We retry at once, because the connection was probably dead. The calls of a batched write fail together, so
                // their retries become one batched write again.
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

/// Random pauses between the copies of one request. Their upper limit doubles with each pause, and each pause takes at
/// least half of the limit.
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
    /// Creates the pauses between retries that end at this time.
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

    /// Pauses this many times, and returns how long each pause was.
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

    #[test]
    fn last_copy_of_a_denied_write_has_time_for_its_answer() {
        for (left, denied_for) in [(400, 300), (10_000, 9_000), (900_000, 60_000)] {
            let denied = Patience::AfterEffect.denied(left * MILLISECOND);
            assert_eq!(denied.1, denied_for * MILLISECOND, "{left} ms");
        }
    }
}

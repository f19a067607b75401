//! [`BatchingState`] decides whether writes are batched now, judging by the responses to earlier batches.

use std::{sync::Arc, time::Duration};

use crate::{
    protocol::{Pause, Timestamp},
    system::{self, Instant},
};

/// How long batching pauses after DynamoDB did not respond to two batches in a row.
const REST: Duration = Duration::from_secs(10);
/// How long batching pauses after a [`BatchingEnd`].
const END: Duration = Duration::from_secs(3600);

#[derive(Default)]
pub(super) struct BatchingState {
    /// When we gave up on the first of the latest batches that got no response.
    silent_since: Option<Instant>,
    rest: Option<Pause>,
    end: Option<Pause>,
    /// True from the end of batching until the metrics have reported it.
    is_unreported: bool,
}

/// Why a process stops batching.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum BatchingEnd {
    /// The role may not send statements.
    Denied,
    /// The response has a form that we don't know.
    UnknownAnswer(Arc<str>),
    /// DynamoDB refused several batches or statements with this error, but accepted the same writes as ordinary requests.
    Refused(Arc<str>),
}

impl BatchingState {
    /// Returns whether each write is sent on its own.
    pub(super) fn is_pause(&self, now: Timestamp) -> bool {
        self.is_end(now) || is_on(self.rest, now)
    }

    fn is_end(&self, now: Timestamp) -> bool {
        is_on(self.end, now)
    }

    /// Records that a batch sent at this time got no response.
    pub(super) fn unanswered(&mut self, sent: Instant, now: Timestamp) {
        match self.silent_since {
            // We had given up on an earlier batch before this one was sent, so it may be the same batch again.
            Some(since) if sent >= since => self.rest = Some(Pause::new(now, REST)),
            Some(_) => {}
            None => self.silent_since = Some(system::instant()),
        }
    }

    pub(super) fn answered(&mut self) {
        (self.silent_since, self.rest) = (None, None);
    }

    /// Ends batching for an hour. Returns false if it had ended already.
    pub(super) fn end(&mut self, now: Timestamp) -> bool {
        if self.is_end(now) {
            return false;
        }
        self.end = Some(Pause::new(now, END));
        self.is_unreported = true;
        true
    }

    /// Returns true once after each end.
    pub(super) fn take_unreported_end(&mut self) -> bool {
        std::mem::take(&mut self.is_unreported)
    }
}

fn is_on(pause: Option<Pause>, now: Timestamp) -> bool {
    pause.is_some_and(|pause| pause.is_on(now))
}

impl BatchingEnd {
    pub(super) fn log(&self, table: &str) {
        match self {
            Self::Denied => tracing::warn!(
                table,
                needs = "dynamodb:PartiQLInsert and dynamodb:PartiQLUpdate",
                "DynamoDB denied access to batched writes: each write is sent alone for an hour"
            ),
            Self::UnknownAnswer(answer) => tracing::warn!(
                table,
                answer = &**answer,
                "DynamoDB's response to a batched write has an unknown form: each write is sent alone for an hour"
            ),
            Self::Refused(answer) => tracing::warn!(
                table,
                answer = &**answer,
                "DynamoDB refuses batched writes whose single requests it accepts: each write is sent alone for an hour"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The monotonic clock stands still during the pause, as in a process that Lambda has frozen.
    #[tokio::test(start_paused = true)]
    async fn batches_rest_after_two_without_answer() {
        let mut standing = BatchingState::default();
        let (sent, now) = (Instant::now(), Timestamp::from_millis(1_000_000));
        tokio::time::advance(Duration::from_secs(1)).await;
        // Two batches were sent in one turn.
        standing.unanswered(sent, now);
        standing.unanswered(sent, now);
        assert!(!standing.is_pause(now));
        standing.unanswered(Instant::now(), now);
        assert!(standing.is_pause(now));
        assert!(!standing.is_pause(now + REST));
        assert!(!standing.is_pause(Timestamp::default()), "set back");
        standing.answered();
        standing.unanswered(Instant::now(), now);
        assert!(!standing.is_pause(now));
    }

    #[test]
    fn batches_that_ended_are_tried_again_after_an_hour() {
        let mut standing = BatchingState::default();
        let now = Timestamp::from_millis(1_000_000_000);
        assert!(!standing.take_unreported_end());
        assert!(standing.end(now));
        assert!(!standing.end(now + END / 2));
        assert!(standing.take_unreported_end());
        assert!(!standing.take_unreported_end());
        // A batch that was still in flight gets its response.
        standing.answered();
        assert!(standing.is_pause(now + END / 2));
        assert!(!standing.is_pause(now + END));
        assert!(standing.end(now + END));
        assert!(standing.take_unreported_end());
    }
}

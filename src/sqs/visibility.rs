//! When a message that goes back to the queue is seen again: the rule, without the calls.

use std::{collections::HashMap, time::Duration};

use super::{message::Message, processed::Processed};
use crate::{Outcome, protocol::Timestamp};

/// SQS hides a message for 12 hours from its *receive* at most, and refuses a longer timeout. A
/// batching window (5 minutes) and an invocation (15) may be over by now.
pub(super) const LONGEST: u16 = 12 * 3600 - 1800;

/// Added to another's lease, in seconds: the next worker's clock may be behind ours.
const CLOCKS: u64 = 1;
/// And at most this much by chance, so that all who wait for one lease do not come at once.
const SPREAD: u64 = 2;

/// How long to wait between tries of what may pass.
#[derive(Clone, Copy, Debug)]
pub(super) struct Backoff {
    pub(super) base: Duration,
    pub(super) cap: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Self {
            base: Duration::from_secs(10),
            cap: Duration::from_secs(15 * 60),
        }
    }
}

impl Backoff {
    /// Full jitter: anything up to `base` after the first receive, doubled with each one after
    /// it, up to `cap`. In seconds, as SQS counts.
    fn seconds(self, receive_count: u32, jitter: impl FnOnce(u64) -> u64) -> u64 {
        let doubled = 1_u32
            .checked_shl(receive_count.saturating_sub(1))
            .unwrap_or(u32::MAX);
        jitter(ceil(self.base.saturating_mul(doubled).min(self.cap)))
    }
}

/// Seconds until a message is to be seen again; `None` leaves that to the queue.
///
/// `ahead` is what the failed one before it in its FIFO group got, `jitter` a number up to the
/// one given.
pub(super) fn seconds(
    processed: &Processed,
    receive_count: u32,
    now: Timestamp,
    ahead: Option<u16>,
    backoff: Backoff,
    jitter: impl FnOnce(u64) -> u64,
) -> Option<u16> {
    let seconds = match processed {
        Processed::BehindFailure => return ahead,
        // It fails again without running: on to the dead-letter queue.
        Processed::Invalid(_) => 0,
        Processed::Ran(outcome) => match outcome {
            Outcome::Done(_) | Outcome::Duplicate(_) => return None,
            Outcome::Conflict { lease_until, .. } => {
                ceil(now.until(*lease_until)).saturating_add(CLOCKS + jitter(SPREAD))
            }
            Outcome::PermanentFailure(_)
            | Outcome::FailedBefore(_)
            | Outcome::TooManyFailures(_)
            | Outcome::KeyReused
            | Outcome::NotStarted => 0,
            Outcome::RetryableFailure(_)
            | Outcome::NoEffect(_)
            | Outcome::Panicked
            | Outcome::OutOfTime
            | Outcome::LeaseLost
            | Outcome::PayloadConflict { .. }
            | Outcome::CompletionUnrecorded(_)
            | Outcome::FailureUnrecorded { .. }
            | Outcome::CommitUnknown(_)
            | Outcome::StoreUnavailable(_) => backoff.seconds(receive_count, jitter),
        },
    };
    Some(u16::try_from(seconds).map_or(LONGEST, |seconds| seconds.min(LONGEST)))
}

/// A message whose visibility is to be changed.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Change<'a> {
    pub(super) message_id: &'a str,
    pub(super) queue_arn: &'a str,
    pub(super) receipt_handle: &'a str,
    pub(super) seconds: u16,
}

/// What is to be changed for a batch.
pub(super) fn plan<'a>(
    batch: impl IntoIterator<Item = (&'a Message, Option<&'a Processed>)>,
    now: Timestamp,
    backoff: Backoff,
    jitter: fn(u64) -> u64,
) -> Vec<Change<'a>> {
    let mut changes = Vec::new();
    let mut of_group = HashMap::new();
    for (message, processed) in batch {
        let group = message.fifo_group();
        let ahead = group.and_then(|group| of_group.get(group)).copied();
        let receive_count = message.receive_count();
        let wait = processed
            .and_then(|processed| seconds(processed, receive_count, now, ahead, backoff, jitter));
        if let (Some(group), Some(wait)) = (group, wait) {
            of_group.insert(group, wait);
        }
        if let (Some(seconds), Some(receipt)) = (wait, message.receipt()) {
            changes.push(Change {
                message_id: message.id().as_str(),
                queue_arn: &receipt.queue_arn,
                receipt_handle: &receipt.handle,
                seconds,
            });
        }
    }
    changes
}

fn ceil(duration: Duration) -> u64 {
    duration
        .as_secs()
        .saturating_add(u64::from(duration.subsec_nanos() > 0))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{
        protocol::{Owner, StoredResult},
        store::StoreError,
    };

    const NOW: Timestamp = Timestamp::from_millis(1_000_000);
    const BACKOFF: Backoff = Backoff {
        base: Duration::from_secs(4),
        cap: Duration::from_secs(60),
    };

    fn least(_: u64) -> u64 {
        0
    }

    fn most(most: u64) -> u64 {
        most
    }

    fn range(processed: &Processed, receive_count: u32) -> Option<(u16, u16)> {
        let with =
            |jitter: fn(u64) -> u64| seconds(processed, receive_count, NOW, None, BACKOFF, jitter);
        with(least).zip(with(most))
    }

    fn ran(outcome: Outcome) -> Processed {
        Processed::Ran(outcome)
    }

    fn conflict(lease_until: u64) -> Processed {
        ran(Outcome::Conflict {
            owner: Some(Owner::fresh()),
            lease_until: Timestamp::from_millis(lease_until),
        })
    }

    fn retryable() -> Processed {
        ran(Outcome::RetryableFailure("busy".into()))
    }

    #[test]
    fn no_wait_is_longer_than_eleven_and_a_half_hours() {
        assert_eq!(u32::from(LONGEST), 11 * 3600 + 30 * 60);
    }

    #[test]
    fn what_succeeded_is_left_alone() {
        let result = || StoredResult::Json("1".into());
        for outcome in [Outcome::Done(result()), Outcome::Duplicate(result())] {
            assert_eq!(range(&ran(outcome), 1), None);
        }
    }

    #[test]
    fn what_fails_again_or_was_not_started_is_back_at_once() {
        for processed in [
            ran(Outcome::PermanentFailure("declined".into())),
            ran(Outcome::FailedBefore("declined".into())),
            ran(Outcome::KeyReused),
            ran(Outcome::NotStarted),
            Processed::Invalid("not JSON".into()),
        ] {
            assert_eq!(range(&processed, 4), Some((0, 0)), "{processed:?}");
        }
    }

    #[test]
    fn what_may_pass_is_back_after_a_wait_that_doubles_up_to_the_cap() {
        let error = || {
            Arc::new(StoreError::OutOfTime {
                action: "claim",
                key: "k".into(),
            })
        };
        for processed in [
            retryable(),
            ran(Outcome::Panicked),
            ran(Outcome::OutOfTime),
            ran(Outcome::LeaseLost),
            ran(Outcome::CompletionUnrecorded(error())),
            ran(Outcome::StoreUnavailable(error())),
        ] {
            for (receive_count, ceiling) in [
                (0, 4),
                (1, 4),
                (2, 8),
                (3, 16),
                (4, 32),
                (5, 60),
                (33, 60),
                (u32::MAX, 60),
            ] {
                assert_eq!(
                    range(&processed, receive_count),
                    Some((0, ceiling)),
                    "{processed:?} {receive_count}"
                );
            }
        }
    }

    #[test]
    fn a_conflict_is_back_when_the_lease_is_over_and_never_before() {
        for (lease_until, least, most) in [
            (1_030_000, 31, 33),
            (1_030_001, 32, 34),
            (1_000_000, 1, 3),
            (0, 1, 3),
        ] {
            assert_eq!(range(&conflict(lease_until), 5), Some((least, most)));
        }
    }

    #[test]
    fn nothing_is_hidden_for_longer_than_sqs_takes() {
        assert_eq!(
            range(&conflict(u64::MAX), 1),
            Some((LONGEST, LONGEST)),
            "a lease of somebody else's making"
        );
        let backoff = Backoff {
            base: Duration::MAX,
            cap: Duration::MAX,
        };
        let wait = seconds(&retryable(), u32::MAX, NOW, None, backoff, most);
        assert_eq!(wait, Some(LONGEST));
    }

    #[test]
    fn a_backoff_below_a_second_still_jitters() {
        let backoff = Backoff {
            base: Duration::from_millis(1),
            ..BACKOFF
        };
        assert_eq!(
            seconds(&retryable(), 1, NOW, None, backoff, most),
            Some(1),
            "SQS counts in seconds"
        );
    }

    #[test]
    fn what_is_behind_a_failure_waits_as_long_as_that() {
        let behind = |ahead| seconds(&Processed::BehindFailure, 9, NOW, ahead, BACKOFF, least);
        assert_eq!(behind(Some(7)), Some(7));
        assert_eq!(behind(None), None);
    }
}

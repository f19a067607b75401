//! Visibility timeouts of failed messages: the rule, without the calls.

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

/// Waits between the receives of a message whose failure is retryable.
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
    /// `base` after the first receive, doubled with each one after it, up to `cap`; half of that
    /// is fixed, and the rest jitter. The fixed half is the outage that every message survives.
    /// In seconds, as SQS counts.
    fn seconds(self, receive_count: u32, jitter: impl FnOnce(u64) -> u64) -> u64 {
        let doubled = 1_u32
            .checked_shl(receive_count.saturating_sub(1))
            .unwrap_or(u32::MAX);
        let whole = ceil(self.base.saturating_mul(doubled).min(self.cap));
        let spread = whole / 2;
        whole - spread + jitter(spread)
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
            Outcome::Conflict { lease_until, .. } if *lease_until > now => {
                ceil(now.until(*lease_until)).saturating_add(CLOCKS + jitter(SPREAD))
            }
            Outcome::PermanentFailure(_)
            | Outcome::FailedBefore(_)
            | Outcome::KeyReused
            | Outcome::NotStarted => 0,
            // The record stays as it is until another attempt or a person changes it.
            Outcome::Conflict { .. }
            | Outcome::RetryableFailure(_)
            | Outcome::NoEffect(_)
            | Outcome::Panicked
            | Outcome::OutOfTime
            | Outcome::LeaseLost
            | Outcome::CompletionUnrecorded(_)
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
    fn success_leaves_the_visibility_alone() {
        let result = || StoredResult::Json("1".into());
        for outcome in [Outcome::Done(result()), Outcome::Duplicate(result())] {
            assert_eq!(range(&ran(outcome), 1), None);
        }
    }

    #[test]
    fn permanent_failure_or_no_start_is_visible_at_once() {
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
    fn retryable_failure_waits_half_to_all_of_a_doubling_backoff() {
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
            ran(Outcome::CommitUnknown(error())),
            ran(Outcome::NoEffect("refused".into())),
        ] {
            for (receive_count, least, most) in [
                (0, 2, 4),
                (1, 2, 4),
                (2, 4, 8),
                (3, 8, 16),
                (4, 16, 32),
                (5, 30, 60),
                (33, 30, 60),
                (u32::MAX, 30, 60),
            ] {
                assert_eq!(
                    range(&processed, receive_count),
                    Some((least, most)),
                    "{processed:?} {receive_count}"
                );
            }
        }
    }

    #[test]
    fn conflict_waits_until_the_lease_ends_and_never_less() {
        for (lease_until, least, most) in
            [(1_000_001, 2, 4), (1_030_000, 31, 33), (1_030_001, 32, 34)]
        {
            assert_eq!(range(&conflict(lease_until), 5), Some((least, most)));
        }
    }

    #[test]
    fn conflict_with_an_ended_lease_backs_off() {
        for lease_until in [1_000_000, 0] {
            assert_eq!(range(&conflict(lease_until), 1), Some((2, 4)));
            assert_eq!(range(&conflict(lease_until), 5), Some((30, 60)));
        }
    }

    #[test]
    fn wait_never_exceeds_the_limit_of_sqs() {
        assert_eq!(
            range(&conflict(u64::MAX), 1),
            Some((LONGEST, LONGEST)),
            "a lease that another program wrote"
        );
        let backoff = Backoff {
            base: Duration::MAX,
            cap: Duration::MAX,
        };
        let wait = seconds(&retryable(), u32::MAX, NOW, None, backoff, most);
        assert_eq!(wait, Some(LONGEST));
    }

    #[test]
    fn backoff_below_a_second_waits_one_second() {
        let backoff = Backoff {
            base: Duration::from_millis(1),
            ..BACKOFF
        };
        for jitter in [least, most] {
            let wait = seconds(&retryable(), 1, NOW, None, backoff, jitter);
            assert_eq!(wait, Some(1), "SQS counts in seconds");
        }
    }

    #[test]
    fn message_behind_a_failure_waits_as_long_as_it() {
        let behind = |ahead| seconds(&Processed::BehindFailure, 9, NOW, ahead, BACKOFF, least);
        assert_eq!(behind(Some(7)), Some(7));
        assert_eq!(behind(None), None);
    }
}

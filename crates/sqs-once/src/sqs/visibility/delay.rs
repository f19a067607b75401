//! Computes the visibility timeouts of failed messages. Makes no calls.

use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

use crate::{
    flawed::flawed,
    modes::{Outcome, Retry},
    protocol::{Key, Timestamp},
    sqs::{
        message::{Message, MessageId},
        message_outcome::MessageOutcome,
    },
};

/// The longest timeout at the start of an invocation. SQS hides a message for at most 12 hours from its
/// *receive*, and rejects a longer timeout. The event doesn't say when a redelivered message was received. Before the
/// invocation, it may have waited for a batching window of up to 5 minutes and for a free function.
pub(super) const LONGEST: u16 = 12 * 3600 - 1800;

/// Seconds to add to another worker's lease, because the next worker's clock may be behind ours.
const CLOCKS: u64 = 1;
/// We add up to this many random seconds, so that messages which wait for the same lease don't all come back at once.
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
    /// Returns the wait in whole seconds, as SQS counts: `base` after the first receive, doubled at each later
    /// one, up to `cap`. Half of it is fixed, and the rest is jitter. Only the fixed half counts towards the outage that
    /// every message is sure to survive.
    fn seconds(self, receive_count: u32, jitter: impl FnOnce(u64) -> u64) -> u64 {
        let doubled = 1_u32
            .checked_shl(receive_count.saturating_sub(1))
            .unwrap_or(u32::MAX);
        let whole = ceil(self.base.saturating_mul(doubled).min(self.cap));
        let spread = whole / 2;
        whole - spread + jitter(spread)
    }
}

/// The outage that every message of a queue should survive.
#[doc(hidden)]
pub const LEAST_OUTAGE: Duration = Duration::from_secs(12 * 3600);

/// Returns the longest outage that every message of a queue survives: the shortest time from a message's first receive to
/// its last.
///
/// `backoff` holds the first wait and the longest. A failed message waits for at least half of its backoff, and one whose worker
/// dies waits for the queue's visibility timeout. A message that isn't started at its first receive is visible again at once.
#[doc(hidden)]
#[must_use]
pub fn survived_outage(
    (base, cap): (Duration, Duration),
    receives: u32,
    visibility_timeout: Duration,
) -> Duration {
    let backoff = Backoff { base, cap };
    (2..receives)
        .map(|receive| Duration::from_secs(backoff.seconds(receive, |_| 0)).min(visibility_timeout))
        .sum()
}

/// Up to this receive, a permanently failed message becomes visible again at once if it can go to a dead-letter
/// queue. After that it waits, because each receive costs a write unit, and a queue may allow more than a hundred.
const QUICK_RECEIVES: u32 = 3;
/// Longest wait after those receives on a FIFO queue, in seconds. It is short, because the message group also waits. After
/// a retryable failure, the wait is a [`Backoff`] instead.
const LONGEST_AFTER_PERMANENT_ON_FIFO: u64 = 30;

/// One receive of a message, and its queue.
#[derive(Clone, Copy, Debug)]
pub(super) struct Receive {
    count: u32,
    fifo: bool,
    has_dead_letter_queue: bool,
    /// The wait of the failed message ahead of this one in the chain, if that message is still in the queue.
    ahead: Option<u16>,
    /// True if this message kept those behind it in its message group from running.
    stops_group: bool,
}

#[cfg(test)]
impl Receive {
    /// Creates a receive from a standard queue whose attributes are unknown.
    pub(super) const fn of_standard_queue(count: u32) -> Self {
        Self {
            count,
            fifo: false,
            has_dead_letter_queue: false,
            ahead: None,
            stops_group: false,
        }
    }
}

/// Decides how long failed messages wait.
pub(super) struct Rule {
    pub(super) now: Timestamp,
    /// When the invocation began.
    pub(super) begun: Timestamp,
    pub(super) backoff: Backoff,
    /// The lookup's quarantine, if the handler has a lookup. A failed message that came back before the quarantine's end would only
    /// conflict and use up a receive.
    pub(super) quarantine: Option<Duration>,
    /// Returns a random number up to the given one.
    pub(super) jitter: fn(u64) -> u64,
}

impl Rule {
    /// Returns the visibility timeout in seconds, or `None` to leave it to the queue.
    pub(super) fn seconds(&self, outcome: &Outcome, receive: Receive) -> Option<u16> {
        let backoff = || self.backoff.seconds(receive.count, self.jitter);
        let seconds = match outcome.retry() {
            Retry::Never if outcome.is_success() => return None,
            // The messages behind it also use up receives, and a short wait would soon dead-letter them with it.
            Retry::Never if receive.stops_group => backoff(),
            Retry::Never if receive.has_dead_letter_queue && receive.count <= QUICK_RECEIVES => 0,
            Retry::Never if receive.fifo => backoff().min(LONGEST_AFTER_PERMANENT_ON_FIFO),
            Retry::Never => backoff(),
            Retry::Now => match receive.ahead {
                Some(ahead) => ahead.into(),
                // The failed message before it is in the dead-letter queue.
                None if matches!(outcome, Outcome::BehindFailure) => 0,
                None if receive.count <= 1 => 0,
                // If a batch is too large for its time, its messages must not come back again and again until
                // their receives are used up.
                None => backoff(),
            },
            Retry::At(_) if flawed("a conflict does not wait") => 0,
            Retry::At(end) if end > self.now => {
                let lease = ceil(self.now.until(end));
                let after_lease = lease.saturating_add(CLOCKS + (self.jitter)(SPREAD));
                // When the lease ends, a plain duplicate finds the result. But if the handler fails, the key's many copies
                // would come back after each lease, and use up their receives within an hour.
                if receive.count <= 1 {
                    after_lease
                } else {
                    after_lease.max(backoff())
                }
            }
            // We cap the wait, because a system that asks for an hour may recover sooner, and SQS hides a message for 12
            // hours at most.
            Retry::BackoffAtLeast(wanted) => backoff()
                .max(ceil(wanted.min(self.backoff.cap)))
                .max(self.after_quarantine()),
            Retry::BackoffUntil(time) => backoff().max(ceil(self.now.until(time))),
            Retry::Backoff if flawed("waits do not grow") => self.backoff.seconds(1, self.jitter),
            // A conflict with a lease that has ended also gets a backoff, because the record stays as it is until another
            // attempt or a person changes it.
            Retry::At(_) | Retry::Backoff => backoff().max(self.after_quarantine()),
        };
        let longest = u64::from(LONGEST).saturating_sub(ceil(self.begun.until(self.now)));
        u16::try_from(seconds.min(longest)).ok()
    }

    /// Returns the seconds until the quarantine of an attempt that ends now is over. 0 without a lookup.
    fn after_quarantine(&self) -> u64 {
        self.quarantine.map_or(0, |quarantine| {
            ceil(quarantine).saturating_add(2 * CLOCKS + (self.jitter)(SPREAD))
        })
    }

    /// Returns the timeout changes for a batch.
    pub(super) fn plan<'a>(
        &self,
        batch: &[MessageOutcome<'a>],
        has_dead_letter_queue: impl Fn(&str) -> bool,
    ) -> Vec<TimeoutChange<'a>> {
        let mut changes = Vec::new();
        let mut of_chain = HashMap::new();
        let stop = stopping(batch);
        // On a standard queue, a message may run after one that comes later in the batch.
        let (behind, ended): (Vec<_>, Vec<_>) = batch
            .iter()
            .partition(|of| is_behind(of) && of.message.fifo_group().is_none());
        for of in ended.into_iter().chain(behind) {
            let (chain, receipt) = (chain(of), of.message.receipt());
            let is_in_group = of.message.fifo_group().is_some();
            let receive = Receive {
                count: of.receive_count,
                fifo: is_in_group,
                has_dead_letter_queue: receipt
                    .is_some_and(|receipt| has_dead_letter_queue(receipt.queue_arn)),
                ahead: chain
                    .filter(|_| is_in_group || is_behind(of))
                    .and_then(|chain| of_chain.get(chain))
                    .copied(),
                stops_group: stop.contains(&of.message.id),
            };
            let wait = (self.seconds(of.outcome, receive)).filter(|_| !of.dead_lettered);
            // After a permanent failure, the next message with the key runs.
            let stops = is_in_group || !of.outcome.is_permanent();
            if let (Some(chain), Some(wait)) = (chain.filter(|_| stops), wait) {
                let of_chain = of_chain.entry(chain).or_insert(wait);
                *of_chain = if is_in_group {
                    wait
                } else {
                    wait.max(*of_chain)
                };
            }
            if let (Some(seconds), Some(receipt)) = (wait, receipt) {
                changes.push(TimeoutChange {
                    message_id: &of.message.id,
                    queue_arn: receipt.queue_arn,
                    receipt_handle: receipt.handle,
                    seconds,
                });
            }
        }
        changes
    }
}

fn is_behind(of: &MessageOutcome<'_>) -> bool {
    matches!(of.outcome, Outcome::BehindFailure)
}

/// Names the chain of a message: its message group on a FIFO queue, otherwise its key. A message with its body in S3 has its own
/// chain.
fn chain<'a>(of: &MessageOutcome<'a>) -> Option<&'a str> {
    let message: &'a Message = of.message;
    message
        .fifo_group()
        .or_else(|| message.key().map(Key::as_str))
}

/// Returns the messages that kept those behind them in their message group from running.
fn stopping<'a>(batch: &[MessageOutcome<'a>]) -> HashSet<&'a MessageId> {
    let mut last_of_group = HashMap::new();
    let mut stopping = HashSet::new();
    for of in batch {
        let Some(group) = of.message.fifo_group() else {
            continue;
        };
        if !is_behind(of) {
            last_of_group.insert(group, &of.message.id);
        } else if let Some(last) = last_of_group.get(group) {
            stopping.insert(*last);
        }
    }
    stopping
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct TimeoutChange<'a> {
    pub(super) message_id: &'a MessageId,
    pub(super) queue_arn: &'a str,
    pub(super) receipt_handle: &'a str,
    pub(super) seconds: u16,
}

fn ceil(duration: Duration) -> u64 {
    duration
        .as_secs()
        .saturating_add(u64::from(duration.subsec_nanos() > 0))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use aws_lambda_events::sqs::SqsMessage;

    use super::*;
    use crate::{
        modes::RetryableError,
        protocol::{Owner, StoredResult},
        sqs::ended::Ended,
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

    const STANDARD: Receive = Receive::of_standard_queue(1);

    fn rule(backoff: Backoff, jitter: fn(u64) -> u64) -> Rule {
        Rule {
            now: NOW,
            begun: NOW,
            backoff,
            quarantine: None,
            jitter,
        }
    }

    fn range_of(outcome: &Outcome, receive: Receive) -> Option<(u16, u16)> {
        let with = |jitter| rule(BACKOFF, jitter).seconds(outcome, receive);
        with(least).zip(with(most))
    }

    fn range(outcome: &Outcome, count: u32) -> Option<(u16, u16)> {
        range_of(outcome, Receive::of_standard_queue(count))
    }

    fn conflict(lease_until: u64) -> Outcome {
        Outcome::Conflict {
            owner: Some(Owner::fresh()),
            lease_until: Timestamp::from_millis(lease_until),
        }
    }

    fn retryable() -> Outcome {
        Outcome::RetryableFailure("busy".into())
    }

    #[test]
    fn wait_is_at_least_what_the_handler_asks_for() {
        let asks = |seconds| {
            let mut error = RetryableError::from("503");
            error.retry_after = Some(Duration::from_secs_f64(seconds));
            [
                Outcome::NoEffect(error.clone()),
                Outcome::RetryableFailure(error),
            ]
        };
        for (seconds, count, least, most) in [
            (0.0, 1, 2, 4),
            (3.0, 1, 3, 4),
            (29.1, 1, 30, 30),
            (29.1, 5, 30, 60),
            // Up to the longest backoff.
            (3600.0, 1, 60, 60),
            (1e9, 5, 60, 60),
        ] {
            for outcome in asks(seconds) {
                let range = range(&outcome, count);
                assert_eq!(range, Some((least, most)), "{seconds} {count}");
            }
        }
        let rule = Rule {
            quarantine: Some(Duration::from_secs(30)),
            ..rule(BACKOFF, least)
        };
        for outcome in asks(3.0) {
            assert_eq!(rule.seconds(&outcome, STANDARD), Some(32));
        }
    }

    #[test]
    fn open_circuit_waits_for_backoff_and_next_probe() {
        let circuit_open = |in_ms| {
            let next_probe = NOW + Duration::from_millis(in_ms);
            Outcome::CircuitOpen { next_probe }
        };
        assert_eq!(range(&circuit_open(0), 3), range(&retryable(), 3));
        assert_eq!(range(&circuit_open(59_001), 1), Some((60, 60)));
    }

    #[test]
    fn failed_attempt_waits_for_quarantine() {
        let with = |outcome: &Outcome, count, jitter| {
            let rule = Rule {
                quarantine: Some(Duration::from_millis(30_001)),
                ..rule(BACKOFF, jitter)
            };
            rule.seconds(outcome, Receive::of_standard_queue(count))
        };
        for outcome in [
            retryable(),
            Outcome::Panicked,
            Outcome::NoEffect("503".into()),
        ] {
            // The lease's margin, and a second because clocks differ.
            assert_eq!(with(&outcome, 1, least), Some(33), "{outcome:?}");
            assert_eq!(with(&outcome, 1, most), Some(35), "{outcome:?}");
            assert_eq!(with(&outcome, 5, most), Some(60), "{outcome:?}");
        }
        assert_eq!(with(&Outcome::NotStarted, 1, most), Some(0));
    }

    #[test]
    fn wait_is_at_most_eleven_and_a_half_hours() {
        assert_eq!(u32::from(LONGEST), 11 * 3600 + 30 * 60);
    }

    #[test]
    fn success_keeps_visibility_timeout() {
        let result = || StoredResult::Json("1".into());
        for outcome in [Outcome::Completed(result()), Outcome::Duplicate(result())] {
            assert_eq!(range(&outcome, 1), None);
        }
    }

    fn permanent() -> [Outcome; 4] {
        [
            Outcome::PermanentFailure("declined".into()),
            Outcome::FailedBefore("declined".into()),
            Outcome::KeyReused,
            Outcome::Invalid("not JSON".into()),
        ]
    }

    #[test]
    fn unstarted_message_is_visible_at_once_and_later_backs_off() {
        for (count, least, most) in [(0, 0, 0), (1, 0, 0), (2, 4, 8), (40, 30, 60)] {
            let range = range(&Outcome::NotStarted, count);
            assert_eq!(range, Some((least, most)), "{count}");
        }
    }

    fn permanent_range(count: u32, fifo: bool, has_dead_letter_queue: bool) -> [(u16, u16); 4] {
        let receive = Receive {
            count,
            fifo,
            has_dead_letter_queue,
            ..STANDARD
        };
        permanent().map(|outcome| range_of(&outcome, receive).unwrap())
    }

    #[test]
    fn permanent_failure_is_visible_at_once_three_times() {
        for (count, fifo, waits) in [
            (1, false, (0, 0)),
            (3, false, (0, 0)),
            (4, false, (16, 32)),
            (40, false, (30, 60)),
            (3, true, (0, 0)),
            (4, true, (16, 30)),
            (40, true, (30, 30)),
        ] {
            assert_eq!(permanent_range(count, fifo, true), [waits; 4], "{count}");
        }
    }

    #[test]
    fn permanent_failure_that_stops_its_group_backs_off() {
        for (count, least, most) in [(1, 2, 4), (3, 8, 16), (40, 30, 60)] {
            let receive = Receive {
                count,
                fifo: true,
                has_dead_letter_queue: true,
                stops_group: true,
                ..STANDARD
            };
            for outcome in permanent() {
                assert_eq!(range_of(&outcome, receive), Some((least, most)), "{count}");
            }
        }
    }

    /// Returns the waits of the messages of one message group.
    fn waits_of_group<const N: usize>(ends: [(u32, Outcome, Is); N]) -> Vec<(usize, u16)> {
        let messages = ends.iter().enumerate().map(|(place, (count, _, _))| {
            let mut sqs = SqsMessage::default();
            sqs.message_id = Some(place.to_string());
            sqs.receipt_handle = Some("receipt".into());
            sqs.event_source_arn = Some("arn:aws:sqs:eu-west-1:111122223333:orders.fifo".into());
            sqs.attributes = HashMap::from([
                ("MessageGroupId".into(), "g".into()),
                ("ApproximateReceiveCount".into(), count.to_string()),
            ]);
            Message::new(sqs).unwrap()
        });
        let messages: Vec<_> = messages.collect();
        let ends: Vec<_> = ends
            .into_iter()
            .zip(&messages)
            .map(|((_, outcome, is), message)| (Ended::without_run(outcome, message), is))
            .collect();
        let ended = messages
            .iter()
            .zip(&ends)
            .map(|(message, (ended, is))| MessageOutcome {
                dead_lettered: *is == Is::Copied,
                ..MessageOutcome::new(message, ended)
            });
        let changes = rule(BACKOFF, least).plan(&ended.collect::<Vec<_>>(), |_| true);
        let place = |change: &TimeoutChange<'_>| change.message_id.as_str().parse().unwrap();
        (changes.iter())
            .map(|change| (place(change), change.seconds))
            .collect()
    }

    /// The result of direct dead-lettering for a message.
    #[derive(PartialEq, Eq)]
    enum Is {
        NotCopied,
        Copied,
    }

    #[test]
    fn group_that_stops_waits_for_its_head() {
        let declined = || Outcome::PermanentFailure("declined".into());
        let stopped = waits_of_group([
            (3, declined(), Is::NotCopied),
            (3, Outcome::BehindFailure, Is::NotCopied),
        ]);
        assert_eq!(stopped, [(0, 8), (1, 8)]);
        let stopped_later = waits_of_group([
            (3, declined(), Is::NotCopied),
            (2, retryable(), Is::NotCopied),
            (3, Outcome::BehindFailure, Is::NotCopied),
        ]);
        assert_eq!(stopped_later, [(0, 0), (1, 4), (2, 4)]);
    }

    #[test]
    fn group_behind_a_conflict_backs_off_with_it() {
        let conflict = || conflict(1_001_000);
        let behind = || Outcome::NotStarted;
        for (count, wait) in [(1, 2), (5, 30)] {
            let waits = waits_of_group([
                (count, conflict(), Is::NotCopied),
                (count, behind(), Is::NotCopied),
            ]);
            assert_eq!(waits, [(0, wait), (1, wait)], "{count}");
        }
    }

    #[test]
    fn group_does_not_wait_for_a_dead_letter() {
        let declined = || Outcome::PermanentFailure("declined".into());
        let completed = Outcome::Completed(StoredResult::Json("1".into()));
        let goes_on = waits_of_group([
            (1, declined(), Is::Copied),
            (1, completed, Is::NotCopied),
            (5, Outcome::NotStarted, Is::NotCopied),
        ]);
        assert_eq!(goes_on, [(2, 30)]);
        let stops = waits_of_group([
            (1, declined(), Is::Copied),
            (5, Outcome::BehindFailure, Is::NotCopied),
        ]);
        assert_eq!(stops, [(1, 0)]);
    }

    #[test]
    fn permanent_failure_without_dlq_backs_off() {
        for (count, fifo, waits) in [
            (1, false, (2, 4)),
            (40, false, (30, 60)),
            (1, true, (2, 4)),
            (40, true, (30, 30)),
        ] {
            assert_eq!(permanent_range(count, fifo, false), [waits; 4], "{count}");
        }
    }

    #[test]
    fn retryable_failure_waits_doubling_backoff() {
        let error = || {
            Arc::new(StoreError::OutOfTime {
                action: "claim",
                key: "k".into(),
            })
        };
        for outcome in [
            retryable(),
            Outcome::Panicked,
            Outcome::OutOfTime,
            Outcome::LeaseLost,
            Outcome::CompletionUnrecorded(error()),
            Outcome::StoreUnavailable(error()),
            Outcome::CommitUnknown(error()),
            Outcome::NoEffect("refused".into()),
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
                    range(&outcome, receive_count),
                    Some((least, most)),
                    "{outcome:?} {receive_count}"
                );
            }
        }
    }

    #[test]
    fn conflict_waits_until_lease_ends_then_backs_off() {
        for (lease_until, least, most) in
            [(1_000_001, 2, 4), (1_030_000, 31, 33), (1_030_001, 32, 34)]
        {
            assert_eq!(range(&conflict(lease_until), 1), Some((least, most)));
        }
        for (lease_until, count, least, most) in [
            (1_000_001, 2, 4, 8),
            (1_030_000, 2, 31, 33),
            (1_000_001, 5, 30, 60),
            (1_050_000, 5, 51, 60),
            (1_100_000, 40, 101, 103),
        ] {
            let range = range(&conflict(lease_until), count);
            assert_eq!(range, Some((least, most)), "{lease_until} {count}");
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
    fn wait_never_exceeds_sqs_limit() {
        assert_eq!(
            range(&conflict(u64::MAX), 1),
            Some((LONGEST, LONGEST)),
            "a lease that another program wrote"
        );
        let backoff = Backoff {
            base: Duration::MAX,
            cap: Duration::MAX,
        };
        let receive = Receive::of_standard_queue(u32::MAX);
        let wait = rule(backoff, most).seconds(&retryable(), receive);
        assert_eq!(wait, Some(LONGEST));
    }

    #[test]
    fn longest_wait_counts_from_the_invocation() {
        let at = |minutes: u64| NOW + Duration::from_secs(60 * minutes);
        for (now, longest) in [
            (at(0), LONGEST),
            (at(1), LONGEST - 60),
            (at(1) + Duration::from_millis(1), LONGEST - 61),
            (at(90), LONGEST - 5400),
            (at(13 * 60), 0),
            // The clock was set back.
            (Timestamp::default(), LONGEST),
        ] {
            let rule = Rule {
                now,
                ..rule(BACKOFF, most)
            };
            let wait = rule.seconds(&conflict(u64::MAX), STANDARD);
            assert_eq!(wait, Some(longest), "{now}");
        }
    }

    #[test]
    fn backoff_below_a_second_waits_one_second() {
        let backoff = Backoff {
            base: Duration::from_millis(1),
            ..BACKOFF
        };
        for jitter in [least as fn(u64) -> u64, most] {
            let wait = rule(backoff, jitter).seconds(&retryable(), STANDARD);
            assert_eq!(wait, Some(1), "SQS counts in seconds");
        }
    }

    #[test]
    fn message_behind_failure_waits_as_long() {
        for (ahead, seconds) in [(Some(7), 7), (None, 0)] {
            let receive = Receive { ahead, ..STANDARD };
            let wait = |outcome| rule(BACKOFF, least).seconds(&outcome, receive);
            assert_eq!(wait(Outcome::BehindFailure), Some(seconds));
            assert_eq!(wait(Outcome::NotStarted), Some(seconds));
        }
    }
}

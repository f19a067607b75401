//! The record: a table that compares and swaps, or one with a flaw.

use std::{
    collections::BTreeSet,
    hash::{Hash, Hasher},
};

use sqs_once::{
    internal::Refused,
    protocol::{AttemptEnd, Claim, Expect, Fingerprint, Owner, Record, State, Swap, Timestamp},
    store::Swapped,
};

use crate::schedules::{
    clock::from_now,
    flaw::Flaw,
    world::{Message, fingerprint},
};

/// Returns at once: `network.rs` adds the delays.
#[derive(Debug, Default)]
pub struct Records {
    pub record: Option<Record>,
    pub flaw: Option<Flaw>,
}

impl Records {
    pub fn get(&self) -> Option<Record> {
        let mut record = self.record.clone()?;
        match (self.flaw, &record.state) {
            (Some(Flaw::LeaseNotSeen), State::InProgress { .. }) => {
                record.state = State::InProgress {
                    lease_until: Timestamp::from_millis(1),
                };
            }
            (Some(Flaw::CompletionNotSeen), State::Completed { .. }) => {
                record.state = State::Failed
            }
            (Some(Flaw::FailureNotSeen), _) => record.failures.clear(),
            (Some(Flaw::FailureAnswersAll), _) => {
                record
                    .failures
                    .iter_mut()
                    .for_each(|failure| failure.fingerprint = None);
            }
            (Some(Flaw::PayloadNotSeen), _) => record.fingerprint = None,
            (Some(Flaw::OpenAttemptNotSeen), _) => record.first_claimed_at = None,
            _ => {}
        }
        Some(record)
    }

    pub fn swap(&mut self, swap: &Swap) -> Swapped<Refused> {
        let mut swap = swap.clone();
        let to = &mut swap.to;
        match self.flaw {
            Some(Flaw::ClaimForgetsOpenAttempts) if to.is_claim() => {
                to.first_claimed_at = Some(to.updated_at);
            }
            Some(Flaw::ClaimForgetsFailures) if to.is_claim() => to.failures.clear(),
            Some(Flaw::ReleaseClosesAttempt)
                if matches!(to.last_end, Some(AttemptEnd::Retryable | AttemptEnd::Panic)) =>
            {
                to.first_claimed_at = None;
            }
            Some(Flaw::FailureClosesAttempts) if to.state == State::Failed => {
                to.first_claimed_at = None;
            }
            Some(Flaw::FailureAtZero) if to.state == State::Failed => {
                to.failures[0].at = Timestamp::default();
            }
            Some(Flaw::UndoClosesAttempts) if to.last_end == Some(AttemptEnd::NoEffect) => {
                to.first_claimed_at = None;
            }
            Some(Flaw::DeclineKeepsGeneration) => to.generation = 0,
            Some(Flaw::ClaimForgetsGeneration) if to.is_claim() => to.generation = 0,
            Some(Flaw::FailureTakesGeneration) if to.state == State::Failed => to.generation += 1,
            Some(Flaw::FailureReplacesOthers) => to.failures.truncate(1),
            // Every content of a claim has the version of its first.
            Some(Flaw::VersionReused) => to.stamp.version = 1,
            _ => {}
        }
        if let Expect::Unchanged(expected) = &mut swap.expect
            && let Some(record) = &self.record
        {
            match self.flaw {
                Some(Flaw::OwnerNotCompared) => {
                    expected.stamp.owner = record.stamp.owner.clone();
                }
                Some(Flaw::VersionNotCompared) => expected.stamp.version = record.stamp.version,
                _ => {}
            }
        }
        if self.flaw == Some(Flaw::InsertOverRecord) && swap.expect == Expect::Absent {
            self.record = None;
        }
        if swap.admits(self.record.as_ref()) {
            self.record = Some(swap.to);
            return Swapped::Applied;
        }
        Swapped::Found(self.get())
    }

    /// An operator's `record release`.
    pub fn release(&mut self, now: Timestamp) {
        if let Some(record) = &mut self.record {
            *record = record.released(now);
            if self.flaw == Some(Flaw::ReleaseTakesVersion) {
                record.stamp.version += 1;
            }
        }
    }
}

/// The messages that this record answers with a failure of their payload.
pub fn failed_messages(record: &Record, messages: &[Message]) -> BTreeSet<String> {
    if record.failures.is_empty() {
        return BTreeSet::new();
    }
    let failed = |message: &Message| {
        let print = Some(fingerprint(message.payload));
        let mut own =
            (record.failures.iter()).filter(|failure| failure.fingerprint.as_ref() == print);
        own.any(|failure| message.sent.is_some_and(|sent| sent <= failure.at))
    };
    (messages.iter().enumerate())
        .filter(|(_, message)| failed(message))
        .map(|(message, _)| format!("m-{message}"))
        .collect()
}

/// Hashes which payload a fingerprint is of.
fn hash_payload(print: Option<&Fingerprint>, hasher: &mut impl Hasher) {
    print.map(|print| print == fingerprint(0)).hash(hasher);
}

/// Hashes all of a record but its owner.
pub fn hash(record: &Record, hasher: &mut impl Hasher) {
    match &record.state {
        State::InProgress { lease_until } => (1, from_now(*lease_until)).hash(hasher),
        State::Completed { result } => format!("{result:?}").hash(hasher),
        State::Failed => 3.hash(hasher),
    }
    (record.stamp.version, &record.message_id, record.open_other).hash(hasher);
    for failure in &record.failures {
        (failure.error.len(), &failure.message_id).hash(hasher);
        hash_payload(failure.fingerprint.as_ref(), hasher);
        from_now(failure.at).hash(hasher);
    }
    (record.attempts == 1, record.last_end, record.generation).hash(hasher);
    record.exclusive_attempts.hash(hasher);
    hash_payload(record.fingerprint.as_ref(), hasher);
    record.first_claimed_at.map(from_now).hash(hasher);
}

/// Hashes all that distinguishes a swap from others of its worker.
pub fn hash_swap(
    swap: &Swap,
    worker_of: impl Fn(&Owner) -> Option<usize>,
    hasher: &mut impl Hasher,
) {
    let expected = match &swap.expect {
        Expect::Absent => None,
        Expect::Unchanged(record) => Some((worker_of(&record.stamp.owner), record.stamp.version)),
    };
    expected.hash(hasher);
    hash(&swap.to, hasher);
    from_now(swap.to.updated_at).hash(hasher);
}

/// The record of a worker that claimed, had its effect and crashed.
pub fn left_by_a_crash(now: Timestamp, lease_until: Timestamp) -> Record {
    let expires_at = lease_until.as_secs_ceil() + 3600;
    let mut claim = Claim::new(Owner::fresh(), "m-0", now, lease_until, expires_at);
    claim.fingerprint = Some(fingerprint(0).clone());
    Record::claimed(&claim, 1, None, None)
}

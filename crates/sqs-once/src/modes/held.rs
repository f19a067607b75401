//! [`HeldClaim`]: a claim that this worker holds, and the one swap that ends it.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use tokio::sync::OwnedSemaphorePermit;

use super::{
    Once, Operation, Outcome,
    repeat::{Answered, Effort, GivenUp, repeat},
    work::NoOutput,
};
use crate::{
    flawed::flawed,
    handler::{FailureKind, History},
    protocol::{
        AttemptEnd, Effect, End, Expect, Key, Record, State, StoredResult, Swap, Timestamp,
    },
    store::{Store, StoreError, Swapped},
    system,
};

/// A claim that this worker holds. Only a claim that was applied creates one.
#[derive(Debug)]
pub struct HeldClaim {
    /// The record that the claim wrote.
    pub(crate) record: Record,
    /// The record before it, unless that was past its retention.
    pub(crate) replaced: Option<Record>,
    /// The highest version that the claim has sent.
    version: AtomicU64,
}

impl HeldClaim {
    pub(crate) const fn new(record: Record, replaced: Option<Record>, version: u64) -> Self {
        Self {
            record,
            replaced,
            version: AtomicU64::new(version),
        }
    }

    /// Returns the swap that ends the claim. Each call draws the version of a further content.
    pub(crate) fn ending(&self, key: &Key, end: &End, now: Timestamp) -> Swap {
        let version = self.version.fetch_add(1, Relaxed) + 1;
        let now = now.max(self.record.updated_at);
        Swap {
            key: key.clone(),
            expect: Expect::Unchanged(self.record.clone()),
            to: (self.record).ended(self.replaced.as_ref(), end, version, now),
        }
    }

    /// Returns whether the claim counted an attempt alone.
    pub(super) fn is_counted(&self) -> bool {
        self.record.exclusive_attempts > self.exclusive_attempts()
    }

    /// Returns how many attempts alone before this one have no recorded end.
    pub(super) fn exclusive_attempts(&self) -> u64 {
        let replaced = self.replaced.as_ref();
        replaced.map_or(0, |record| record.exclusive_attempts)
    }

    /// Returns since when an attempt is open, if that is longer than `lifetime`.
    pub(super) fn open_too_long(&self, lifetime: Option<Duration>) -> Option<Timestamp> {
        open_too_long(self.replaced.as_ref()?, lifetime, self.record.updated_at)
    }

    /// Returns what the handler is told of earlier attempts.
    pub(super) fn history(&self) -> History {
        History::of(self.replaced.as_ref(), &self.record)
    }
}

/// Returns since when an attempt of `record` is open, if a claim at `now` finds it open for longer than `lifetime`: the
/// called system may have forgotten the call key.
pub fn open_too_long(
    record: &Record,
    lifetime: Option<Duration>,
    now: Timestamp,
) -> Option<Timestamp> {
    let open_since = record.first_claimed_at?;
    let mut is_too_old = open_since.until(now) > lifetime?;
    if flawed("an attempt is too old after an hour") {
        is_too_old = open_since.until(now) > Duration::from_secs(3600);
    }
    (is_too_old && !flawed("no attempt is too old")).then_some(open_since)
}

/// What became of the swap that ends a claim.
enum Settled {
    Applied,
    LeaseLost,
    Unknown(StoreError),
}

impl<S: Store> Once<S> {
    /// Stores the output where the settings say, and returns the result for the record, with the memory that a large
    /// one takes until it is written.
    pub(super) async fn store(
        &self,
        operation: &Operation,
        held: &HeldClaim,
        output: StoredResult,
    ) -> (Option<OwnedSemaphorePermit>, StoredResult) {
        let (key, owner) = (&operation.key, &held.record.stamp.owner);
        // Half of the time for writes is left for the completion itself.
        let write_until = operation.deadline.write_until();
        let left = write_until.saturating_duration_since(system::instant());
        let latest = write_until - left / 2;
        let memory = self.output_memory.wait(&output, latest).await;
        let stored = (self.records).store(key, owner, output, operation.deadline);
        (memory, stored.await)
    }

    /// Stores the output and records the completion.
    pub(super) async fn complete(
        &self,
        operation: &Operation,
        held: &HeldClaim,
        output: StoredResult,
    ) -> Outcome {
        if held.replaced.is_none() && flawed("a success is forgotten") {
            let end = End::Open(AttemptEnd::Retryable);
            let outcome = Outcome::RetryableFailure("forgotten".into());
            return self.end(operation, held, &end, outcome).await;
        }
        let (_memory, mut result) = self.store(operation, held, output).await;
        if flawed("an output is lost") {
            result = StoredResult::Json("\"\"".to_owned());
        }
        let end = self.records.completion(&result);
        match self
            .settle(operation, held, &after_effect(operation), &end)
            .await
        {
            Settled::Applied => Outcome::Completed(result),
            Settled::LeaseLost => Outcome::LeaseLost,
            // The effect has happened. We leave the claim, so that no retry repeats the effect at once.
            Settled::Unknown(error) => Outcome::completion_unrecorded(error),
        }
    }

    /// Ends the claim after a handler that did not succeed.
    pub(super) async fn end_without_output(
        &self,
        operation: &Operation,
        held: &HeldClaim,
        end: NoOutput,
    ) -> Outcome {
        let last_end = match &end {
            NoOutput::Failed(failure) => match failure.kind() {
                FailureKind::PermanentNoEffect if flawed("an unreadable message is completed") => {
                    let none = StoredResult::not_wanted();
                    return self.complete(operation, held, none).await;
                }
                kind @ (FailureKind::Permanent
                | FailureKind::PermanentNoEffect
                | FailureKind::Declined) => {
                    let facts = operation.delivery.facts();
                    if flawed("a redriven decline is not recorded")
                        && kind == FailureKind::Declined
                        && facts.attribute("SqsOnceRedriveOf").is_some()
                    {
                        return Outcome::PermanentFailure(failure.to_string());
                    }
                    let effect = match kind {
                        FailureKind::Declined => Effect::Declined,
                        FailureKind::PermanentNoEffect => Effect::None,
                        _ => Effect::Possible,
                    };
                    return self
                        .fail(operation, held, failure.to_string(), effect)
                        .await;
                }
                FailureKind::NoEffect => {
                    return self.undo(operation, held, true, end.into()).await;
                }
                FailureKind::Retryable if flawed("a retryable failure had no effect") => {
                    return self.undo(operation, held, true, end.into()).await;
                }
                FailureKind::Retryable => AttemptEnd::Retryable,
            },
            NoOutput::Panicked if flawed("a panic is a permanent failure") => {
                let error = "panicked".to_owned();
                return self.fail(operation, held, error, Effect::Possible).await;
            }
            NoOutput::Panicked => AttemptEnd::Panic,
            NoOutput::OutOfTime => AttemptEnd::Deadline,
        };
        self.end(operation, held, &End::Open(last_end), end.into())
            .await
    }

    /// Records a permanent failure.
    async fn fail(
        &self,
        operation: &Operation,
        held: &HeldClaim,
        error: String,
        effect: Effect,
    ) -> Outcome {
        let end = self.records.failure(operation, error.clone(), effect);
        match self
            .settle(operation, held, &after_effect(operation), &end)
            .await
        {
            Settled::Applied => Outcome::PermanentFailure(error),
            Settled::LeaseLost => Outcome::LeaseLost,
            Settled::Unknown(cause) => Outcome::FailureUnrecorded {
                error,
                cause: Arc::new(cause),
            },
        }
    }

    /// Records that the earliest open attempt is too old: the called system may have forgotten the call key, and would take a
    /// repetition for a new operation.
    pub(super) async fn too_old(
        &self,
        operation: &Operation,
        held: &HeldClaim,
        open_since: Timestamp,
    ) -> Outcome {
        let error = format!(
            "too old to repeat: look by hand. An attempt since {open_since} may have had its effect, and the called system may have forgotten its call key {} (CONSUMER_CALL_KEY_LIFETIME). If you find no effect, `sqs-once record decline {}` lets a redrive run",
            operation.key.call_key(held.record.generation),
            operation.key
        );
        self.fail(operation, held, error, Effect::None).await
    }

    /// Records that the process died every time this message ran alone.
    pub(super) async fn crashed(
        &self,
        operation: &Operation,
        held: &HeldClaim,
        has_look_up: bool,
    ) -> Outcome {
        let times = held.exclusive_attempts();
        let effect = if has_look_up {
            "the lookup found no effect"
        } else {
            "its effect may have happened"
        };
        let error = format!(
            "the process ended {times} times while the handler of this message ran alone; {effect}"
        );
        if flawed("a message that is given up is not recorded") {
            return Outcome::Crashed(error);
        }
        match self.fail(operation, held, error, Effect::Possible).await {
            Outcome::PermanentFailure(error) => Outcome::Crashed(error),
            other => other,
        }
    }

    /// Undoes the claim after an attempt that had no effect.
    pub(super) async fn undo(
        &self,
        operation: &Operation,
        held: &HeldClaim,
        began: bool,
        outcome: Outcome,
    ) -> Outcome {
        self.end(operation, held, &End::Undone { began }, outcome)
            .await
    }

    /// Ends a claim whose message returns to the queue. If that fails, logs a warning and still returns `outcome`.
    async fn end(
        &self,
        operation: &Operation,
        held: &HeldClaim,
        end: &End,
        outcome: Outcome,
    ) -> Outcome {
        // Without a recorded end, an attempt alone looks like a death of the process, and the message would rest for a
        // long time.
        let effort = if held.is_counted() {
            after_effect(operation)
        } else {
            Effort::brief(operation.deadline.write_until(), &operation.meter)
        };
        match self.settle(operation, held, &effort, end).await {
            Settled::Applied => outcome,
            Settled::LeaseLost => Outcome::LeaseLost,
            Settled::Unknown(error) => {
                tracing::warn!(
                    key = %operation.key,
                    %error,
                    "settlement failed: the claim stays until its lease expires"
                );
                outcome
            }
        }
    }

    /// Repeats the swap that ends the claim until the store responds or `effort` ends.
    async fn settle(
        &self,
        operation: &Operation,
        held: &HeldClaim,
        effort: &Effort,
        end: &End,
    ) -> Settled {
        let swap = held.ending(&operation.key, end, self.records.now());
        let send = || self.records.store.swap(&swap, effort.context());
        match repeat(effort, end.name(), &operation.key, send).await {
            Ok(Answered { answer, .. }) => match answer {
                Swapped::Applied => Settled::Applied,
                // An earlier copy was applied, and its answer was lost.
                Swapped::Found(Some(found)) if found.stamp == swap.to.stamp => Settled::Applied,
                Swapped::Found(_) => Settled::LeaseLost,
            },
            Err(GivenUp {
                may_have_been_applied: true,
                ..
            }) if flawed("a write without an answer was applied") => Settled::Applied,
            Err(given_up) => Settled::Unknown(given_up.error),
        }
    }
}

/// Returns the outcome that a record shows which this worker wrote, by another of its writes.
pub(super) fn recorded(record: Record) -> Outcome {
    match record.state {
        State::Completed { result } => Outcome::Completed(result),
        State::Failed => {
            Outcome::PermanentFailure(record.last_error().unwrap_or_default().to_owned())
        }
        State::InProgress { .. } => Outcome::LeaseLost,
    }
}

/// Returns the effort for recording an effect, or a failure that may have followed one.
pub(super) fn after_effect(operation: &Operation) -> Effort {
    Effort::after_effect(operation.deadline.write_until(), &operation.meter)
}

//! [`HeldClaim`]: a claim that this worker holds, and its settlements.

use std::{sync::Arc, time::Duration};

use tokio::sync::OwnedSemaphorePermit;

use super::{
    Once, Operation, Outcome,
    repeat::{Answered, Effort, GivenUp, repeat},
    work::NoOutput,
};
use crate::{
    flawed::flawed,
    handler::FailureKind,
    protocol::{
        AttemptEnd, FailedSettlement, FencingToken, PriorState, Settlement, StoredResult,
        Timestamp,
        decision::{failed_settlement, settled_at},
        isolation::lease_alone,
    },
    store::{SettleResponse, Store, StoreError},
    system,
};

/// A claim that this worker holds.
///
/// Only a successful claim creates a `HeldClaim`.
#[derive(Debug)]
pub struct HeldClaim {
    /// Fencing token of the claim.
    pub(crate) fence: FencingToken,
    /// Time of the claim, by this worker's clock.
    pub(crate) claimed_at: Timestamp,
    /// End of the lease that the claim asked for.
    pub(crate) claim_lease: Timestamp,
    /// End of the lease in the record.
    pub(crate) lease_until: Timestamp,
    /// How long after the end of a lease another attempt may take over.
    pub(crate) takeover_after: Duration,
    /// True if a copy of the claim got no response and may still be applied.
    pub(crate) is_copy_on_its_way: bool,
    pub(crate) claimed: PriorState,
    /// True once the record may have counted an attempt alone.
    pub(crate) ran_alone: bool,
}

/// The result of a settlement.
pub(crate) enum Settled {
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
        claim: &HeldClaim,
        output: StoredResult,
    ) -> (Option<OwnedSemaphorePermit>, StoredResult) {
        let FencingToken { key, owner, .. } = &claim.fence;
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
        claim: &HeldClaim,
        output: StoredResult,
    ) -> Outcome {
        let (_memory, result) = self.store(operation, claim, output).await;
        let settlement = self.records.completion(&result);
        let effort = after_effect(operation);
        match self.settle(claim, &effort, &claim.fence, &settlement).await {
            Settled::Applied => Outcome::Completed(result),
            Settled::LeaseLost => Outcome::LeaseLost,
            // The effect has happened. We leave the claim, so that no retry repeats the effect at once.
            Settled::Unknown(error) => Outcome::completion_unrecorded(error),
        }
    }

    /// Settles the claim after a handler that did not succeed.
    pub(super) async fn end_without_output(
        &self,
        operation: &Operation,
        claim: &HeldClaim,
        end: NoOutput,
    ) -> Outcome {
        let last_end = match &end {
            NoOutput::Failed(failure) => match failure.kind() {
                FailureKind::Permanent => {
                    return self
                        .fail(operation, claim, failure.to_string(), false)
                        .await;
                }
                FailureKind::PermanentNoEffect => {
                    return self.fail(operation, claim, failure.to_string(), true).await;
                }
                FailureKind::NoEffect => {
                    return self.undo(operation, claim, true, end.into()).await;
                }
                FailureKind::Retryable if flawed!("a retryable failure had no effect") => {
                    return self.undo(operation, claim, true, end.into()).await;
                }
                FailureKind::Retryable => AttemptEnd::Retryable,
            },
            NoOutput::Panicked if flawed!("a panic is a permanent failure") => {
                return self.fail(operation, claim, "panicked".into(), false).await;
            }
            NoOutput::Panicked => AttemptEnd::Panic,
            NoOutput::OutOfTime => AttemptEnd::Deadline,
        };
        // The attempt may have had its effect.
        let release = Settlement::Release {
            last_end: Some(last_end),
        };
        self.end(operation, claim, &release, end.into()).await
    }

    /// Records a permanent failure. If the attempt may have had its effect, it stays open, and a later message
    /// under the key is told of it.
    async fn fail(
        &self,
        operation: &Operation,
        claim: &HeldClaim,
        error: String,
        had_no_effect: bool,
    ) -> Outcome {
        let first_open = had_no_effect && claim.claimed.is_first_open();
        let expires_at = self.records.expires_at();
        let message_id = operation.delivery.message_id();
        let settlement = Settlement::fail(error.clone(), message_id, first_open, expires_at);
        let effort = after_effect(operation);
        match self.settle(claim, &effort, &claim.fence, &settlement).await {
            Settled::Applied => Outcome::PermanentFailure(error),
            Settled::LeaseLost => Outcome::LeaseLost,
            Settled::Unknown(cause) => Outcome::FailureUnrecorded {
                error,
                cause: Arc::new(cause),
            },
        }
    }

    /// Counts an attempt alone. The handler must not start unless we know that the record has the count.
    ///
    /// # Errors
    ///
    /// The outcome, if the handler must not start. The claim has then been undone, and the record has its
    /// earlier count again.
    pub(super) async fn count_alone(
        &self,
        operation: &Operation,
        mut claim: HeldClaim,
    ) -> Result<HeldClaim, Outcome> {
        let not_counted = if operation.deadline.may_begin(self.records.now()) {
            match self.send_count(operation, &mut claim).await {
                Settled::Applied if operation.deadline.may_begin(self.records.now()) => {
                    return Ok(claim);
                }
                // The turn came too late for this write.
                Settled::Applied | Settled::Unknown(StoreError::OutOfTime { .. }) => {
                    Outcome::NotStarted
                }
                Settled::LeaseLost => return Err(Outcome::LeaseLost),
                Settled::Unknown(error) => Outcome::store_unavailable(error),
            }
        } else {
            Outcome::NotStarted
        };
        Err(self.undo(operation, &claim, false, not_counted).await)
    }

    /// Writes the count of an attempt alone, and the lease until which the message rests if the process dies.
    async fn send_count(&self, operation: &Operation, claim: &mut HeldClaim) -> Settled {
        let exclusive_attempts = claim.claimed.exclusive_attempts;
        let attempt = exclusive_attempts + u64::from(!flawed!("attempts alone are not counted"));
        let waits = &self.crash_waits;
        let until = lease_alone(attempt, waits, self.records.now(), claim.lease_until);
        let fence = claim.fence.clone().with_lease(claim.lease_until);
        let kept_until = until + claim.takeover_after;
        let settlement = (self.records).attempt_alone(until, kept_until, attempt);
        claim.ran_alone = true;
        let effort = Effort::attempt_alone(operation.deadline.start_by(), &operation.meter);
        let settled = self.settle(claim, &effort, &fence, &settlement).await;
        if matches!(settled, Settled::Applied) {
            claim.lease_until = until;
        }
        settled
    }

    /// Records that the process died every time this message ran alone.
    pub(super) async fn crashed(
        &self,
        operation: &Operation,
        claim: &HeldClaim,
        has_look_up: bool,
    ) -> Outcome {
        let times = claim.claimed.exclusive_attempts;
        let effect = if has_look_up {
            "the look-up found no effect"
        } else {
            "its effect may have happened"
        };
        let error = format!(
            "the process ended {times} times while the handler of this message ran alone; {effect}"
        );
        match self.fail(operation, claim, error, false).await {
            Outcome::PermanentFailure(error) => Outcome::Crashed(error),
            other => other,
        }
    }

    /// Undoes the claim after an attempt that had no effect. The end of a handler that `began` is recorded.
    pub(super) async fn undo(
        &self,
        operation: &Operation,
        claim: &HeldClaim,
        began: bool,
        outcome: Outcome,
    ) -> Outcome {
        let undo = Settlement::undo(claim.claimed.clone(), claim.is_copy_on_its_way, began);
        self.end(operation, claim, &undo, outcome).await
    }

    /// Settles a claim whose message returns to the queue. If the settlement fails, logs a warning and still
    /// returns `outcome`.
    async fn end(
        &self,
        operation: &Operation,
        claim: &HeldClaim,
        settlement: &Settlement,
        outcome: Outcome,
    ) -> Outcome {
        // Without a recorded end, an attempt alone looks like a death of the process, and the message would
        // rest for a long time.
        let effort = if claim.ran_alone {
            after_effect(operation)
        } else {
            Effort::brief(operation.deadline.write_until(), &operation.meter)
        };
        match self.settle(claim, &effort, &claim.fence, settlement).await {
            Settled::Applied => outcome,
            Settled::LeaseLost => Outcome::LeaseLost,
            Settled::Unknown(error) => {
                tracing::warn!(
                    key = %claim.fence.key,
                    %error,
                    "settlement failed: the claim stays until its lease expires"
                );
                outcome
            }
        }
    }

    /// Repeats a settlement until the store responds or `effort` ends. The fencing token makes repetitions
    /// harmless.
    async fn settle(
        &self,
        claim: &HeldClaim,
        effort: &Effort,
        fence: &FencingToken,
        settlement: &Settlement,
    ) -> Settled {
        let leases = [claim.claim_lease, claim.lease_until];
        let now = settled_at(self.records.now(), claim.claimed_at, &leases);
        let store = &self.records.store;
        let send = || store.settle(fence, settlement, now, effort.context());
        match repeat(effort, settlement.name(), &fence.key, send).await {
            Ok(Answered { answer, .. }) => match answer {
                SettleResponse::Applied => Settled::Applied,
                SettleResponse::ConditionFailed(record) => {
                    match failed_settlement(record.as_ref(), fence, settlement) {
                        FailedSettlement::AlreadySettled => Settled::Applied,
                        FailedSettlement::LeaseLost => Settled::LeaseLost,
                    }
                }
            },
            Err(GivenUp {
                may_have_been_applied: true,
                ..
            }) if flawed!("a write without an answer was applied") => Settled::Applied,
            Err(given_up) => Settled::Unknown(given_up.error),
        }
    }
}

/// Returns the effort for recording an effect, or a failure that may have followed one.
pub(super) fn after_effect(operation: &Operation) -> Effort {
    Effort::after_effect(operation.deadline.write_until(), &operation.meter)
}

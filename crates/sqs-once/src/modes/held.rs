//! [`HeldClaim`]: a claim that this worker holds, and its settlements.

use std::{
    future::poll_fn,
    pin::Pin,
    sync::{Arc, atomic::Ordering::Relaxed},
    task::Poll,
    time::Duration,
};

use super::{
    Outcome, RetryableError,
    records::Records,
    repeat::{Answered, Effort, GivenUp, repeat},
    turns::{Gate, Turn, Turns},
    work::NoOutput,
};
use crate::{
    deadline::Deadline,
    flawed::flawed,
    handler::{FailureKind, LookUpStage},
    meter::Meter,
    protocol::{
        AttemptEnd, FailedSettlement, FencingToken, PriorState, Settlement, StoredResult,
        Timestamp,
        decision::{failed_settlement, settled_at},
        isolation::{CrashWaits, lease_alone},
    },
    store::{SettleResponse, Store, StoreError},
};

/// A claim that this worker holds.
///
/// Only a successful claim creates a `HeldClaim`. Each settlement consumes the value, so that the worker
/// cannot settle a claim twice.
pub struct HeldClaim<'a, S> {
    /// Store, place of outputs, retention and clock.
    pub records: &'a Records<S>,
    /// Fencing token of the claim.
    pub fence: FencingToken,
    /// Time of the claim, by this worker's clock.
    pub claimed_at: Timestamp,
    /// End of the lease that the claim asked for.
    pub(crate) claim_lease: Timestamp,
    /// End of the lease in the record.
    pub(crate) lease_until: Timestamp,
    /// How long after the end of a lease another attempt may take over.
    pub(crate) takeover_after: Duration,
    /// True if a copy of the claim got no response and may still be applied.
    pub(crate) is_copy_on_its_way: bool,
    pub(crate) message_id: String,
    pub(crate) claimed: PriorState,
    pub(crate) deadline: Deadline,
    pub(crate) meter: Meter,
    /// True once the handler is about to run, so that its end gets recorded.
    pub(crate) began: bool,
    /// How far the look-up of an earlier attempt's effect has come, if there is one.
    pub(crate) look_up: Option<Arc<LookUpStage>>,
    /// True once the record may have counted an attempt alone.
    pub(crate) ran_alone: bool,
    /// The turn of this claim's handler, held as long as the claim.
    pub(crate) turn: Option<Turn>,
}

/// The result of a settlement.
pub(crate) enum Settled {
    Applied,
    LeaseLost,
    Unknown(StoreError),
}

impl<S: Store> HeldClaim<'_, S> {
    /// Stores the output where the settings say, and returns the result for the record.
    pub async fn store(&self, output: StoredResult) -> StoredResult {
        let FencingToken { key, owner, .. } = &self.fence;
        (self.records)
            .store(key, owner, output, self.deadline)
            .await
    }

    /// Stores the output and records the completion.
    pub async fn complete(&self, output: StoredResult) -> Outcome {
        let result = self.store(output).await;
        let settlement = self.records.completion(&result);
        match self.settle(&self.after_effect(), &settlement).await {
            Settled::Applied => Outcome::Completed(result),
            Settled::LeaseLost => Outcome::LeaseLost,
            // The effect has happened. We leave the claim, so that no retry repeats the effect at once.
            Settled::Unknown(error) => Outcome::completion_unrecorded(error),
        }
    }

    /// Records the completion with the output that the look-up found.
    pub(crate) async fn reconcile(self, found: StoredResult) -> Outcome {
        match self.complete(found).await {
            Outcome::Completed(result) => Outcome::Reconciled(result),
            other => other,
        }
    }

    /// Settles the claim after a handler that did not succeed.
    pub async fn end_without_output(self, end: NoOutput) -> Outcome {
        if self
            .look_up
            .as_ref()
            .is_some_and(|look_up| look_up.is_running.load(Relaxed))
        {
            return self.not_looked_up(end).await;
        }
        let last_end = match &end {
            NoOutput::Failed(failure) => match failure.kind() {
                FailureKind::Permanent => return self.fail(failure.to_string(), false).await,
                FailureKind::PermanentNoEffect => {
                    return self.fail(failure.to_string(), true).await;
                }
                FailureKind::NoEffect => return self.restore(end.into()).await,
                FailureKind::Retryable if flawed!("a retryable failure had no effect") => {
                    return self.restore(end.into()).await;
                }
                FailureKind::Retryable => AttemptEnd::Retryable,
            },
            NoOutput::Panicked if flawed!("a panic is a permanent failure") => {
                return self.fail("panicked".into(), false).await;
            }
            NoOutput::Panicked => AttemptEnd::Panic,
            NoOutput::OutOfTime => AttemptEnd::Deadline,
        };
        // The attempt may have had its effect.
        let last_end = Some(last_end);
        self.end(&Settlement::Release { last_end }, end.into())
            .await
    }

    /// Undoes the claim after a look-up that did not say whether there was an effect. The handler did not
    /// run.
    async fn not_looked_up(mut self, end: NoOutput) -> Outcome {
        let (why, retry_after) = match end {
            NoOutput::Failed(failure) => (format!("failed: {failure}"), failure.requested_wait()),
            NoOutput::Panicked => ("panicked".into(), None),
            NoOutput::OutOfTime => ("was cut off at the deadline".into(), None),
        };
        self.began = false;
        let text = format!("the look-up of the earlier attempt {why}");
        let error = RetryableError { text, retry_after };
        self.restore(Outcome::NoEffect(error)).await
    }

    /// Records a permanent failure. If the attempt may have had its effect, it stays open, and a later message
    /// under the key is told of it.
    async fn fail(self, error: String, had_no_effect: bool) -> Outcome {
        let first_open = had_no_effect && self.claimed.is_first_open();
        let expires_at = self.records.expires_at();
        let settlement = Settlement::fail(error.clone(), &self.message_id, first_open, expires_at);
        match self.settle(&self.after_effect(), &settlement).await {
            Settled::Applied => Outcome::PermanentFailure(error),
            Settled::LeaseLost => Outcome::LeaseLost,
            Settled::Unknown(cause) => Outcome::FailureUnrecorded {
                error,
                cause: Arc::new(cause),
            },
        }
    }

    /// Returns whether the worker's right to run has ended, by the wall clock. The margin is for other workers.
    pub(crate) fn has_ended(&self) -> bool {
        self.records.now() > self.deadline.invocation_end()
    }

    /// Runs `work` until the worker's right to run has ended. Timers stand still while Lambda freezes the
    /// process, so only the wall clock can tell that the handler must not go on.
    pub(crate) async fn while_held<T>(
        &self,
        mut work: Pin<&mut impl Future<Output = Result<T, NoOutput>>>,
    ) -> Result<T, NoOutput> {
        poll_fn(|context| {
            if self.has_ended() {
                return Poll::Ready(Err(NoOutput::OutOfTime));
            }
            work.as_mut().poll(context)
        })
        .await
    }

    /// Waits for a turn to run beside other handlers.
    ///
    /// # Errors
    ///
    /// The outcome, if no turn came in time. The claim has then been undone.
    pub(crate) async fn beside_others(mut self, turns: &Turns) -> Result<Self, Outcome> {
        self.turn = turns.shared(self.deadline.start_by()).await;
        if self.turn.is_none() || self.has_ended() {
            return Err(self.restore(Outcome::NotStarted).await);
        }
        Ok(self)
    }

    /// Waits until the handler may run alone, and counts the attempt.
    ///
    /// # Errors
    ///
    /// The outcome, if the handler must not start. The claim has then been undone, and the record has its
    /// earlier count again.
    pub(crate) async fn alone(
        mut self,
        exclusive_attempts: u64,
        (gate, turns, waits): (Option<&dyn Gate>, &Turns, &CrashWaits),
    ) -> Result<Self, Outcome> {
        let latest = self.deadline.start_by();
        let has_turn = match gate {
            Some(gate) => gate.alone(exclusive_attempts).await,
            None => {
                self.turn = turns.alone(latest).await;
                self.turn.is_some()
            }
        };
        if !has_turn || !self.deadline.may_start() || self.has_ended() {
            return Err(self.restore(Outcome::NotStarted).await);
        }
        let attempt = exclusive_attempts + u64::from(!flawed!("attempts alone are not counted"));
        let until = lease_alone(attempt, waits, self.records.now(), self.lease_until);
        let fence = self.fence.clone().with_lease(self.lease_until);
        let settlement = (self.records).attempt_alone(until, until + self.takeover_after, attempt);
        // The handler must not start unless we know that the record counts the attempt.
        self.ran_alone = true;
        match self
            .settle_by(
                &Effort::attempt_alone(latest, &self.meter),
                &fence,
                &settlement,
            )
            .await
        {
            Settled::Applied => self.lease_until = until,
            Settled::LeaseLost => return Err(Outcome::LeaseLost),
            // The turn came too late for this write.
            Settled::Unknown(StoreError::OutOfTime { .. }) => {
                return Err(self.restore(Outcome::NotStarted).await);
            }
            Settled::Unknown(error) => {
                let outcome = Outcome::store_unavailable(error);
                return Err(self.restore(outcome).await);
            }
        }
        if !self.deadline.may_start() || self.has_ended() {
            return Err(self.restore(Outcome::NotStarted).await);
        }
        Ok(self)
    }

    /// Records that the process died every time this message ran alone.
    pub(crate) async fn crashed(self) -> Outcome {
        let times = self.claimed.exclusive_attempts;
        let effect = if self.look_up.is_some() {
            "the look-up found no effect"
        } else {
            "its effect may have happened"
        };
        let error = format!(
            "the process ended {times} times while the handler of this message ran alone; {effect}"
        );
        match self.fail(error, false).await {
            Outcome::PermanentFailure(error) => Outcome::Crashed(error),
            other => other,
        }
    }

    /// Undoes the claim after an attempt that had no effect.
    pub(crate) async fn restore(self, outcome: Outcome) -> Outcome {
        let undo = Settlement::undo(self.claimed.clone(), self.is_copy_on_its_way, self.began);
        self.end(&undo, outcome).await
    }

    /// Settles a claim whose message returns to the queue. If the settlement fails, logs a warning and still
    /// returns `outcome`.
    async fn end(self, settlement: &Settlement, outcome: Outcome) -> Outcome {
        // Without a recorded end, an attempt alone looks like a death of the process, and the message would
        // rest for a long time.
        let effort = if self.ran_alone {
            self.after_effect()
        } else {
            Effort::brief(self.deadline.write_until(), &self.meter)
        };
        match self.settle(&effort, settlement).await {
            Settled::Applied => outcome,
            Settled::LeaseLost => Outcome::LeaseLost,
            Settled::Unknown(error) => {
                tracing::warn!(
                    key = %self.fence.key,
                    %error,
                    "settlement failed: the claim stays until its lease expires"
                );
                outcome
            }
        }
    }

    /// Returns the effort for recording an effect, or a failure that may have followed one.
    pub fn after_effect(&self) -> Effort {
        Effort::after_effect(self.deadline.write_until(), &self.meter)
    }

    async fn settle(&self, effort: &Effort, settlement: &Settlement) -> Settled {
        self.settle_by(effort, &self.fence, settlement).await
    }

    /// Repeats a settlement until the store responds or `effort` ends. The fencing token makes repetitions
    /// harmless.
    pub(crate) async fn settle_by(
        &self,
        effort: &Effort,
        fence: &FencingToken,
        settlement: &Settlement,
    ) -> Settled {
        let leases = [self.claim_lease, self.lease_until];
        let now = settled_at(self.records.now(), self.claimed_at, &leases);
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

//! The claim mode for handlers that return [`Done`]: one transaction commits the completion and the writes.

use serde::Serialize;

use crate::{
    dynamo::{
        done::{Done, ErasedDone},
        transactional::{RecordWrite, TransactionalStore},
    },
    modes::{
        Mode, Once, Operation, Outcome,
        commit::{Committed, commit},
        held::{HeldClaim, after_effect},
        mode::Claimed,
        not_written::{UnwrittenOutput, write_until_accepted},
        work::{HandlerEnd, guard_now},
    },
    protocol::{FailedSettlement, Timestamp, decision::failed_settlement},
    store::Results,
};

#[diagnostic::do_not_recommend]
impl<S: TransactionalStore, O: Serialize + Send + 'static> Mode<Done<O>> for Once<S> {
    type Claim = HeldClaim;

    async fn claim(&self, operation: &Operation) -> Claimed<HeldClaim> {
        self.claimed(operation).await
    }

    async fn alone(&self, operation: &Operation, claim: HeldClaim) -> Result<HeldClaim, Outcome> {
        self.count_alone(operation, claim).await
    }

    async fn finish(
        &self,
        operation: &Operation,
        claim: HeldClaim,
        end: HandlerEnd<Done<O>>,
    ) -> Outcome {
        let is_found = matches!(end, HandlerEnd::Found(_));
        match self.output(operation, &claim, end).await {
            Ok(done) => self.commit(operation, &claim, done).await.found(is_found),
            Err(outcome) => outcome,
        }
    }

    fn now(&self) -> Timestamp {
        self.records.now()
    }

    fn results(&self) -> Results {
        self.records.results.clone()
    }
}

impl<S: TransactionalStore> Once<S> {
    /// Commits the completion and the handler's writes in one transaction. Without writes, one update
    /// records the completion.
    async fn commit<O: Serialize + Send + 'static>(
        &self,
        operation: &Operation,
        claim: &HeldClaim,
        done: Done<O>,
    ) -> Outcome {
        let plan = guard_now(|| done.try_into());
        let write = |round, plan| self.commit_once(operation, claim, round, plan);
        match write_until_accepted(plan, write).await {
            Ok(outcome) => outcome,
            Err((_, end)) => self.end_without_output(operation, claim, end).await,
        }
    }

    async fn commit_once(
        &self,
        operation: &Operation,
        claim: &HeldClaim,
        round: usize,
        plan: ErasedDone,
    ) -> Result<Outcome, UnwrittenOutput<ErasedDone>> {
        if plan.effects.is_empty() {
            return Ok(self.complete(operation, claim, plan.output).await);
        }
        let (_memory, result) = self.store(operation, claim, plan.output).await;
        let settlement = self.records.completion(&result);
        let record = RecordWrite::Settle {
            fence: claim.fence.clone(),
            settlement: settlement.clone(),
            now: self.records.now().max(claim.claimed_at),
        };
        let owner = &claim.fence.owner;
        let (effects, effort) = (plan.effects, after_effect(operation));
        let declined = match commit(&self.records, owner, round, record, effects, &effort).await {
            Committed::Applied => return Ok(Outcome::Completed(result)),
            Committed::ConditionFailed(record) => {
                return Ok(
                    match failed_settlement(record.as_ref(), &claim.fence, &settlement) {
                        FailedSettlement::AlreadySettled => Outcome::Completed(result),
                        FailedSettlement::LeaseLost => Outcome::LeaseLost,
                    },
                );
            }
            // The handler may have had other effects too. So we leave the claim until its lease expires, as
            // after every completion that was not recorded.
            Committed::Unknown(outcome) => return Ok(outcome),
            Committed::Unwritten(error) => return Ok(Outcome::completion_unrecorded(error)),
            Committed::NotWritten(declined) => declined,
        };
        Err(UnwrittenOutput {
            declined,
            on_condition_failed: plan.on_condition_failed,
        })
    }
}

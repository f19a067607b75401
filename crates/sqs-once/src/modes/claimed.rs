//! The claim mode for handlers that return [`Done`]: one transaction commits the completion and the writes.

use serde::Serialize;

use crate::{
    dynamo::{
        done::{Done, ErasedDone},
        transactional::TransactionalStore,
    },
    modes::{
        Mode, Once, Operation, Outcome,
        commit::{Committed, commit},
        held::{HeldClaim, after_effect, recorded},
        mode::{Claimed, Start},
        not_written::{UnwrittenOutput, write_until_accepted},
        work::{HandlerEnd, guard_now},
    },
    protocol::Timestamp,
    store::Results,
};

#[diagnostic::do_not_recommend]
impl<S: TransactionalStore, O: Serialize + Send + 'static> Mode<Done<O>> for Once<S> {
    type Claim = HeldClaim;

    async fn claim(&self, operation: &Operation, start: Start) -> Claimed<HeldClaim> {
        self.claimed(operation, start).await
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

    async fn without_body(&self, operation: &Operation) -> Option<Outcome> {
        self.records.without_body(operation).await
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
        let end = self.records.completion(&result);
        let swap = claim.ending(&operation.key, &end, self.records.now());
        let owner = swap.to.stamp.owner.clone();
        let (effects, effort) = (plan.effects, after_effect(operation));
        let declined = match commit(&self.records, round, swap, effects, &effort).await {
            Committed::Applied => return Ok(Outcome::Completed(result)),
            // One of this worker's writes was applied, and its answer was lost.
            Committed::Found(Some(found)) if found.stamp.owner == owner => {
                return Ok(recorded(found));
            }
            Committed::Found(_) => return Ok(Outcome::LeaseLost),
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

//! The claim mode for handlers that return [`Done`]: one transaction commits the completion and the writes.

use serde::Serialize;

use crate::{
    dynamo::{
        done::{Done, ErasedDone},
        transactional::{RecordWrite, TransactionalStore},
    },
    handler::{Attempt, Failure},
    modes::{
        Mode, Once, Operation, Outcome,
        commit::{Committed, commit},
        held::HeldClaim,
        not_written::{UnwrittenOutput, write_until_accepted},
    },
    protocol::{FailedSettlement, Timestamp, decision::failed_settlement},
    store::Results,
};

#[diagnostic::do_not_recommend]
impl<S: TransactionalStore, O: Serialize + Send + 'static> Mode<Done<O>> for Once<S> {
    async fn run<W, F>(&self, operation: Operation, work: W) -> Outcome
    where
        W: FnOnce(Attempt) -> F + Send,
        F: Future<Output = Result<Done<O>, Failure>> + Send,
    {
        let work = async |attempt| work(attempt).await?.try_into();
        match self.claim_and_run(operation, work).await {
            Ok((claim, plan)) => commit_plan(claim, plan).await,
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

/// Commits the completion and the handler's writes in one transaction. Without writes, one update
/// records the completion.
async fn commit_plan<S: TransactionalStore>(claim: HeldClaim<'_, S>, plan: ErasedDone) -> Outcome {
    let write = |round, plan| commit_once(&claim, round, plan);
    match write_until_accepted(Ok(plan), write).await {
        Ok(outcome) => outcome,
        Err((_, end)) => claim.end_without_output(end).await,
    }
}

async fn commit_once<S: TransactionalStore>(
    claim: &HeldClaim<'_, S>,
    round: usize,
    plan: ErasedDone,
) -> Result<Outcome, UnwrittenOutput<ErasedDone>> {
    if plan.effects.is_empty() {
        return Ok(claim.complete(plan.output).await);
    }
    let result = claim.store(plan.output).await;
    let settlement = claim.records.completion(&result);
    let record = RecordWrite::Settle {
        fence: claim.fence.clone(),
        settlement: settlement.clone(),
        now: claim.records.now().max(claim.claimed_at),
    };
    let (records, owner) = (claim.records, &claim.fence.owner);
    let (effects, effort) = (plan.effects, claim.after_effect());
    let declined = match commit(records, owner, round, record, effects, &effort).await {
        Committed::Applied => return Ok(Outcome::Completed(result)),
        Committed::ConditionFailed(record) => {
            return Ok(
                match failed_settlement(record.as_ref(), &claim.fence, &settlement) {
                    FailedSettlement::AlreadySettled => Outcome::Completed(result),
                    FailedSettlement::LeaseLost => Outcome::LeaseLost,
                },
            );
        }
        // The handler may have had other effects too. So we leave the claim until its lease expires, as after
        // every completion that was not recorded.
        Committed::Unknown(outcome) => return Ok(outcome),
        Committed::Unwritten(error) => return Ok(Outcome::completion_unrecorded(error)),
        Committed::NotWritten(declined) => declined,
    };
    Err(UnwrittenOutput {
        declined,
        on_condition_failed: plan.on_condition_failed,
    })
}

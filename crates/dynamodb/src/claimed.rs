//! The claim mode for handlers that return [`Done`]: completion and writes are one transaction.

use serde::Serialize;

use super::{
    commit::{Committed, commit},
    declined::{DeclinedAnswer, write_until_accepted},
    done::{Done, Plan},
    transactional::{RecordWrite, TransactionalStore},
};
use sqs_once_core::{
    handler::{Attempt, Failure},
    once::{Mode, Once, Operation, Outcome, held::HeldClaim},
    protocol::{SettlementRefused, Timestamp, decision::settlement_refused},
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
async fn commit_plan<S: TransactionalStore>(claim: HeldClaim<'_, S>, plan: Plan) -> Outcome {
    let write = |round, plan| commit_once(&claim, round, plan);
    match write_until_accepted(Ok(plan), write).await {
        Ok(outcome) => outcome,
        Err((_, end)) => claim.end_without_answer(end).await,
    }
}

async fn commit_once<S: TransactionalStore>(
    claim: &HeldClaim<'_, S>,
    round: usize,
    plan: Plan,
) -> Result<Outcome, DeclinedAnswer<Plan>> {
    if plan.effects.is_empty() {
        return Ok(claim.complete(plan.output).await);
    }
    let result = claim.keep(plan.output).await;
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
        Committed::Refused(record) => {
            return Ok(
                match settlement_refused(record.as_ref(), &claim.fence, &settlement) {
                    SettlementRefused::AlreadySettled => Outcome::Completed(result),
                    SettlementRefused::LeaseLost => Outcome::LeaseLost,
                },
            );
        }
        // The handler may have had other effects too. So the claim stays until its lease
        // expires, as after every completion without a record.
        Committed::Unknown(outcome) => return Ok(outcome),
        Committed::Unwritten(error) => return Ok(Outcome::completion_unrecorded(error)),
        Committed::Declined(declined) => declined,
    };
    Err(DeclinedAnswer {
        declined,
        on_refused: plan.on_refused,
    })
}

//! [`Planned`]: what a dry run does with each type that a handler can return.

use std::slice;

use serde::Serialize;

use crate::{
    dynamo::done::Done,
    handler::{Failure, HandlerOutput},
    modes::{
        Mode, Once, Operation, Outcome,
        held::Held,
        item::Change,
        mode::{Claimed, Start},
        work::HandlerEnd,
    },
    protocol::StoredResult,
    testing::plans::Plans,
};

/// A type that a handler can return in a dry run: an output, a [`Done`] or a [`Change`].
pub trait Planned: HandlerOutput + Sized {
    /// True if permanent failures are recorded.
    const RECORDS_FAILURES: bool = true;

    /// What the mode keeps while the handler runs.
    type Claim: Send + 'static;

    /// Claims an operation.
    fn claim(
        plans: &Plans,
        operation: &Operation,
        start: Start,
    ) -> impl Future<Output = Claimed<Self::Claim>> + Send;

    /// Records the end of the handler, and its writes in `plans`.
    fn finish(
        plans: &Plans,
        operation: &Operation,
        claim: Self::Claim,
        end: HandlerEnd<Self>,
    ) -> impl Future<Output = Outcome> + Send;
}

fn once(plans: &Plans) -> Once<Plans> {
    Once::new(plans.clone())
}

#[diagnostic::do_not_recommend]
impl<O: Serialize + Send> Planned for O {
    type Claim = Held;

    async fn claim(plans: &Plans, operation: &Operation, start: Start) -> Claimed<Held> {
        Mode::<O>::claim(&once(plans), operation, start).await
    }

    async fn finish(
        plans: &Plans,
        operation: &Operation,
        claim: Held,
        end: HandlerEnd<O>,
    ) -> Outcome {
        once(plans).finish(operation, claim, end).await
    }
}

#[diagnostic::do_not_recommend]
impl<O: Serialize + Send + 'static> Planned for Done<O> {
    type Claim = Held;

    async fn claim(plans: &Plans, operation: &Operation, start: Start) -> Claimed<Held> {
        Mode::<Done<O>>::claim(&once(plans), operation, start).await
    }

    async fn finish(
        plans: &Plans,
        operation: &Operation,
        claim: Held,
        end: HandlerEnd<Done<O>>,
    ) -> Outcome {
        once(plans).finish(operation, claim, end).await
    }
}

#[diagnostic::do_not_recommend]
impl<O: Serialize + Send + 'static> Planned for Change<O> {
    const RECORDS_FAILURES: bool = false;

    type Claim = ();

    async fn claim(_: &Plans, operation: &Operation, _: Start) -> Claimed<()> {
        Claimed::without_record(operation)
    }

    async fn finish(
        plans: &Plans,
        operation: &Operation,
        (): (),
        end: HandlerEnd<Change<O>>,
    ) -> Outcome {
        let mut answer: Result<_, Failure> = match end.answer() {
            Ok(Ok(change)) => Ok(change),
            Ok(Err(end)) => return end.into(),
            Err(outcome) => return outcome,
        };
        loop {
            let change = match answer {
                Ok(change) => change,
                Err(failure) => return failure.into(),
            };
            if plans.is_changed(&operation.key) {
                return Outcome::Duplicate(StoredResult::Omitted(
                    "the item keeps the key and no result".into(),
                ));
            }
            let planned = match change.plan(|table, key| plans.item(table, key)) {
                Ok(planned) => planned,
                Err(failure) => return failure.into(),
            };
            answer = match plans.write(slice::from_ref(&planned.write)) {
                Ok(()) => {
                    plans.note_changed(operation.key.clone());
                    return Outcome::Completed(planned.result);
                }
                Err(failed) => planned.condition_failed(failed),
            };
        }
    }
}

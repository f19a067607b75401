//! [`Planned`]: what a dry run does with each type that a handler can return.

use std::{panic::AssertUnwindSafe, slice};

use futures_util::FutureExt as _;
use serde::Serialize;

use crate::{
    dynamo::done::Done,
    handler::{Attempt, ClaimModeOutput, Failure, HandlerOutput, History},
    modes::{Once, Operation, Outcome, item::Change},
    protocol::StoredResult,
    testing::plans::Plans,
};

/// A type that a handler can return in a dry run: an output, a [`Done`] or a [`Change`].
pub trait Planned: HandlerOutput + Sized {
    /// True if permanent failures are recorded.
    const RECORDS_FAILURES: bool = true;

    /// Runs `work`, and records its writes in `plans`.
    fn run<W, F>(
        plans: &Plans,
        operation: Operation,
        work: W,
    ) -> impl Future<Output = Outcome> + Send
    where
        W: FnOnce(Attempt) -> F + Send,
        F: Future<Output = Result<Self, Failure>> + Send;
}

fn once(plans: &Plans) -> Once<Plans> {
    Once::new(plans.clone()).outbox("outbox".to_owned())
}

#[diagnostic::do_not_recommend]
impl<A: ClaimModeOutput> Planned for A {
    async fn run<W, F>(plans: &Plans, operation: Operation, work: W) -> Outcome
    where
        W: FnOnce(Attempt) -> F + Send,
        F: Future<Output = Result<A, Failure>> + Send,
    {
        once(plans).run(operation, work).await
    }
}

#[diagnostic::do_not_recommend]
impl<O: Serialize + Send + 'static> Planned for Done<O> {
    async fn run<W, F>(plans: &Plans, operation: Operation, work: W) -> Outcome
    where
        W: FnOnce(Attempt) -> F + Send,
        F: Future<Output = Result<Self, Failure>> + Send,
    {
        once(plans).run(operation, work).await
    }
}

#[diagnostic::do_not_recommend]
impl<O: Serialize + Send + 'static> Planned for Change<O> {
    const RECORDS_FAILURES: bool = false;

    async fn run<W, F>(plans: &Plans, operation: Operation, work: W) -> Outcome
    where
        W: FnOnce(Attempt) -> F + Send,
        F: Future<Output = Result<Self, Failure>> + Send,
    {
        let Operation {
            key,
            delivery,
            deadline,
            ..
        } = operation;
        let attempt = Attempt::new(key.clone(), delivery, History::fresh(), deadline);
        // Making the future runs the handler's code too, as in every mode.
        let work = AssertUnwindSafe(async { work(attempt).await });
        let Ok(mut answer) = work.catch_unwind().await else {
            return Outcome::Panicked;
        };
        loop {
            let change = match answer {
                Ok(change) => change,
                Err(failure) => return failure.into(),
            };
            if plans.is_changed(&key) {
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
                    plans.note_changed(key);
                    return Outcome::Completed(planned.result);
                }
                Err(failed) => planned.condition_failed(&failed),
            };
        }
    }
}

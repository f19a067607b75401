//! [`run`] runs one operation outside a batch.

use super::{
    Mode, Operation, Outcome, Turns,
    call::{begin, call},
    mode::Claimed,
    work::{HandlerEnd, guard},
};
use crate::{
    handler::{AnyLookUp, Attempt, Failure, Handler, HandlerOutput},
    protocol::{Key, Start},
};

tokio::task_local! {
    /// The operations whose work this task is running, the outermost first, each with the turns of its `Once`.
    static RUNNING: Vec<(Turns, Key)>;
}

/// Runs one operation outside a batch, alongside all others.
pub async fn run_here<M: Mode<O>, O: HandlerOutput, F>(
    mode: &M,
    operation: Operation,
    work: impl FnOnce(Attempt) -> F,
) -> Outcome
where
    F: Future<Output = Result<O, Failure>>,
{
    run_work(mode, &Turns::default(), operation, work).await
}

/// Runs one operation outside a batch. Claims before it waits for a turn, so that an operation whose record already has the
/// answer waits for nobody. Doesn't start inside another operation of the same turns, because it would wait for itself.
pub(super) async fn run_work<M: Mode<O>, O: HandlerOutput, F>(
    mode: &M,
    turns: &Turns,
    operation: Operation,
    work: impl FnOnce(Attempt) -> F,
) -> Outcome
where
    F: Future<Output = Result<O, Failure>>,
{
    let mut running = RUNNING.try_with(Vec::clone).unwrap_or_default();
    if let Some((_, outer)) = running.iter().find(|(of_outer, _)| of_outer.are(turns)) {
        tracing::error!(
            key = %operation.key,
            outer_key = %outer,
            "`Once::run` was called inside itself, and did not start: run the inner operation before or after the outer one, or on a `Once` of its own"
        );
        return Outcome::NotStarted;
    }
    running.push((turns.clone(), operation.key.clone()));
    let (clock, deadline) = (|| mode.now(), operation.deadline);
    let run = run(mode, turns, operation, |attempt, _| {
        // Creating the future also runs application code.
        let work = RUNNING.scope(running, async { work(attempt).await });
        guard(clock, deadline, work)
    });
    // Boxed, because the compiler gives up on a future that is nested too deeply.
    Box::pin(run).await
}

/// Runs a handler for one message outside a batch, in parallel with all others. If there is a lookup, it runs first.
pub async fn run_handler<M: Mode<H::Output>, H: Handler>(
    mode: &M,
    called: (&H, Option<&dyn AnyLookUp<H>>),
    operation: Operation,
    message: H::Message,
) -> Outcome {
    let (clock, deadline) = (|| mode.now(), operation.deadline);
    run(
        mode,
        &Turns::default(),
        operation,
        |attempt, only_looks_up| call(called, clock, deadline, message, attempt, only_looks_up),
    )
    .await
}

/// Claims an operation, waits for its turn, runs `work` and records its end. `work` gets the attempt, and whether only the
/// lookup may run.
async fn run<M: Mode<O>, O: HandlerOutput, F>(
    mode: &M,
    turns: &Turns,
    operation: Operation,
    work: impl FnOnce(Attempt, bool) -> F,
) -> Outcome
where
    F: Future<Output: Into<HandlerEnd<O>>>,
{
    let latest = operation.deadline.start_by();
    let mut claimed = mode.claim(&operation, Start::Beside).await;
    let mut turn = None;
    if matches!(claimed, Claimed::Suspect { .. }) {
        turn = turns.alone(latest).await;
        if turn.is_none() {
            return Outcome::NotStarted;
        }
        claimed = mode.claim(&operation, Start::Alone).await;
    }
    let (claim, history, only_looks_up) = match claimed {
        Claimed::Run {
            claim,
            history,
            only_looks_up,
        } => (claim, history, only_looks_up),
        // Without a handler to run, we need no turn.
        Claimed::Ended(outcome) => return outcome,
        Claimed::Suspect { .. } => return Outcome::NotStarted,
    };
    if turn.is_none() {
        turn = turns.shared(latest).await;
    }
    let attempt = turn
        .as_ref()
        .and_then(|_| begin(mode, &operation, &claim, &history));
    let end = match attempt {
        Some(attempt) => work(attempt, only_looks_up).await.into(),
        None => HandlerEnd::NotStarted(Outcome::NotStarted),
    };
    mode.finish(&operation, claim, end).await
}

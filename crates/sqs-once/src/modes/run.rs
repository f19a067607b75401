//! [`run`]: one operation outside a batch. [`call`]: the lookup, then the handler.

use super::{
    Mode, Operation, Outcome, RetryableError, Turns,
    mode::Claimed,
    work::{HandlerEnd, NoOutput, guard, guard_now},
};
use crate::{
    deadline::Deadline,
    flawed::flawed,
    handler::{AnyLookUp, Attempt, Failure, Handler, HandlerOutput, History, LookedUp},
    protocol::{Key, Start, Timestamp},
};

tokio::task_local! {
    /// The operations whose work this task is running, the outermost first, each with the turns of its `Once`.
    static RUNNING: Vec<(Turns, Key)>;
}

/// Runs one operation outside a batch, beside all others.
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

/// Runs one operation outside a batch, in its turn. Inside another operation of the same turns it would wait for itself, so it
/// does not start there.
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
        // Making the future runs the application's code too.
        let work = RUNNING.scope(running, async { work(attempt).await });
        guard(clock, deadline, work)
    });
    // Boxed, because the compiler gives up on a future that is nested too deeply.
    Box::pin(run).await
}

/// Runs a handler for one message outside a batch, beside all others, after the lookup if there is one.
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
        |attempt, runs_handler| call(called, clock, deadline, message, attempt, runs_handler),
    )
    .await
}

/// Claims an operation, runs `work` and records its end. `work` gets the attempt, and whether the handler may run
/// after a lookup.
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
    let (claim, history, runs_handler) = match claimed {
        Claimed::Run {
            claim,
            history,
            runs_handler,
        } => (claim, history, runs_handler),
        // What needs no handler needs no turn.
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
        Some(attempt) => work(attempt, runs_handler).await.into(),
        None => HandlerEnd::NotStarted(Outcome::NotStarted),
    };
    mode.finish(&operation, claim, end).await
}

/// Begins an attempt. `None` if its handler must not start any more.
pub(crate) fn begin<M: Mode<O>, O: HandlerOutput>(
    mode: &M,
    operation: &Operation,
    claim: &M::Claim,
    history: &History,
) -> Option<Attempt> {
    let deadline = operation.deadline;
    if !deadline.may_begin(mode.now()) {
        return None;
    }
    let (key, delivery) = (operation.key.clone(), operation.delivery.clone());
    let attempt = Attempt::new(key, delivery, history.clone(), deadline);
    let attempt = attempt.with_meter(operation.meter.clone());
    let attempt = mode.lend(claim, attempt);
    attempt.log_history();
    Some(attempt)
}

/// Asks the lookup, if there is one and an earlier attempt may have had its effect. Then calls the handler, unless
/// the effect was found.
pub(crate) async fn call<H: Handler>(
    (handler, look_up): (&H, Option<&dyn AnyLookUp<H>>),
    clock: impl Fn() -> Timestamp,
    deadline: Deadline,
    message: H::Message,
    attempt: Attempt,
    runs_handler: bool,
) -> HandlerEnd<H::Output> {
    let mut end = (!runs_handler).then_some(HandlerEnd::NotFound);
    if let Some(look_up) = look_up
        && attempt.history().may_have_effect()
        && !flawed("nothing is looked up")
    {
        let found = guard(&clock, deadline, look_up.ask(&message, &attempt)).await;
        if let Ok(found) = &found {
            let effect = match found {
                LookedUp::Found(_) => "found",
                LookedUp::NotFound => "not found",
            };
            tracing::info!(key = %attempt.key(), effect, "looked up the earlier attempt");
        }
        match found {
            Ok(LookedUp::Found(output)) => end = Some(HandlerEnd::Found(output)),
            Ok(LookedUp::NotFound) => {}
            Err(_) if flawed("a lookup without an answer finds nothing") => {}
            Err(why) => end = Some(HandlerEnd::NotStarted(not_looked_up(why))),
        }
    }
    if let Some(end) = end {
        // The end is known, even if dropping the message panics.
        let _panic = guard_now(|| {
            drop(message);
            Ok(())
        });
        return end;
    }
    let meter = attempt.meter().clone();
    let called = guard(clock, deadline, async {
        handler.handle(message, attempt).await
    });
    match called.await {
        // A layer still held the message, so nothing was sent.
        Err(NoOutput::OutOfTime)
            if meter.is_in_layer() && !flawed("a cut-off in a layer is an open attempt") =>
        {
            HandlerEnd::NotStarted(Outcome::NotStarted)
        }
        end => end.into(),
    }
}

/// Even a permanent failure of a lookup says nothing about the message: only the effect is unknown.
fn not_looked_up(end: NoOutput) -> Outcome {
    let (why, retry_after) = match end {
        NoOutput::Failed(failure) => (format!("failed: {failure}"), failure.requested_wait()),
        NoOutput::Panicked => ("panicked".into(), None),
        NoOutput::OutOfTime => ("was cut off at the deadline".into(), None),
    };
    let text = format!("the lookup of the earlier attempt {why}");
    Outcome::NoEffect(RetryableError { text, retry_after })
}

//! Runs an attempt between its claim and its end: [`begin`] creates it, and [`call`] calls the lookup and the handler.

use super::{
    Mode, Operation, Outcome, RetryableError,
    work::{HandlerEnd, NoOutput, guard, guard_now},
};
use crate::{
    deadline::Deadline,
    flawed::flawed,
    handler::{AnyLookUp, Attempt, Handler, HandlerOutput, History, LookedUp},
    protocol::Timestamp,
};

/// Begins an attempt. Returns `None` if its handler must not start any more.
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

/// Calls the lookup, if there is one and an earlier attempt may have had its effect. Then calls the handler, unless
/// the lookup found the effect.
pub(crate) async fn call<H: Handler>(
    (handler, look_up): (&H, Option<&dyn AnyLookUp<H>>),
    clock: impl Fn() -> Timestamp,
    deadline: Deadline,
    message: H::Message,
    attempt: Attempt,
    only_looks_up: bool,
) -> HandlerEnd<H::Output> {
    let mut end = only_looks_up.then_some(HandlerEnd::EffectNotFound);
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
        // Dropping the message may panic, but the end is already known.
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

/// Even a permanent failure of a lookup says nothing about the message. It only means that the effect is unknown.
fn not_looked_up(end: NoOutput) -> Outcome {
    let (why, retry_after) = match end {
        NoOutput::Failed(failure) => (format!("failed: {failure}"), failure.requested_wait()),
        NoOutput::Panicked => ("panicked".into(), None),
        NoOutput::OutOfTime => ("was cut off at the deadline".into(), None),
    };
    let text = format!("the lookup of the earlier attempt {why}");
    Outcome::NoEffect(RetryableError { text, retry_after })
}

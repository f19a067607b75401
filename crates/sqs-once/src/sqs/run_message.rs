//! Runs one message of a lane through the mode, and again while a different transaction is in the way.

use std::{panic::AssertUnwindSafe, pin::pin, sync::Arc, time::Duration};

use futures_util::FutureExt as _;

use super::{
    batch::{Batch, Progress},
    consumer::Consumer,
    gate::MessageGate,
    identity::Identity,
    long_polls::warn_of_long_polls,
    prepare::Prepared,
};
use crate::{
    handler::{Attempt, Failure, Handler, InvalidMessage},
    modes::{Mode, Operation, OperationGate, Outcome},
    protocol::circuit::HandlerEnd,
    system,
};

/// Pauses between the tries of a message while a different transaction is in the way.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

impl<M: Mode<H::Output>, H: Handler> Consumer<M, H> {
    pub(super) async fn run_message(&self, index: usize, batch: &Arc<Batch>) -> Outcome {
        let run = async {
            match self.prepare(index, batch).await {
                Ok(prepared) => {
                    let progress = batch.progress(index);
                    self.run_until_claimed(&prepared, progress).await
                }
                Err(outcome) => outcome,
            }
        };
        // A key function is user code too, so it may panic.
        let outcome = AssertUnwindSafe(run).catch_unwind().await;
        // After a panic, nothing else has ended the turn.
        batch.suspects().end_turn(index);
        outcome.unwrap_or(Outcome::Panicked)
    }

    /// Runs a message. As long as there is time, runs it again if a different transaction is in the way.
    async fn run_until_claimed(&self, prepared: &Prepared<'_>, progress: &Progress) -> Outcome {
        let batch = &prepared.gate.batch;
        let deadline = batch.deadline();
        let mut pause = FIRST_PAUSE;
        loop {
            let outcome = self.run_once(prepared, progress).await;
            prepared.gate.end_turn();
            let is_contended = matches!(outcome, Outcome::Contended(_));
            if !is_contended
                || system::instant() + pause > deadline.start_by()
                || !batch.may_start()
            {
                return outcome;
            }
            system::sleep(pause).await;
            pause = LONGEST_PAUSE.min(pause * 2);
        }
    }

    /// Runs a message through the mode.
    async fn run_once(&self, prepared: &Prepared<'_>, progress: &Progress) -> Outcome {
        let Identity { key, fingerprint } = prepared.identity.clone();
        let delivery = prepared.message.delivery().clone();
        let deadline = prepared.gate.batch.deadline();
        let mut operation = Operation::new(key, fingerprint, delivery, deadline);
        operation.gate = Some(OperationGate(Arc::<MessageGate>::clone(&prepared.gate)));
        operation.quarantine = self.handler.quarantine();
        operation.meter = progress.meter().clone();
        let work = |attempt| self.call_handler(prepared, progress, attempt);
        let outcome = self.mode.run(operation, work).await;
        if let (Some(breaker), Some(end)) = (&self.breaker, prepared.gate.take_handler_end()) {
            let end = match outcome {
                Outcome::Panicked => HandlerEnd::Panicked,
                _ => end,
            };
            breaker.handler_ended(|| self.mode.now(), &prepared.identity.key, end);
        }
        let not_called = prepared.gate.take_not_called();
        match outcome {
            Outcome::NoEffect(_) | Outcome::PermanentFailure(_) | Outcome::NotStarted => {
                not_called.unwrap_or(outcome)
            }
            outcome => outcome,
        }
    }

    /// Calls the handler when it may start. If it is not called, tells the gate the outcome of the message,
    /// which replaces the failure.
    async fn call_handler(
        &self,
        prepared: &Prepared<'_>,
        progress: &Progress,
        attempt: Attempt,
    ) -> Result<H::Output, Failure> {
        let gate = &prepared.gate;
        let not_called = |outcome, failure| {
            gate.not_called(outcome);
            Err(failure)
        };
        // It is in memory: `prepare` has read it, or the suspect has before its turn.
        let body = match gate.body().await {
            Ok(body) => body,
            Err(outcome) => {
                return not_called(outcome, Failure::no_effect("its body cannot be read"));
            }
        };
        // A suspect has its turn.
        let may_start = gate.is_alone()
            || gate.beside_others().await
                && self.mode.now() <= gate.batch.deadline().invocation_end();
        if !may_start {
            let too_late = Failure::no_effect("no handler could start in time");
            return not_called(Outcome::NotStarted, too_late);
        }
        let _running = progress.handler_starts(attempt.history());
        attempt.log_history();
        // User code may end the process here too, so this is part of the attempt.
        let input = match self.parse(prepared.message, &body) {
            Ok(input) => input,
            Err(InvalidMessage(why)) => {
                let invalid = Self::invalid(prepared.message, &why);
                return not_called(invalid, Failure::permanent_no_effect(why));
            }
        };
        drop(body);
        // If it is cut off, that is its end.
        gate.handler_ends(HandlerEnd::Failed);
        let answer = warn_of_long_polls(pin!(self.handler.handle(input, attempt))).await;
        if (answer.as_ref()).map_or_else(|failure| failure.kind().is_permanent(), |_| true) {
            gate.handler_ends(HandlerEnd::Answered);
        }
        answer
    }
}

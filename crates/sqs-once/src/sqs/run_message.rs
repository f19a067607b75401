//! One message of a lane: through the mode, again while another worker holds its claim.

use std::{
    panic::AssertUnwindSafe,
    pin::pin,
    sync::{Arc, OnceLock},
    time::Duration,
};

use futures_util::FutureExt as _;
use sqs_once_core::once::OperationGate;
use tokio::{
    sync::SemaphorePermit,
    time::{Instant, timeout_at},
};

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
    once::{Mode, Operation, Outcome},
};

/// Pauses between claims of a message that another worker holds.
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
        // A key function is the user's code too, and may panic.
        let outcome = AssertUnwindSafe(run).catch_unwind().await;
        // A panic left it to this.
        batch.suspects().end_turn(index);
        outcome.unwrap_or(Outcome::Panicked)
    }

    /// Runs a message, again while another worker holds the claim or another transaction is in the way,
    /// and there is time.
    async fn run_until_claimed(&self, prepared: &Prepared<'_>, progress: &Progress) -> Outcome {
        let batch = &prepared.gate.batch;
        let deadline = batch.deadline();
        // Bounded before it is added: a wait of years is no point in time.
        let wait_ends = Instant::now() + self.conflict_wait.min(deadline.time_left());
        let mut pause = FIRST_PAUSE;
        loop {
            let outcome = self.run_once(prepared, progress).await;
            prepared.gate.end_turn();
            let runs_again_until = match outcome {
                Outcome::Conflict { .. } => wait_ends,
                Outcome::Contended(_) => deadline.latest_start(),
                outcome => return outcome,
            };
            if Instant::now() + pause > runs_again_until || !batch.may_start() {
                return outcome;
            }
            tokio::time::sleep(pause).await;
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
        operation.meter = progress.meter().clone();
        let not_called = OnceLock::new();
        let work = |attempt| self.call_handler(prepared, progress, attempt, &not_called);
        match self.mode.run(operation, work).await {
            outcome @ (Outcome::NoEffect(_) | Outcome::PermanentFailure(_)) => {
                not_called.into_inner().unwrap_or(outcome)
            }
            outcome => outcome,
        }
    }

    /// Calls the handler when it may start. If it is not called, `not_called` gets the outcome of the message,
    /// in place of the failure.
    async fn call_handler(
        &self,
        prepared: &Prepared<'_>,
        progress: &Progress,
        attempt: Attempt,
        not_called: &OnceLock<Outcome>,
    ) -> Result<H::Output, Failure> {
        let gate = &prepared.gate;
        // A suspect has its turn, and needs no place.
        let _place = if gate.is_alone() {
            None
        } else {
            match self.place_of_handler(&gate.batch).await {
                Some(place)
                    if gate.beside_others().await
                        && self.mode.now() <= gate.batch.deadline().at() =>
                {
                    Some(place)
                }
                _ => {
                    let _first = not_called.set(Outcome::NotStarted);
                    return Err(Failure::no_effect("no handler could start in time"));
                }
            }
        };
        let _running = progress.handler_starts(attempt.history());
        attempt.log_history();
        // The user's code may end the process here too, so this is part of the attempt.
        let input = self.parse(prepared).map_err(|InvalidMessage(why)| {
            let _first = not_called.set(self.invalid(prepared.message, &why));
            Failure::permanent(why)
        })?;
        let (key, now) = (attempt.key().clone(), || self.mode.now());
        let watched = (gate.admitted.as_ref()).map(|admitted| admitted.handler_starts(key, &now));
        let answer = warn_of_long_polls(pin!(self.handler.handle(input, attempt))).await;
        match watched {
            Some(watched) => watched.answered(answer),
            None => answer,
        }
    }

    /// Waits until a handler may run. `None` if none may in time.
    async fn place_of_handler<'a>(&self, batch: &'a Batch) -> Option<SemaphorePermit<'a>> {
        let (handlers, deadline) = (&batch.places().handlers, batch.deadline());
        // Without a wait, the time is the one that the mode has checked.
        if let Ok(place) = handlers.try_acquire() {
            return Some(place);
        }
        let place = timeout_at(deadline.latest_start(), handlers.acquire()).await;
        // A handler that was cut off leaves its place too late. Lambda may have frozen the process
        // beyond the lease.
        let in_time = deadline.may_start() && self.mode.now() <= deadline.at();
        place.ok()?.ok().filter(|_| in_time)
    }
}

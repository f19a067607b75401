//! Runs one message: admit, claim, decode, look up, call the handler, finish.

use std::{
    panic::AssertUnwindSafe,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use futures_util::FutureExt as _;
use tokio::sync::mpsc::UnboundedSender;
use tracing::{Instrument as _, Span};

use super::{
    body::Body,
    consumer::Consumer,
    ended::{Began, Ended, HandlerRun},
    identity::Identity,
    key_source::NoKey,
    long_polls::warn_of_long_polls,
    message::Message,
    s3_pointer::S3Pointer,
    visibility::Visibility,
};
use crate::{
    deadline::Deadline,
    flawed::flawed,
    handler::{Attempt, Failure, Handler, History, InvalidMessage, Stored},
    meter::{Meter, Readings},
    modes::{
        Mode, Operation, Outcome,
        call::{begin, call},
        mode::Claimed,
        work::{HandlerEnd, NoOutput, guard, guard_now},
    },
    protocol::{Key, Start, circuit::Called},
    system::{self, Instant},
};

/// First pause between a message's tries while another transaction is in the way.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// How long a suspect may wait for its body from S3.
const S3_ALONE: Duration = Duration::from_secs(5);

/// The result of running a message.
#[derive(Debug)]
pub(super) enum Ran {
    Ended(Ended),
    Suspect(Suspect),
}

/// A message that waits to run alone, and holds no claim.
#[derive(Debug)]
pub(super) struct Suspect {
    pub(super) exclusive_attempts: u64,
    key: Option<Key>,
    meter: Meter,
    span: Span,
}

enum Stop {
    Ended(Outcome),
    Suspect(u64),
}

impl From<Outcome> for Stop {
    fn from(outcome: Outcome) -> Self {
        Self::Ended(outcome)
    }
}

/// The part of the batch that a running message can see.
#[derive(Clone, Debug)]
pub(super) struct OfBatch {
    pub(super) index: usize,
    /// Tells the batch that the handler has begun.
    pub(super) began: UnboundedSender<Began>,
    pub(super) suspects_wait: Arc<AtomicBool>,
    pub(super) half: Instant,
}

/// Facts that we collect while a message runs.
struct Notes {
    of_batch: OfBatch,
    span: Span,
    key: Option<Key>,
    meter: Meter,
    handler: Option<HandlerRun>,
    of_duplicate: bool,
}

impl<M: Mode<H::Output>, H: Handler> Consumer<M, H> {
    /// Runs a message while others run.
    pub(super) async fn run_beside(
        &self,
        message: &Message,
        deadline: Deadline,
        of_batch: OfBatch,
    ) -> Ran {
        let span = message.span(self.options.make_span.as_ref());
        let mut notes = Notes::new(of_batch, span.clone());
        let run = async {
            self.admit(message)?;
            self.read_and_run(message, deadline, Start::Beside, &mut notes)
                .await
        };
        let ran = pin!(caught(run)).instrument(span).await;
        notes.ran(ran)
    }

    /// Runs a suspect when its turn has come.
    pub(super) async fn run_alone(
        &self,
        message: &Message,
        suspect: Suspect,
        deadline: Deadline,
        of_batch: OfBatch,
    ) -> Ran {
        let mut notes = suspect.notes(of_batch);
        let span = notes.span.clone();
        let run = self.read_and_run(message, deadline, Start::Alone, &mut notes);
        let ran = pin!(caught(run)).instrument(span).await;
        notes.ran(ran)
    }

    /// Reads the body of a message, and runs the message until it is done or turns out to be a suspect.
    async fn read_and_run(
        &self,
        message: &Message,
        deadline: Deadline,
        start: Start,
        notes: &mut Notes,
    ) -> Result<Outcome, Stop> {
        // While a suspect runs alone, every invocation waits for it, so it gets less time to read its body.
        let latest = match start {
            Start::Beside => deadline.start_by(),
            Start::Alone => deadline.start_by().min(system::instant() + S3_ALONE),
        };
        let Some(body) = self.body(message, latest).await? else {
            return Err(self.without_body(message, deadline, notes).await.into());
        };
        let identity = match &message.identity {
            Some(identity) => identity.clone(),
            None => message.identify(body.text(message), &self.identity_sources()),
        };
        let operation = self.operation(message, identity, deadline, notes)?;
        let mut pause = FIRST_PAUSE;
        loop {
            let outcome = match self.mode.claim(&operation, start).await {
                Claimed::Run {
                    claim,
                    history,
                    only_looks_up,
                } => {
                    let told = (history, only_looks_up);
                    self.attempt(message, &body, &operation, claim, told, notes)
                        .await
                }
                Claimed::Suspect { exclusive_attempts } => {
                    return Err(Stop::Suspect(exclusive_attempts));
                }
                Claimed::Ended(outcome) => outcome,
            };
            // If another transaction got in the way, the message runs again as long as there is time.
            let is_contended = matches!(outcome, Outcome::Contended(_));
            if !is_contended || system::instant() + pause > notes.of_batch.start_by(deadline) {
                if start == Start::Alone && flawed("a duplicate is not replayed in a turn") {
                    return Ok(outcome);
                }
                let text = body.text(message);
                return Ok(self.replay(outcome, message, text, &operation, notes).await);
            }
            system::sleep(pause).await;
            pause = LONGEST_PAUSE.min(pause * 2);
        }
    }

    /// Returns the outcome of a message whose body is gone. If the key needs no body, the outcome comes from the record. Claims
    /// nothing.
    async fn without_body(
        &self,
        message: &Message,
        deadline: Deadline,
        notes: &mut Notes,
    ) -> Outcome {
        let gone = message.s3_pointer.as_ref().map(S3Pointer::gone);
        let gone = Outcome::Invalid(gone.unwrap_or_default());
        let Some(identity) = message.identify_without_body(&self.identity_sources()) else {
            return gone;
        };
        let operation = match self.operation(message, identity, deadline, notes) {
            Ok(operation) => operation,
            Err(outcome) => return outcome,
        };
        let outcome = self.mode.without_body(&operation).await.unwrap_or(gone);
        self.replay(outcome, message, None, &operation, notes).await
    }

    /// Runs the handler under a claim, and records how it ended.
    async fn attempt(
        &self,
        message: &Message,
        body: &Body,
        operation: &Operation,
        claim: M::Claim,
        (history, only_looks_up): (History, bool),
        notes: &mut Notes,
    ) -> Outcome {
        let deadline = operation.deadline;
        let began = system::instant();
        let attempt = if began < notes.of_batch.start_by(deadline) {
            begin(&*self.mode, operation, &claim, &history)
        } else {
            None
        };
        let Some(attempt) = attempt else {
            let end = HandlerEnd::NotStarted(Outcome::NotStarted);
            return self.mode.finish(operation, claim, end).await;
        };
        notes.begins(operation, &history, began);
        // Decoding is part of the attempt, because user code may also kill the process there.
        let (mut invalid, mut called) = (None, None);
        let decoded = guard_now(|| Ok(message.parse(body.text(message))));
        let end = match decoded {
            Ok(Ok(decoded)) => {
                let (asked, clock) = (self.called(), || self.mode.now());
                let call = pin!(call(
                    asked,
                    clock,
                    deadline,
                    decoded,
                    attempt,
                    only_looks_up
                ));
                let end = warn_of_long_polls(call).await;
                called = Some(self.sign(&end));
                end
            }
            Ok(Err(why)) => {
                invalid = Some(message.invalid(&why.0));
                HandlerEnd::NoOutput(NoOutput::Failed(Failure::permanent_no_effect(why)))
            }
            Err(end) => HandlerEnd::NoOutput(end),
        };
        let duration = system::elapsed(began);
        let is_called = !operation.meter.is_in_layer();
        notes.handler = is_called.then_some(HandlerRun { history, duration });
        let outcome = self.mode.finish(operation, claim, end).await;
        if let (Some(breaker), Some(called), true) = (&self.process.breaker, called, is_called) {
            // Serializing the output as JSON may panic.
            let called = match outcome {
                Outcome::Panicked => Called::Panicked,
                _ => called,
            };
            breaker.called(|| self.mode.now(), &operation.key, called);
        }
        match (outcome, invalid) {
            (Outcome::PermanentFailure(_), Some(invalid)) => invalid,
            (outcome, _) => outcome,
        }
    }

    /// Returns what the end of a call tells the circuit breaker about the called system.
    fn sign(&self, end: &HandlerEnd<H::Output>) -> Called {
        match end {
            HandlerEnd::Returned(_) | HandlerEnd::Found(_) | HandlerEnd::EffectNotFound => {
                Called::Answered
            }
            HandlerEnd::NoOutput(NoOutput::Failed(failure)) if failure.kind().is_permanent() => {
                Called::Answered
            }
            HandlerEnd::NoOutput(NoOutput::Failed(failure)) => match failure.requested_wait() {
                Some(wait) if failure.is_for_all() => {
                    let longest = Visibility::longest_backoff(self.options.visibility.as_ref());
                    Called::Refused(wait.min(longest))
                }
                _ => Called::Failed,
            },
            HandlerEnd::NoOutput(NoOutput::Panicked) => Called::Panicked,
            HandlerEnd::NoOutput(_) | HandlerEnd::NotStarted(_) => Called::Failed,
        }
    }

    /// Checks whether a message may run now. If not, returns its outcome as the error.
    fn admit(&self, message: &Message) -> Result<(), Outcome> {
        if message.is_s3_test {
            return Err(Outcome::Ignored);
        }
        let Some(breaker) = &self.process.breaker else {
            return Ok(());
        };
        breaker
            .admit(|| self.mode.now(), message.receive_count())
            .map_err(|next_probe| Outcome::CircuitOpen { next_probe })
    }

    /// Makes a message's operation, with its key.
    fn operation(
        &self,
        message: &Message,
        identity: Result<Identity, NoKey>,
        deadline: Deadline,
        notes: &mut Notes,
    ) -> Result<Operation, Outcome> {
        let Identity { key, fingerprint } = identity.map_err(|none| message.without_key(none))?;
        if message.identity.is_none() {
            Message::add_key_to(&notes.span, &key);
        }
        notes.key = Some(key.clone());
        // Making the key may have used up the time.
        if !deadline.may_start() {
            return Err(Outcome::NotStarted);
        }
        let delivery = message.delivery.clone();
        let mut operation = Operation::new(key, fingerprint, delivery, deadline);
        operation.quarantine = self.quarantine();
        operation.meter = notes.meter.clone();
        Ok(operation)
    }

    /// Calls `on_duplicate` if the outcome is a duplicate. A message that can't be read or decoded is still a duplicate.
    async fn replay(
        &self,
        mut outcome: Outcome,
        message: &Message,
        text: Option<&str>,
        operation: &Operation,
        notes: &mut Notes,
    ) -> Outcome {
        let (Outcome::Duplicate(result), Some(on_duplicate)) = (&mut outcome, &self.replay) else {
            return outcome;
        };
        let decoded = match guard_now(|| Ok(message.parse(text))) {
            Ok(Ok(decoded)) => decoded,
            unreadable => {
                let why = match unreadable {
                    Ok(Err(InvalidMessage(why))) => why,
                    _ => "decoding it panicked".to_owned(),
                };
                tracing::warn!(key = %operation.key, why, "a duplicate can't be read, so on_duplicate was not called");
                return outcome;
            }
        };
        let Readings {
            attempts,
            generation,
            ..
        } = operation.meter.readings();
        let history = History {
            attempts,
            prior: None,
            generation: if flawed("a duplicate has the first call key") {
                0
            } else {
                generation
            },
        };
        let (key, delivery) = (operation.key.clone(), operation.delivery.clone());
        let attempt = Attempt::new(key, delivery, history, operation.deadline);
        let stored = Stored::from_store(result.take(), self.mode.results());
        let call = async { on_duplicate.call(decoded, stored, attempt).await };
        match guard(|| self.mode.now(), operation.deadline, call).await {
            Ok(()) => outcome,
            Err(end) => {
                notes.of_duplicate = true;
                end.into()
            }
        }
    }
}

impl OfBatch {
    /// Returns a copy for the message at `index`.
    pub(super) fn at(&self, index: usize) -> Self {
        Self {
            index,
            ..self.clone()
        }
    }

    /// Returns the latest time at which a message may start while others run. While a suspect waits, that is at most halfway to the
    /// deadline.
    pub(super) fn start_by(&self, deadline: Deadline) -> Instant {
        if self.suspects_wait.load(Relaxed) {
            deadline.start_by().min(self.half)
        } else {
            deadline.start_by()
        }
    }
}

impl Notes {
    fn new(of_batch: OfBatch, span: Span) -> Self {
        Self {
            of_batch,
            span,
            key: None,
            meter: Meter::default(),
            handler: None,
            of_duplicate: false,
        }
    }

    /// Tells the batch that the handler begins.
    fn begins(&self, operation: &Operation, history: &History, at: Instant) {
        let began = Began {
            index: self.of_batch.index,
            key: operation.key.clone(),
            meter: self.meter.clone(),
            history: history.clone(),
            at,
        };
        // If the receiver is gone, the batch has already responded.
        let _gone = self.of_batch.began.send(began);
    }

    fn ran(self, ran: Result<Outcome, Stop>) -> Ran {
        let outcome = match ran {
            Ok(outcome) | Err(Stop::Ended(outcome)) => outcome,
            Err(Stop::Suspect(exclusive_attempts)) => {
                return Ran::Suspect(Suspect {
                    exclusive_attempts,
                    key: self.key,
                    meter: self.meter,
                    span: self.span,
                });
            }
        };
        Ran::Ended(self.ended(outcome))
    }

    fn ended(self, outcome: Outcome) -> Ended {
        self.span.record("outcome", outcome.name());
        Ended {
            key: self.key,
            handler: self.handler,
            requests: self.meter.readings(),
            of_duplicate: self.of_duplicate,
            ..outcome.into()
        }
    }
}

impl Suspect {
    /// Returns the result of a suspect that does not run in this batch.
    pub(super) fn not_started(self, of_batch: OfBatch) -> Ended {
        self.notes(of_batch).ended(Outcome::NotStarted)
    }

    fn notes(self, of_batch: OfBatch) -> Notes {
        Notes {
            key: self.key,
            meter: self.meter,
            ..Notes::new(of_batch, self.span)
        }
    }
}

/// Catches a panic. A key function is also user code.
///
/// This is not an `async fn`, whose future would hold `run` twice.
fn caught(
    run: impl Future<Output = Result<Outcome, Stop>>,
) -> impl Future<Output = Result<Outcome, Stop>> {
    let ran = AssertUnwindSafe(run).catch_unwind();
    ran.map(|ran| ran.unwrap_or(Ok(Outcome::Panicked)))
}

#[cfg(test)]
mod tests {
    use std::sync::{Mutex, PoisonError};

    use serde_json::json;

    use super::*;
    use crate::{
        handler::handler_fn,
        modes::mode::sealed::Sealed,
        protocol::{Namespace, Timestamp},
    };

    /// A mode in which another transaction is always in the way. It notes when each claim began.
    #[derive(Default)]
    struct Rivals(Arc<Mutex<Vec<Instant>>>);

    impl Sealed for Rivals {}

    impl Mode<()> for Rivals {
        type Claim = ();

        async fn claim(&self, operation: &Operation, _: Start) -> Claimed<()> {
            let mut claims = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            claims.push(system::instant());
            Claimed::without_record(operation)
        }

        async fn finish(&self, _: &Operation, (): (), _: HandlerEnd<()>) -> Outcome {
            Outcome::Contended("a rival".into())
        }

        fn now(&self) -> Timestamp {
            Timestamp::now()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn contended_message_runs_again_with_growing_pauses() {
        let claims = Arc::<Mutex<Vec<_>>>::default();
        let rivals = Rivals(Arc::clone(&claims));
        let handler = handler_fn(async |_: u64, _: Attempt| Ok::<(), Failure>(()));
        let namespace = Namespace::new("test").unwrap();
        let consumer = Arc::new(Consumer::without_aws(rivals, namespace, handler));
        let event = json!({"Records": [{"messageId": "m-1", "body": "1"}]});
        let second = Duration::from_secs(1);
        let deadline = Deadline::after(Timestamp::now(), 5 * second, second);
        let start = system::instant();
        let response = consumer.process(serde_json::from_value(event).unwrap(), deadline);
        let failed = response.await.unwrap().batch_item_failures;
        assert_eq!(failed[0].item_identifier, "m-1");
        let claims = claims.lock().unwrap();
        let after = claims.iter().map(|at| (*at - start).as_millis());
        // The next one would be too late to start.
        assert_eq!(
            after.collect::<Vec<_>>(),
            [0, 50, 150, 350, 750, 1550, 2550, 3550]
        );
    }
}

//! One lane of a batch, and each message of it.

use std::{
    panic::AssertUnwindSafe,
    pin::pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use futures_util::FutureExt as _;
use sqs_once_core::once::OperationGate;
use tokio::{
    sync::SemaphorePermit,
    time::{Instant, timeout_at},
};
use tracing::{Instrument as _, Span};

use super::{
    batch::{Batch, Progress},
    consumer::{Consumer, FifoAfterPermanent},
    gate::MessageGate,
    identity::Identity,
    key_fn::NoIdentity,
    lanes::{Lane, LaneKind},
    long_polls::warn_of_long_polls,
    message::Message,
    processed::Processed,
    s3_pointer::S3Pointer,
};
use crate::{
    handler::{Attempt, Failure, FromMessage as _, Handler, History, InvalidMessage, Stored},
    once::{Mode, Operation, Outcome},
    telemetry::tracer,
};

/// Pauses between claims of a message that another worker holds.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

impl<M: Mode<H::Output>, H: Handler> Consumer<M, H> {
    pub(super) async fn run_lane(&self, lane: &Lane, batch: &Arc<Batch>) {
        let mut before: Option<(&Message, Processed)> = None;
        for (place, &index) in lane.messages.iter().enumerate() {
            let (message, progress) = (batch.message(index), batch.progress(index));
            let shared = match (&before, lane.kind) {
                (Some((_, before)), LaneKind::FifoGroup) if self.stops_group(before) => {
                    for &behind in &lane.messages[place..] {
                        batch.end(behind, Outcome::BehindFailure.into());
                    }
                    return;
                }
                (Some((of, before)), LaneKind::SameKey) if before.is_shared(of, message) => {
                    Some(before.of_other_delivery())
                }
                _ => None,
            };
            let deadline = batch.deadline();
            let in_time = match shared {
                Some(_) => Instant::now() < deadline.stop(),
                None => batch.may_start(),
            };
            if !in_time {
                return;
            }
            batch.start(index);
            let span = message.span();
            let processed = match shared {
                Some(shared) => shared,
                None => {
                    let run = pin!(self.run_message(index, progress, batch));
                    let run = progress.meter().scope(run);
                    run.instrument(span.clone()).await.into()
                }
            };
            let is_last = place + 1 == lane.messages.len();
            let recorded = (!is_last).then(|| processed.clone());
            let replay = pin!(self.replay(processed, message, batch));
            let processed = replay.instrument(span.clone()).await;
            tracer::message_ends(&span, processed.outcome());
            if processed.outcome().is_permanent()
                && let Some(visibility) = &self.visibility
            {
                visibility.expect(message);
            }
            // The next delivery of the key shows the recorded result to `on_duplicate` itself.
            before = recorded.map(|recorded| {
                let shown = if processed.is_success() {
                    recorded
                } else {
                    processed.clone()
                };
                (message, shown)
            });
            batch.end(index, processed);
            // To decode a body may take long, and a message with an invalid one waits for nothing else.
            tokio::task::yield_now().await;
        }
    }

    /// Returns whether the messages behind this one in its FIFO group must not run.
    fn stops_group(&self, processed: &Processed) -> bool {
        let goes_on = match self.fifo_after_permanent {
            FifoAfterPermanent::Continue => {
                processed.is_recorded_failure(self.mode.records_failures())
            }
            FifoAfterPermanent::Stop => false,
        };
        !(processed.is_success() || goes_on)
    }

    async fn run_message(&self, index: usize, progress: &Progress, batch: &Arc<Batch>) -> Outcome {
        // A key function is the user's code too, and may panic.
        let run = AssertUnwindSafe(self.run_until_claimed(index, progress, batch));
        let outcome = run.catch_unwind().await.unwrap_or(Outcome::Panicked);
        // A panic left it to this.
        batch.suspects().end_turn(index);
        outcome
    }

    /// Runs a message, again while another worker holds the claim or another transaction is in the way,
    /// and there is time.
    async fn run_until_claimed(
        &self,
        index: usize,
        progress: &Progress,
        batch: &Arc<Batch>,
    ) -> Outcome {
        let message = batch.message(index);
        if message.is_s3_test() {
            return Outcome::Ignored;
        }
        let deadline = batch.deadline();
        // To decode and parse a body takes time too.
        if !batch.may_start() {
            return Outcome::NotStarted;
        }
        let now = || self.mode.now();
        let admitted = match &self.breaker {
            Some(breaker) => {
                let latest = deadline.latest_start();
                match breaker.admit(&now, message.receive_count(), latest).await {
                    Ok(admitted) => Some(Arc::new(admitted)),
                    Err(next_probe) => return Outcome::CircuitOpen { next_probe },
                }
            }
            None => None,
        };
        let gate = Arc::new(MessageGate {
            batch: Arc::clone(batch),
            index,
            turns: self.turns.clone(),
            admitted: admitted.clone(),
            is_alone: AtomicBool::new(false),
            body: Mutex::new(None),
        });
        let body = match self.body(message, &gate).await {
            Ok(body) => body,
            Err(outcome) => return outcome,
        };
        let had_key = message.key().is_some();
        let identity = match message.identify(body.text(), &self.reading()) {
            Ok(identity) => identity,
            Err(NoIdentity::Invalid(InvalidMessage(why))) => return self.invalid(message, why),
            Err(NoIdentity::KeyPanicked) => return Outcome::Panicked,
        };
        if !had_key {
            message.add_key_to(&Span::current());
        }
        // To make the key may have taken the time that was left.
        if !batch.may_start() {
            return Outcome::NotStarted;
        }
        // Bounded before it is added: a wait of years is no point in time.
        let wait_ends = Instant::now() + self.conflict_wait.min(deadline.time_left());
        let mut pause = FIRST_PAUSE;
        loop {
            let Identity { key, fingerprint } = identity.clone();
            let mut operation =
                Operation::new(key, fingerprint, message.delivery().clone(), deadline);
            operation.gate = Some(OperationGate(Arc::<MessageGate>::clone(&gate)));
            let handler = &self.handler;
            let (body, gate) = (&body, &gate);
            let (never_started, undecodable) = (AtomicBool::new(false), AtomicBool::new(false));
            let work = async |attempt: Attempt| {
                // A suspect has its turn, and needs no place.
                let _place = if gate.is_alone() {
                    None
                } else {
                    match self.place_of_handler(batch).await {
                        Some(place)
                            if gate.beside_others().await && self.mode.now() <= deadline.at() =>
                        {
                            Some(place)
                        }
                        _ => {
                            never_started.store(true, Relaxed);
                            return Err(Failure::no_effect("no handler could start in time"));
                        }
                    }
                };
                let _running = progress.handler_starts(attempt.history());
                attempt.log_history();
                // The user's code may end the process here too, so this is part of the attempt.
                let input = self.read(message, body).map_err(|InvalidMessage(why)| {
                    undecodable.store(true, Relaxed);
                    Failure::permanent(why)
                })?;
                let key = attempt.key().clone();
                let watched =
                    (admitted.as_ref()).map(|admitted| admitted.handler_starts(key, &now));
                let answer = warn_of_long_polls(pin!(handler.handle(input, attempt))).await;
                match watched {
                    Some(watched) => watched.answered(answer),
                    None => answer,
                }
            };
            let outcome = match self.mode.run(operation, work).await {
                Outcome::NoEffect(_) if never_started.load(Relaxed) => Outcome::NotStarted,
                Outcome::PermanentFailure(why) if undecodable.load(Relaxed) => {
                    self.invalid(message, &why)
                }
                outcome => outcome,
            };
            gate.end_turn();
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

    /// The body of a message, from S3 if it is there. Nothing is claimed yet.
    async fn body<'a>(
        &self,
        message: &'a Message,
        gate: &MessageGate,
    ) -> Result<HeldBody<'a>, Outcome> {
        let (Some(s3), Some(pointer)) = (&self.s3_bodies, message.s3_pointer()) else {
            return Ok(HeldBody::InQueue(message.body()));
        };
        let deadline = gate.batch.deadline();
        let bodies = Arc::clone(&gate.batch.places().bodies);
        let place = timeout_at(deadline.latest_start(), bodies.acquire_owned()).await;
        let place = place.ok().and_then(Result::ok);
        let place = place.filter(|_| gate.batch.may_start());
        gate.hold_body(place.ok_or(Outcome::NotStarted)?);
        let read = timeout_at(deadline.latest_start(), s3.read(pointer)).await;
        let text = read.map_err(|_elapsed| {
            Outcome::NoEffect("S3 did not return the body before the deadline".into())
        })??;
        Ok(HeldBody::FromS3(text))
    }

    /// The outcome of a message that can never be processed.
    fn invalid(&self, message: &Message, why: &str) -> Outcome {
        let pointer = message.body().and_then(S3Pointer::find);
        if pointer.is_none() || self.s3_bodies.is_some() {
            return Outcome::Invalid(why.to_owned());
        }
        Outcome::Invalid(format!(
            "{why}; the body is in S3: set CONSUMER_S3_BUCKETS, which needs the feature `s3`"
        ))
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

    /// Hands a duplicate to the handler, and the recorded result with it.
    async fn replay(
        &self,
        mut processed: Processed,
        message: &Message,
        batch: &Batch,
    ) -> Processed {
        let (Some(result), Some(key)) = (processed.take_duplicate(), message.key()) else {
            return processed;
        };
        let (deadline, places) = (batch.deadline(), batch.places());
        let stored = Stored::kept_by(result, self.mode.results());
        let attempt = Attempt::new(
            key.clone(),
            message.delivery().clone(),
            History::fresh(),
            deadline,
        );
        let began = AtomicBool::new(false);
        let shown = AssertUnwindSafe(async {
            let _place = places.duplicates.acquire().await;
            began.store(true, Relaxed);
            self.handler.on_duplicate(stored, attempt).await
        });
        Processed::by_on_duplicate(
            match timeout_at(deadline.stop(), shown.catch_unwind()).await {
                Ok(Ok(Ok(()))) => return processed,
                Ok(Ok(Err(failure))) => failure.into(),
                Ok(Err(_panic)) => Outcome::Panicked,
                Err(_elapsed) if began.load(Relaxed) => Outcome::OutOfTime,
                Err(_elapsed) => Outcome::NotStarted,
            },
        )
    }

    /// Makes the handler's message of the body.
    fn read(&self, message: &Message, body: &HeldBody<'_>) -> Result<H::Message, InvalidMessage> {
        H::Message::from_message(message.content(body.text(), &self.reading())?)
    }
}

/// The body of a message that runs.
enum HeldBody<'a> {
    /// `None` if the message has no body.
    InQueue(Option<&'a str>),
    /// The gate holds its place.
    FromS3(String),
}

impl HeldBody<'_> {
    fn text(&self) -> Option<&str> {
        match self {
            Self::InQueue(text) => *text,
            Self::FromS3(text) => Some(text),
        }
    }
}

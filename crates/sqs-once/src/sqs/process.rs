//! One batch through the mode: each message once, and the response to Lambda.

use std::{
    collections::HashSet,
    panic::AssertUnwindSafe,
    pin::pin,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use aws_lambda_events::sqs::{SqsBatchResponse, SqsEvent};
use futures_util::{FutureExt as _, future::BoxFuture};
use tokio::{
    sync::{OwnedSemaphorePermit, SemaphorePermit},
    time::{Instant, timeout_at},
};
use tracing::{Instrument as _, Span};

use super::{
    batch::{Batch, Progress},
    breaker::{Admitted, CircuitBreaker},
    consumer::{Consumer, FifoAfterPermanent},
    identity::Identity,
    key_fn::NoIdentity,
    lanes::{First, Lane, LaneKind},
    long_polls::warn_of_long_polls,
    message::Message,
    processed::Processed,
    reading::Reading,
    s3_pointer::S3Pointer,
};
use sqs_once_core::once::{Gate, OperationGate, Turns};

use crate::{
    deadline::Deadline,
    handler::{Attempt, Failure, FromMessage as _, Handler, History, InvalidMessage, Stored},
    once::{Mode, Operation, Outcome},
    store::StoreError,
    telemetry::{batch::BatchReport, tracer},
};

/// Pauses between claims of a message that another worker holds.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// The invocation fails, and SQS keeps all messages of the batch.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BatchError {
    /// The event is not an SQS event.
    #[error(
        "the event is not an SQS event, at line {line}, column {column}: check that the trigger of this function is an SQS queue; nothing was processed"
    )]
    NotSqs {
        /// Line of the first difference, from 1.
        line: usize,
        /// Column of the first difference, from 1.
        column: usize,
    },
    /// A record has no message id. SQS deletes messages that the response does not name, so the whole
    /// invocation fails.
    #[error(
        "record {index} of the event has no messageId, so the response could not name it: check that the trigger of this function is an SQS queue; nothing was processed"
    )]
    NoMessageId {
        /// Place of the record in the event, from 0.
        index: usize,
    },
    /// DynamoDB could not be reached, denied access or has no such table, and so every message of the
    /// batch failed. Lambda counts the invocation in its Errors metric.
    #[error(
        "all {messages} messages of the batch failed because the store is unavailable, and go back to the queue: {reason}"
    )]
    StoreUnavailable {
        /// Messages of the batch.
        messages: usize,
        /// The error of the first.
        reason: String,
    },
}

impl<M: Mode<H::Output>, H: Handler> Consumer<M, H> {
    /// Processes a batch, and returns the batch item failures: the messages that go back to the queue.
    /// Returns before `deadline`, even if the handler does not. On a runtime with one thread, a handler
    /// that blocks this thread delays the return.
    ///
    /// # Errors
    ///
    /// [`BatchError::NoMessageId`] if a record cannot be named; then nothing was processed.
    /// [`BatchError::StoreUnavailable`] if the store let every message fail.
    pub async fn process(
        &self,
        event: SqsEvent,
        deadline: Deadline,
    ) -> Result<SqsBatchResponse, BatchError> {
        self.process_batch(event, deadline, None).await
    }

    /// Processes the batch of an invocation. The request id is for its log line.
    pub(super) async fn process_batch(
        &self,
        event: SqsEvent,
        deadline: Deadline,
        request_id: Option<&str>,
    ) -> Result<SqsBatchResponse, BatchError> {
        let started = Instant::now();
        let mut report = BatchReport::new(self.mode.now());
        let request_id = request_id.map(Arc::from);
        let mut messages = Vec::with_capacity(event.records.len());
        let reading = self.reading();
        let size = u32::try_from(event.records.len()).unwrap_or(u32::MAX);
        let deadline = deadline.keep_back(self.reserve_per_message.saturating_mul(size));
        let kept_for_handlers = deadline.time_left() / 2;
        for (index, record) in event.records.into_iter().enumerate() {
            let request_id = request_id.as_ref();
            let message = Message::new(record, request_id, self.envelope, &reading);
            let message = message.ok_or(BatchError::NoMessageId { index })?;
            // Lanes need keys. But a batch of bodies that are slow to decode must not take the time of
            // its other messages: the rest get their keys when they run.
            if deadline.time_left() >= kept_for_handlers {
                if index > 0 {
                    // Other invocations of the process go on meanwhile.
                    tokio::task::yield_now().await;
                }
                message.identify_body(&reading);
            }
            messages.push(message);
        }
        let batch = Arc::new(Batch::new(
            messages,
            deadline,
            self.log_sample_completed,
            self.concurrency,
        ));
        let consumer = Arc::new(self.clone());
        let run_lane = move |batch: Arc<Batch>, lane: Lane| {
            let consumer = Arc::clone(&consumer);
            async move { consumer.run_lane(&lane, &batch).await }
        };
        let in_progress = self.concurrency.saturating_add(self.claims_ahead);
        let first = match self.circuit() {
            Some(_not_closed) => First::Probe,
            None => First::HighestReceiveCount,
        };
        let run = batch.run(in_progress, first, run_lane);
        match &self.visibility {
            Some(visibility) => visibility.while_extended(&batch, run).await,
            None => run.await,
        }
        batch.close();
        let processed = batch.results();
        let answer = deadline.answer();
        let (dead_lettered, not_sent) = match &self.visibility {
            Some(visibility) => visibility.dead_letter_all(&processed, answer).await,
            None => (HashSet::new(), 0),
        };
        report.dead_letters_not_sent(not_sent);
        let (mut response, mut named) = (SqsBatchResponse::default(), HashSet::new());
        for (message, processed) in &processed {
            let settled = processed.is_success() || dead_lettered.contains(message.id());
            if !settled && named.insert(message.id()) {
                response.add_failure(message.id().as_str());
            }
        }
        for message in batch.outcomes(|id| dead_lettered.contains(id)) {
            report.add(&message);
            if let Some(observer) = &self.observer {
                observer.observe(&message);
            }
        }
        if let Some(visibility) = &self.visibility {
            let now = self.mode.now();
            visibility
                .apply(&processed, &dead_lettered, now, answer)
                .await;
        }
        let failed = response.batch_item_failures.len();
        let metrics = self.metrics.as_ref();
        let request_id = request_id.as_deref();
        report.log(
            failed,
            started.elapsed(),
            self.circuit(),
            metrics,
            request_id,
        );
        tracer::flush(deadline).await;
        match store_unavailable(&processed) {
            Some(error) if self.fail_when_store_unavailable => Err(BatchError::StoreUnavailable {
                messages: processed.len(),
                reason: error.to_string(),
            }),
            _ => Ok(response),
        }
    }

    /// The state of the circuit breaker, unless it is closed.
    fn circuit(&self) -> Option<&'static str> {
        self.breaker.as_ref().and_then(CircuitBreaker::not_closed)
    }

    fn reading(&self) -> Reading<'_> {
        let (namespace, fingerprint) = (&self.namespace, &self.fingerprint);
        Reading::for_type::<H::Message>(namespace, &self.key, fingerprint, self.decoding)
            .reads_s3(self.s3_bodies.is_some())
    }

    /// Makes the handler's message of the body.
    fn read(&self, message: &Message, body: &HeldBody<'_>) -> Result<H::Message, InvalidMessage> {
        H::Message::from_message(message.content(body.text(), &self.reading())?)
    }

    async fn run_lane(&self, lane: &Lane, batch: &Arc<Batch>) {
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
}

/// Decides when the handler of a message starts.
struct MessageGate {
    batch: Arc<Batch>,
    index: usize,
    turns: Turns,
    /// `None` without a circuit breaker.
    admitted: Option<Arc<Admitted>>,
    is_alone: AtomicBool,
    /// The place of a body from S3.
    body: Mutex<Option<OwnedSemaphorePermit>>,
}

impl MessageGate {
    /// Returns whether this message is a suspect, and has its turn.
    fn is_alone(&self) -> bool {
        self.is_alone.load(Relaxed)
    }

    /// Waits for a turn beside the handlers of other batches, with a place in this one. Returns false
    /// if the handler must not start.
    async fn beside_others(&self) -> bool {
        let turn = self
            .turns
            .shared(self.batch.deadline().latest_start())
            .await;
        let is_kept = |turn| self.batch.suspects().keep(self.index, turn);
        turn.is_some_and(is_kept) && self.batch.may_start()
    }

    fn end_turn(&self) {
        self.batch.suspects().end_turn(self.index);
        self.is_alone.store(false, Relaxed);
    }

    fn hold_body(&self, place: OwnedSemaphorePermit) {
        *self.body.lock().unwrap_or_else(PoisonError::into_inner) = Some(place);
    }
}

impl Gate for MessageGate {
    fn alone(&self, exclusive_attempts: u64) -> BoxFuture<'_, bool> {
        Box::pin(async move {
            // Other messages need the place of its body before this one can start.
            let body = self
                .body
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .take();
            drop(body);
            // The messages that wait for a probe run before this one.
            if let Some(admitted) = &self.admitted {
                admitted.leave_the_probe_to_others();
            }
            if !self
                .batch
                .wait_for_others(self.index, exclusive_attempts)
                .await
            {
                return false;
            }
            let turn = self.turns.alone(self.batch.deadline().latest_start()).await;
            let is_kept = |turn| self.batch.suspects().keep(self.index, turn);
            let is_alone = turn.is_some_and(is_kept);
            self.is_alone.store(is_alone, Relaxed);
            is_alone
        })
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

/// The store's error, where every message of a batch failed by it, or for lack of time behind it.
fn store_unavailable<'a>(batch: &[(&Message, &'a Processed)]) -> Option<&'a StoreError> {
    let mut first = None;
    for (_, processed) in batch {
        match processed.store_unavailable() {
            Some(error) => first = first.or(Some(error)),
            None if processed.is_not_started() => {}
            None => return None,
        }
    }
    first
}

//! [`Consumer`]: the batch. Deadline, panics, response.

use std::{
    collections::{HashSet, VecDeque},
    convert::Infallible,
    num::NonZeroUsize,
    panic::AssertUnwindSafe,
    str::FromStr,
    sync::{Arc, Mutex, OnceLock, PoisonError},
    time::Duration,
};

use aws_lambda_events::sqs::{SqsBatchResponse, SqsEvent};
use futures_util::FutureExt as _;
use tokio::{
    sync::oneshot,
    task::JoinSet,
    time::{Instant, timeout_at},
};
use tracing::Instrument as _;

use super::{
    changes::Visibility,
    identity::{FingerprintSource, Identity, KeySource},
    lanes::{self, Lane, LaneKind, Traits},
    message::{InvalidMessage, Message},
    processed::{Processed, millis},
};
use crate::{
    Attempt, Deadline, Handler, History, IntoHandler, Mode, Operation, Outcome, Stored,
    protocol::{Namespace, StoredResult, Timestamp},
    store::StoreError,
};

/// Processes batches of SQS messages, each message once.
///
/// ```
/// use std::sync::Arc;
/// use serde::Deserialize;
/// use sqs_once::{Attempt, Consumer, Failure, Once, protocol::Namespace, store::MemoryStore};
///
/// #[derive(Deserialize)]
/// struct Order { id: String }
///
/// async fn ship(order: Order, attempt: Attempt) -> Result<String, Failure> {
///     Ok(format!("shipped {} under {}", order.id, attempt.key()))
/// }
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let consumer = Consumer::new(Once::new(MemoryStore::default()), Namespace::new("orders")?, ship)
///     .concurrency(std::num::NonZeroUsize::MIN)
///     .key("body:/id".parse()?);
///
/// // In a Lambda, `sqs_once::run(consumer).await` does the rest.
/// let consumer = Arc::new(consumer);
/// let event = serde_json::from_value(serde_json::json!({"Records": [
///     {"messageId": "m-1", "body": "{\"id\": \"o-1\"}"},
///     {"messageId": "m-2", "body": "not an order"},
/// ]}))?;
/// let deadline = consumer.deadline(sqs_once::protocol::Timestamp::default());
/// let response = consumer.process(event, deadline).await?;
/// assert_eq!(response.batch_item_failures[0].item_identifier, "m-2");
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Consumer<M, H> {
    mode: M,
    handler: H,
    namespace: Namespace,
    key: KeySource,
    fingerprint: FingerprintSource,
    concurrency: NonZeroUsize,
    conflict_wait: Duration,
    reserve: Duration,
    fallback: Duration,
    time_needed: Duration,
    fifo_after_permanent: FifoAfterPermanent,
    fail_when_store_unavailable: bool,
    visibility: Option<Visibility>,
}

/// The treatment of a FIFO group's messages behind a permanent failure of their batch.
///
/// ```
/// use sqs_once::sqs::FifoAfterPermanent;
///
/// assert_eq!("continue".parse(), Ok(FifoAfterPermanent::Continue));
/// assert_eq!("stop".parse(), Ok(FifoAfterPermanent::Stop));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum FifoAfterPermanent {
    /// They run, once the failure is recorded: the failed message never runs again, so they do
    /// not overtake it. A failure that needs no record (an undecodable body, no key, a key that
    /// was reused) counts as recorded; one on an [item](crate::OnItem) is not recorded, and stops
    /// the group.
    #[default]
    Continue,
    /// They do not run, and are received again with the failed message: up to the dead-letter
    /// queue. AWS asks functions on FIFO queues to stop at the first failure (*AWS Lambda
    /// Developer Guide*, "Implementing partial batch responses").
    Stop,
}

impl FromStr for FifoAfterPermanent {
    type Err = FifoAfterPermanentError;

    fn from_str(text: &str) -> Result<Self, FifoAfterPermanentError> {
        match text {
            "continue" => Ok(Self::Continue),
            "stop" => Ok(Self::Stop),
            _ => Err(FifoAfterPermanentError),
        }
    }
}

/// The text is neither `continue` nor `stop`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("must be `continue` or `stop`")]
pub struct FifoAfterPermanentError;

/// Between two looks at a conflict.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// The invocation fails, and SQS keeps all messages of the batch.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BatchError {
    /// The event is something else, or not as SQS sends it.
    #[error(
        "the event is not as SQS sends it, at line {line}, column {column}: is this function behind an SQS queue? Nothing was processed"
    )]
    NotSqs {
        /// Where it differs.
        line: usize,
        /// Where it differs.
        column: usize,
    },
    /// A record cannot be named in the response, and one that is not named is deleted.
    #[error(
        "record {index} of the event has no messageId, so the response could not name it: is this an SQS event? Nothing was processed"
    )]
    NoMessageId {
        /// Its place in the event, from 0.
        index: usize,
    },
    /// DynamoDB could not be reached, denied access or has no such table, and every message of the
    /// batch failed by that. As an error of the invocation, it shows in Lambda's Errors metric.
    #[error(
        "all {messages} messages of the batch failed because the store is unavailable, and come back: {reason}"
    )]
    StoreUnavailable {
        /// Messages of the batch.
        messages: usize,
        /// The error of the first.
        reason: String,
    },
}

impl<M: Mode<H::Output>, H: Handler> Consumer<M, H> {
    /// Runs `handler` for each message in this `mode` ([`Once`](crate::Once),
    /// [`Inbox`](crate::Inbox) or [`OnItem`](crate::OnItem)), keys prefixed with `namespace`: ten messages at a time,
    /// keyed by message id, half a second kept back to end well.
    pub fn new<Via>(
        mode: M,
        namespace: Namespace,
        handler: impl IntoHandler<Via, Handler = H>,
    ) -> Self {
        Self {
            mode,
            handler: handler.into_handler(),
            namespace,
            key: KeySource::default(),
            fingerprint: FingerprintSource::default(),
            concurrency: const { NonZeroUsize::new(10).unwrap() },
            conflict_wait: Duration::ZERO,
            reserve: Duration::from_millis(500),
            fallback: Duration::from_secs(300),
            time_needed: Duration::ZERO,
            fifo_after_permanent: FifoAfterPermanent::default(),
            fail_when_store_unavailable: true,
            visibility: None,
        }
    }

    /// Where a message's key comes from.
    #[must_use]
    pub fn key(self, key: KeySource) -> Self {
        Self { key, ..self }
    }

    /// Sets the part of a message that must not change under one key.
    #[must_use]
    pub fn fingerprint(self, fingerprint: FingerprintSource) -> Self {
        Self {
            fingerprint,
            ..self
        }
    }

    /// How many messages of one batch are processed at a time.
    #[must_use]
    pub fn concurrency(self, concurrency: NonZeroUsize) -> Self {
        Self {
            concurrency,
            ..self
        }
    }

    /// How long to wait, within the deadline, for another worker that holds a message's claim,
    /// to take their outcome. By default not at all: the message goes back to the queue. While it
    /// waits, the message takes up one of the [concurrency](Self::concurrency), and it claims
    /// again every 50 ms at first and every second in the end, one write unit each time.
    #[must_use]
    pub fn conflict_wait(self, conflict_wait: Duration) -> Self {
        Self {
            conflict_wait,
            ..self
        }
    }

    /// Reserves time at the end of an invocation to record outcomes and answer.
    #[must_use]
    pub fn reserve(self, reserve: Duration) -> Self {
        Self { reserve, ..self }
    }

    /// The budget of an invocation whose deadline is not known (see
    /// [`Deadline::of_invocation`]).
    #[must_use]
    pub fn fallback(self, fallback: Duration) -> Self {
        Self { fallback, ..self }
    }

    /// How long the handler takes at most, where that is known (see
    /// [`Deadline::time_needed`]): with less time left, a message is not started but goes back
    /// to the queue.
    #[must_use]
    pub fn time_needed(self, time_needed: Duration) -> Self {
        Self {
            time_needed,
            ..self
        }
    }

    /// Sets the treatment of a FIFO group's messages behind a permanent failure; by default they run.
    ///
    /// ```
    /// use sqs_once::{Consumer, Handler, Mode, sqs::FifoAfterPermanent};
    ///
    /// # fn stopping<M: Mode<H::Output>, H: Handler>(consumer: Consumer<M, H>) -> Consumer<M, H> {
    /// consumer.fifo_after_permanent(FifoAfterPermanent::Stop)
    /// # }
    /// ```
    #[must_use]
    pub fn fifo_after_permanent(self, fifo_after_permanent: FifoAfterPermanent) -> Self {
        Self {
            fifo_after_permanent,
            ..self
        }
    }

    /// Fails the invocation where every message of the batch failed because DynamoDB could not be
    /// reached, denied access or has no such table ([`BatchError::StoreUnavailable`]), so that
    /// Lambda's Errors metric shows it. On by default; throttling does not count. Visibility
    /// timeouts are set before, and the messages come back the same.
    ///
    /// ```
    /// # use sqs_once::{Consumer, Handler, Mode};
    /// # fn quiet<M: Mode<H::Output>, H: Handler>(consumer: Consumer<M, H>) -> Consumer<M, H> {
    /// consumer.fail_when_store_unavailable(false)
    /// # }
    /// ```
    #[must_use]
    pub fn fail_when_store_unavailable(self, fail_when_store_unavailable: bool) -> Self {
        Self {
            fail_when_store_unavailable,
            ..self
        }
    }

    /// Sets the visibility timeouts of failed messages. Without it, they come back when the
    /// queue's own visibility timeout is over.
    #[must_use]
    pub fn visibility(self, visibility: impl Into<Option<Visibility>>) -> Self {
        Self {
            visibility: visibility.into(),
            ..self
        }
    }

    /// The deadline of an invocation that Lambda ends at `at`.
    #[must_use]
    pub fn deadline(&self, at: Timestamp) -> Deadline {
        let deadline = Deadline::of_invocation(self.mode.now(), at, self.fallback, self.reserve);
        let time_left = deadline.time_left();
        if time_left < self.time_needed {
            tracing::warn!(
                time_left_ms = millis(time_left),
                time_needed_ms = millis(self.time_needed),
                "the function's timeout is shorter than its handler may take: raise it"
            );
        }
        deadline.time_needed(self.time_needed)
    }

    /// Processes a batch, and names in the response what has to go back to the queue. Answers
    /// before `deadline`, whatever the handler does.
    ///
    /// # Errors
    ///
    /// [`BatchError::NoMessageId`] if a record cannot be named; then nothing was processed.
    /// [`BatchError::StoreUnavailable`] if the store let every message fail.
    pub async fn process(
        self: &Arc<Self>,
        event: SqsEvent,
        deadline: Deadline,
    ) -> Result<SqsBatchResponse, BatchError> {
        let started = Instant::now();
        let mut messages = Vec::with_capacity(event.records.len());
        for (index, record) in event.records.into_iter().enumerate() {
            let message = Message::new(record, |record| {
                Identity::of(record, &self.namespace, &self.key, &self.fingerprint)
            });
            messages.push(message.ok_or(BatchError::NoMessageId { index })?);
        }
        let batch = Arc::new(Batch {
            deadline,
            started: messages.iter().map(|_| OnceLock::new()).collect(),
            processed: messages.iter().map(|_| OnceLock::new()).collect(),
            messages,
        });
        self.run_lanes(&batch).await;
        batch.close();
        let processed = batch.outcomes();
        let answer = deadline.answer();
        let dead_lettered = match &self.visibility {
            Some(visibility) => visibility.dead_letter_all(&processed, answer).await,
            None => HashSet::new(),
        };
        let (mut response, mut named) = (SqsBatchResponse::default(), HashSet::new());
        for (message, processed) in &processed {
            let settled = processed.is_success() || dead_lettered.contains(message.id());
            if !settled && named.insert(message.id()) {
                response.add_failure(message.id().as_str());
            }
        }
        if let Some(visibility) = &self.visibility {
            let now = self.mode.now();
            visibility
                .apply(&processed, &dead_lettered, now, answer)
                .await;
        }
        let count = |is: fn(&Outcome) -> bool| {
            let ran = |(_, processed): &&(_, &Processed)| matches!(processed, Processed::Ran(outcome) if is(outcome));
            processed.iter().filter(ran).count()
        };
        tracing::info!(
            messages = processed.len(),
            failed = response.batch_item_failures.len(),
            dead_lettered = dead_lettered.len(),
            lease_lost = count(|outcome| matches!(outcome, Outcome::LeaseLost)),
            completion_unrecorded =
                count(|outcome| matches!(outcome, Outcome::CompletionUnrecorded(_))),
            result_omitted =
                count(|outcome| matches!(outcome, Outcome::Done(StoredResult::Omitted(_)))),
            duration_ms = millis(started.elapsed()),
            "batch processed"
        );
        match store_unavailable(&processed) {
            Some(error) if self.fail_when_store_unavailable => Err(BatchError::StoreUnavailable {
                messages: processed.len(),
                reason: error.to_string(),
            }),
            _ => Ok(response),
        }
    }

    /// Processes the messages of a batch, as far as time allows.
    async fn run_lanes(self: &Arc<Self>, batch: &Arc<Batch>) {
        let lanes = Arc::new(Mutex::new(VecDeque::from(batch.lanes())));
        // Dropped by the last worker: one wake-up for the whole batch.
        let (working, done) = oneshot::channel::<Infallible>();
        let working = Arc::new(working);
        let mut workers = JoinSet::new();
        for _ in 0..self.concurrency.get().min(batch.messages.len()) {
            let (consumer, batch) = (Arc::clone(self), Arc::clone(batch));
            let (lanes, working) = (Arc::clone(&lanes), Arc::clone(&working));
            let worker = async move {
                let next = || {
                    lanes
                        .lock()
                        .unwrap_or_else(PoisonError::into_inner)
                        .pop_front()
                };
                while let Some(lane) = next() {
                    consumer.run_lane(&lane, &batch).await;
                }
                drop(working);
            };
            workers.spawn(worker.in_current_span());
        }
        drop(working);

        // Handlers are cut off, and their outcomes written, before this. Dropping the workers ends
        // those that can be ended.
        let _in_time = timeout_at(batch.deadline.answer(), done).await;
    }

    async fn run_lane(&self, lane: &Lane, batch: &Batch) {
        let mut before: Option<(Option<&Identity>, Processed)> = None;
        for &index in &lane.messages {
            let message = &batch.messages[index];
            let identity = message.identity().ok();
            batch.start(index);
            let processed = match (&before, lane.kind) {
                (Some((_, before)), LaneKind::FifoGroup) if self.stops_group(before) => {
                    Processed::BehindFailure
                }
                (Some((same, before)), LaneKind::SameKey) if *same == identity => before.again(),
                _ => self.run_message(message, batch.deadline).await,
            };
            let processed = self.replay(processed, message, batch.deadline).await;
            if processed.is_permanent()
                && let Some(visibility) = &self.visibility
            {
                visibility.expect(message);
            }
            if lane.messages.len() > 1 {
                before = Some((identity, processed.clone()));
            }
            batch.end(index, processed);
        }
    }

    /// Nothing behind a message of a FIFO group may run before the message itself is settled.
    fn stops_group(&self, processed: &Processed) -> bool {
        let goes_on = match self.fifo_after_permanent {
            FifoAfterPermanent::Continue => {
                processed.is_recorded_failure(self.mode.records_failures())
            }
            FifoAfterPermanent::Stop => false,
        };
        !(processed.is_success() || goes_on)
    }

    async fn run_message(&self, message: &Message, deadline: Deadline) -> Processed {
        // Bounded before it is added: a wait of ages is no point in time.
        let patience_ends = Instant::now() + self.conflict_wait.min(deadline.time_left());
        let mut pause = FIRST_PAUSE;
        loop {
            let processed = self.run_once(message, deadline).await;
            let conflict = matches!(processed, Processed::Ran(Outcome::Conflict { .. }));
            if !conflict || Instant::now() + pause > patience_ends {
                return processed;
            }
            tokio::time::sleep(pause).await;
            pause = LONGEST_PAUSE.min(pause * 2);
        }
    }

    async fn run_once(&self, message: &Message, deadline: Deadline) -> Processed {
        let Identity { key, fingerprint } = match message.identity() {
            Ok(identity) => identity.clone(),
            Err(InvalidMessage(why)) => return Processed::Invalid(why.clone()),
        };
        let operation = Operation::new(key, fingerprint, message.delivery(), deadline);
        // Reading a body is the user's code too, and may panic.
        let run = AssertUnwindSafe(async {
            match message.parse() {
                Err(InvalidMessage(why)) => Processed::Invalid(why),
                Ok(body) => Processed::Ran(
                    self.mode
                        .run(operation, |attempt| self.handler.handle(body, attempt))
                        .await,
                ),
            }
        });
        run.catch_unwind()
            .await
            .unwrap_or(Processed::Ran(Outcome::Panicked))
    }

    /// Shows a duplicate to the handler.
    async fn replay(&self, before: Processed, message: &Message, deadline: Deadline) -> Processed {
        let (Processed::Ran(Outcome::Duplicate(result)), Some(key)) = (&before, message.key())
        else {
            return before;
        };
        let stored = Stored::new(result.clone());
        let attempt = Attempt::new(key.clone(), message.delivery(), History::fresh(), deadline);
        let shown = AssertUnwindSafe(async { self.handler.on_duplicate(stored, attempt).await });
        Processed::Replayed(
            match timeout_at(deadline.stop(), shown.catch_unwind()).await {
                Ok(Ok(Ok(()))) => return before,
                Ok(Ok(Err(failure))) => failure.into(),
                Ok(Err(_panic)) => Outcome::Panicked,
                Err(_elapsed) => Outcome::OutOfTime,
            },
        )
    }
}

/// The store's error, where it let every message of a batch fail: by itself, or by the time that
/// it took.
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

/// Message ids of a log line. Each has a line of its own too, so the first hundred are enough.
fn ids(ids: &[&str]) -> String {
    ids[..ids.len().min(100)].join(" ")
}

/// A batch on its way.
struct Batch {
    messages: Vec<Message>,
    started: Vec<OnceLock<Instant>>,
    processed: Vec<OnceLock<Processed>>,
    deadline: Deadline,
}

impl Batch {
    fn lanes(&self) -> Vec<Lane> {
        let traits = self.messages.iter().map(|message| Traits {
            key: message.key(),
            fifo_group: message.fifo_group(),
            receive_count: message.receive_count(),
        });
        lanes::plan(&traits.collect::<Vec<_>>())
    }

    /// A message is in one lane, so it is started once.
    fn start(&self, index: usize) {
        let _first = self.started[index].set(Instant::now());
    }

    /// Notes what became of a message and logs it, once: after [`close`](Self::close), it is late.
    fn end(&self, index: usize, processed: Processed) -> bool {
        let started = self.started[index].get();
        let duration = started.map_or(Duration::ZERO, Instant::elapsed);
        let first = self.processed[index].set(processed).is_ok();
        if let Some(processed) = self.processed[index].get().filter(|_| first) {
            processed.log(&self.messages[index], duration);
        }
        first
    }

    /// Ends the messages that are not done by now, and logs in one line which ones the deadline
    /// kept from being done. Those that are `blocking` did not even let themselves be cut off.
    fn close(&self) {
        let (mut cut_off, mut blocking, mut not_started) = (Vec::new(), Vec::new(), Vec::new());
        for (index, message) in self.messages.iter().enumerate() {
            let is_started = self.started[index].get().is_some();
            let outcome = if is_started {
                Outcome::OutOfTime
            } else {
                Outcome::NotStarted
            };
            let is_blocking = self.end(index, Processed::Ran(outcome)) && is_started;
            let processed = self.processed[index].get();
            let id = message.id().as_str();
            match processed.and_then(Processed::outcome) {
                Some(Outcome::OutOfTime) if is_blocking => blocking.push(id),
                Some(Outcome::OutOfTime) => cut_off.push(id),
                Some(Outcome::NotStarted) => not_started.push(id),
                _ => {}
            }
        }
        let unfinished = cut_off.len() + blocking.len() + not_started.len();
        if unfinished > 0 {
            tracing::warn!(
                unfinished,
                cut_off = ids(&cut_off),
                blocking = ids(&blocking),
                not_started = ids(&not_started),
                "messages did not finish before the deadline"
            );
        }
    }

    /// The result of each message, in the batch's order.
    fn outcomes(&self) -> Vec<(&Message, &Processed)> {
        let processed = self.processed.iter().map(OnceLock::get);
        let all = self.messages.iter().zip(processed);
        all.filter_map(|(message, processed)| Some((message, processed?)))
            .collect()
    }
}

//! One batch through the mode: each message once, and the response to Lambda.

use std::{collections::HashSet, panic::AssertUnwindSafe, sync::Arc, time::Duration};

use aws_lambda_events::sqs::{SqsBatchResponse, SqsEvent};
use futures_util::FutureExt as _;
use tokio::time::{Instant, timeout_at};

use super::{
    batch::Batch,
    consumer::{Consumer, FifoAfterPermanent},
    lanes::{Lane, LaneKind},
    message::{Identity, InvalidMessage, Message},
    processed::{Processed, millis},
};
use crate::{
    deadline::Deadline,
    handler::{Attempt, Handler, History, Stored},
    once::{Mode, Operation, Outcome},
    protocol::StoredResult,
    store::StoreError,
};

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
    /// Processes a batch, and names in the response what has to go back to the queue. Answers
    /// before `deadline`, whatever the handler does.
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
        let started = Instant::now();
        let mut messages = Vec::with_capacity(event.records.len());
        for (index, record) in event.records.into_iter().enumerate() {
            let message = Message::new(record, |record| {
                Identity::of(record, &self.namespace, &self.key, &self.fingerprint)
            });
            messages.push(message.ok_or(BatchError::NoMessageId { index })?);
        }
        let batch = Arc::new(Batch::new(messages, deadline));
        let consumer = Arc::new(self.clone());
        let run_lane = move |batch: Arc<Batch>, lane: Lane| {
            let consumer = Arc::clone(&consumer);
            async move { consumer.run_lane(&lane, &batch).await }
        };
        batch.run(self.concurrency, run_lane).await;
        batch.close();
        let processed = batch.results();
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

    async fn run_lane(&self, lane: &Lane, batch: &Batch) {
        let mut before: Option<(Option<&Identity>, Processed)> = None;
        for &index in &lane.messages {
            let message = batch.message(index);
            let identity = message.identity().ok();
            batch.start(index);
            let processed = match (&before, lane.kind) {
                (Some((_, before)), LaneKind::FifoGroup) if self.stops_group(before) => {
                    Processed::BehindFailure
                }
                (Some((same, before)), LaneKind::SameKey) if *same == identity => before.again(),
                _ => self.run_message(message, batch.deadline()).await,
            };
            let processed = self.replay(processed, message, batch.deadline()).await;
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

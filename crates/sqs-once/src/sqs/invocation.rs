//! One invocation: event in, each message once, response out.

use std::{collections::HashSet, fmt, sync::Arc, time::Duration};

use aws_lambda_events::sqs::{SqsBatchResponse, SqsEvent};

use super::{
    batch::Batch, consumer::Consumer, key_source::KeySource, message::Message,
    message_outcome::MessageOutcome, process::CircuitBreaker, record::Record, report::BatchReport,
};
use crate::{
    deadline::Deadline, flawed::flawed, handler::Handler, modes::Mode, store::StoreError, system,
};

/// Why an invocation fails. SQS then keeps all messages of the batch.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
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
    /// The consumer looks up what an earlier attempt did ([`LookUp`](crate::LookUp)), and the key
    /// changes when a message is redriven. The lookup would be left out, and the effect repeated.
    #[error(
        "the consumer has a lookup, but the key `{key}` changes when a message is redriven, and then nobody looks up: set IDEMPOTENCY_KEY to what names the operation, such as `body:/orderId`; nothing was processed"
    )]
    KeyChangesOnRedrive {
        /// The key source: `message-id` or `deduplication-id`.
        key: &'static str,
    },
    /// `IDEMPOTENCY_KEY` is set, and the code sets another key ([`Consumer::key`], [`Consumer::key_by`]).
    #[error(
        "IDEMPOTENCY_KEY is `{environment}`, and the code of the function sets another key with `Consumer::key` or `Consumer::key_by`: remove one of them, so that the key stays what it was: under another key, what is done would be done again; nothing was processed"
    )]
    KeySetTwice {
        /// The value of `IDEMPOTENCY_KEY`.
        environment: String,
    },
    /// `CONSUMER_MIN_TIME_TO_START` is more than ten seconds longer than the function's timeout, or than half of it where the
    /// process runs several invocations at once. Most messages would never start.
    #[error(
        "CONSUMER_MIN_TIME_TO_START is {setting:?}, and with the function's timeout of {timeout:?} it may be at most {longest:?} (half of the timeout if AWS_LAMBDA_MAX_CONCURRENCY is above 1): lower it, or raise the timeout; nothing was processed"
    )]
    MinTimeToStart {
        /// The setting.
        setting: Duration,
        /// The function's timeout: the longest time that an invocation of this process had.
        timeout: Duration,
        /// The longest value that the setting may have.
        longest: Duration,
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

/// Shows the text, as a `main` that returns the error does.
impl fmt::Debug for BatchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl<M, H> Consumer<M, H> {
    /// Checks that the key suits the lookup, and is set once.
    pub(super) fn check_key(&self) -> Result<(), BatchError> {
        if let Some(environment) = &self.options.key_in_environment
            && environment.parse().as_ref() != Ok(&self.options.key)
        {
            return Err(BatchError::KeySetTwice {
                environment: environment.clone(),
            });
        }
        match self.options.key.changes_on_redrive() {
            Some(key) if self.asks.is_some() => Err(BatchError::KeyChangesOnRedrive { key }),
            _ => Ok(()),
        }
    }
}

impl<M: Mode<H::Output>, H: Handler> Consumer<M, H> {
    /// Processes a batch outside an invocation, and returns the batch item failures, which are the messages that go back to
    /// the queue. In a Lambda function, use [`invoke`](Self::invoke), which knows deadline and request id. Returns before `deadline` even if a handler does not. On a runtime with one thread, a handler
    /// that blocks this thread delays the return.
    ///
    /// # Errors
    ///
    /// [`BatchError::NoMessageId`] if a record cannot be named, and the errors of [`check`](Self::check); then
    /// nothing was processed.
    /// [`BatchError::StoreUnavailable`] if every message failed because of the store.
    pub async fn process(
        &self,
        event: SqsEvent,
        deadline: Deadline,
    ) -> Result<SqsBatchResponse, BatchError> {
        let records = event.records.into_iter().map(Record::from).collect();
        self.process_batch(records, deadline, None).await
    }

    /// Processes the batch of an invocation. The request id goes into its log line.
    pub(super) async fn process_batch(
        &self,
        records: Vec<Record>,
        deadline: Deadline,
        request_id: Option<&str>,
    ) -> Result<SqsBatchResponse, BatchError> {
        self.check_key()?;
        let started = system::instant();
        let begun = self.mode.now();
        let mut report = BatchReport::new(begun);
        let size = u32::try_from(records.len()).unwrap_or(u32::MAX);
        let deadline = deadline.keep_back(self.options.reserve_per_message.saturating_mul(size));
        let messages = self.read(records, deadline, request_id).await?;
        let consumer = Arc::new(self.clone());
        let all_ended = Batch::run(consumer, Arc::clone(&messages), deadline).await;
        let ended = messages.iter().zip(&all_ended);
        let mut ended: Vec<_> = ended
            .map(|(m, ended)| MessageOutcome::new(m, ended))
            .collect();
        let answer = deadline.respond_by();
        if let Some(visibility) = &self.options.visibility {
            let keyed_by_id = matches!(self.options.key, KeySource::DeduplicationId);
            let not_sent = visibility
                .dead_letter_all(&mut ended, keyed_by_id, answer)
                .await;
            report.dead_letters_not_sent(not_sent);
        }
        let response = response(&ended);
        for message in &ended {
            report.add(message);
            if let Some(observer) = &self.options.observer {
                observer.call(|observe| observe(message));
            }
        }
        if let Some(visibility) = &self.options.visibility {
            let (times, quarantine) = ((begun, self.mode.now()), self.quarantine());
            visibility.apply(&ended, times, quarantine, answer).await;
        }
        report.log(
            response.batch_item_failures.len(),
            system::elapsed(started),
            self.circuit(),
            self.options.metrics.as_ref(),
            request_id,
        );
        match store_unavailable(&ended) {
            Some(error) if self.options.fail_when_store_unavailable => {
                Err(BatchError::StoreUnavailable {
                    messages: ended.len(),
                    reason: error.to_string(),
                })
            }
            _ => Ok(response),
        }
    }

    /// Turns records into messages. Bodies that are read in the first half of the time get their keys here.
    async fn read(
        &self,
        records: Vec<Record>,
        deadline: Deadline,
        request_id: Option<&str>,
    ) -> Result<Arc<[Message]>, BatchError> {
        let (sources, request_id) = (self.identity_sources(), request_id.map(Arc::from));
        let reads_s3 = self.options.s3_bodies.is_some();
        let mut messages = Vec::with_capacity(records.len());
        let kept_for_handlers = deadline.time_left() / 2;
        for (index, record) in records.into_iter().enumerate() {
            let mut message =
                Message::new(record, request_id.as_ref(), self.options.envelope, reads_s3)
                    .ok_or(BatchError::NoMessageId { index })?;
            // Chains need keys. But if keys are slow to make, they must not use up the time of the other
            // messages, so the rest get their keys when they run.
            if deadline.time_left() >= kept_for_handlers {
                if index > 0 {
                    // Give other invocations of the process a chance to run.
                    tokio::task::yield_now().await;
                }
                message.identify_body(&sources);
            }
            messages.push(message);
        }
        Ok(messages.into())
    }

    /// Returns the state of the circuit breaker, unless it is closed.
    fn circuit(&self) -> Option<&'static str> {
        let breaker = self.process.breaker.as_ref();
        breaker
            .is_some_and(CircuitBreaker::is_open)
            .then_some("open")
    }
}

/// Builds the response, which names each message that goes back to the queue once.
fn response(ended: &[MessageOutcome<'_>]) -> SqsBatchResponse {
    let (mut response, mut named) = (SqsBatchResponse::default(), HashSet::new());
    for message in ended
        .iter()
        .skip(usize::from(flawed("the response omits a message")))
    {
        if !message.is_settled() && named.insert(message.message_id) {
            response.add_failure(message.message_id);
        }
    }
    response
}

/// Returns the store's error, if every message of the batch failed because of it or had no time left
/// afterwards.
fn store_unavailable<'a>(batch: &[MessageOutcome<'a>]) -> Option<&'a StoreError> {
    let mut first = None;
    for MessageOutcome { ended, .. } in batch {
        match ended.store_unavailable() {
            Some(error) => first = first.or(Some(error)),
            None if ended.is_not_started() => {}
            None => return None,
        }
    }
    first
}

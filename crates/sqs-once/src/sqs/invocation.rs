//! One invocation: reads the event, processes each message once, builds the response.

use std::{collections::HashSet, sync::Arc};

use aws_lambda_events::sqs::{SqsBatchResponse, SqsEvent};

use super::{
    batch::Batch, batch_error::BatchError, consumer::Consumer, event::with_ids,
    key_source::KeySource, message::Message, message_outcome::MessageOutcome,
    process::CircuitBreaker, report::BatchReport,
};
use crate::{
    deadline::Deadline, flawed::flawed, handler::Handler, modes::Mode, store::StoreError, system,
};

impl<M, H> Consumer<M, H> {
    /// Checks that the key suits the lookup and is set only once.
    pub(crate) fn check_key(&self) -> Result<(), BatchError> {
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
    /// Processes a batch outside an invocation. Returns the batch item failures: the messages that go back to the queue. In
    /// a Lambda function, use [`invoke`](Self::invoke), which knows the deadline and the request id. `process` returns
    /// before `deadline` even if a handler doesn't, unless the handler blocks the only thread of the runtime.
    ///
    /// # Errors
    ///
    /// Before it processes anything, returns [`BatchError::NoMessageId`] if a message has no id, or an error of
    /// [`check`](Self::check). Afterwards, returns [`BatchError::StoreUnavailable`] if every message failed because of the
    /// store.
    pub async fn process(
        &self,
        event: SqsEvent,
        deadline: Deadline,
    ) -> Result<SqsBatchResponse, BatchError> {
        let messages = with_ids(event.records.into_iter().map(Message::new))?;
        self.process_batch(messages, deadline, None).await
    }

    /// Processes the batch of an invocation. The request id goes into its log line.
    pub(super) async fn process_batch(
        &self,
        messages: Vec<Message>,
        deadline: Deadline,
        request_id: Option<&str>,
    ) -> Result<SqsBatchResponse, BatchError> {
        self.check_key()?;
        let started = system::instant();
        let begun = self.mode.now();
        let mut report = BatchReport::new(begun);
        let size = u32::try_from(messages.len()).unwrap_or(u32::MAX);
        let deadline = deadline.keep_back(self.options.reserve_per_message.saturating_mul(size));
        let messages = self.read(messages, deadline, request_id).await;
        let consumer = Arc::new(self.clone());
        // The order matters: first the records, then the copies, then the response, because it acknowledges confirmed copies
        // only. The timeouts come last, because without them a message only waits longer.
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

    /// Opens the messages. Makes keys only during the first half of the time. Later messages get their keys when they run.
    async fn read(
        &self,
        mut messages: Vec<Message>,
        deadline: Deadline,
        request_id: Option<&str>,
    ) -> Arc<[Message]> {
        let (sources, request_id) = (self.identity_sources(), request_id.map(Arc::from));
        let reads_s3 = self.options.s3_bodies.is_some();
        let kept_for_handlers = deadline.time_left() / 2;
        for (index, message) in messages.iter_mut().enumerate() {
            message.in_invocation(request_id.as_ref());
            message.open(self.options.envelope, reads_s3);
            // Chains need keys. But slow keys must not use up the time of the other messages, so the rest get their keys
            // when they run.
            if deadline.time_left() >= kept_for_handlers {
                if index > 0 {
                    // Give other invocations of the process a chance to run.
                    tokio::task::yield_now().await;
                }
                message.identify_body(&sources);
            }
        }
        messages.into()
    }

    /// Returns the state of the circuit breaker, unless it is closed.
    fn circuit(&self) -> Option<&'static str> {
        let breaker = self.process.breaker.as_ref();
        breaker
            .is_some_and(CircuitBreaker::is_open)
            .then_some("open")
    }
}

/// Builds the response, which names every message that goes back to the queue, each only once.
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

/// Returns the store's error, if every message of the batch failed because of the store or had no time left afterwards.
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

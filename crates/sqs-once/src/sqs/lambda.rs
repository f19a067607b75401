//! [`Consumer`] as a `tower` service, and the loop that asks Lambda for batches.

use std::task::{Context, Poll};

use aws_lambda_events::sqs::{SqsBatchResponse, SqsEvent};
use lambda_runtime::{BoxFuture, Context as Invocation, Diagnostic, Error, LambdaEvent, Service};
use serde_json::value::RawValue;

use super::{BatchError, Consumer, event, message::Message};
use crate::{handler::Handler, modes::Mode, protocol::Timestamp, telemetry};

/// Runs `consumer` as a Lambda function, until Lambda ends the process.
///
/// Processes one invocation at a time, or as many as `AWS_LAMBDA_MAX_CONCURRENCY` says (Lambda Managed
/// Instances).
///
/// Calls [`check`](Consumer::check), then `lambda_runtime::run_concurrent(consumer)`. In your own `main`, use
/// [`Consumer::invoke`]. To add layers around a batch, see [`Consumer`'s implementation of
/// `Service`](Consumer#impl-Service<LambdaEvent<Box<RawValue>>>-for-Consumer<M,+H>); around a message, see
/// [`Handler::layer`].
///
/// # Errors
///
/// Returns the errors of [`check`](Consumer::check), or an error if the Lambda Runtime API can't be reached.
///
/// # Panics
///
/// Panics if a variable of the Lambda environment is missing, such as `AWS_LAMBDA_RUNTIME_API` or `AWS_LAMBDA_FUNCTION_NAME`.
///
/// ```no_run
/// # use sqs_once::{Consumer, Handler, Mode};
/// # async fn main_<M: Mode<H::Output>, H: Handler>(consumer: Consumer<M, H>) -> Result<(), lambda_runtime::Error> {
/// sqs_once::telemetry::init();
/// sqs_once::run(consumer).await
/// # }
/// ```
pub async fn run<M: Mode<H::Output>, H: Handler>(consumer: Consumer<M, H>) -> Result<(), Error> {
    consumer.check()?;
    lambda_runtime::run_concurrent(consumer).await
}

impl<M: Mode<H::Output>, H: Handler> Consumer<M, H> {
    /// Processes one invocation, for a function that already has a `main`:
    ///
    /// ```no_run
    /// use lambda_runtime::{Error, LambdaEvent, service_fn};
    /// # use sqs_once::{Consumer, Handler, Mode};
    ///
    /// # async fn main_<M: Mode<H::Output>, H: Handler>(consumer: Consumer<M, H>) -> Result<(), Error> {
    /// let consumer = &consumer;
    /// consumer.check()?;
    /// lambda_runtime::run(service_fn(|event| consumer.invoke(event))).await
    /// # }
    /// ```
    ///
    /// Deadline, request id and log lines are as with [`run`](crate::run). There is one difference. A message that doesn't
    /// fit into an [`SqsEvent`] fails the whole invocation, and `lambda_runtime` logs an error that may quote the event.
    /// With the [`Service`], which takes the raw event, only that message fails.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`process`](Self::process), or [`BatchError::MinTimeToStart`].
    pub async fn invoke(
        &self,
        event: LambdaEvent<SqsEvent>,
    ) -> Result<SqsBatchResponse, BatchError> {
        let messages = event.payload.records.into_iter().map(Message::new);
        let messages = event::with_ids(messages)?;
        // Boxed, because the compiler gives up on a future that is nested too deeply.
        Box::pin(self.process_invocation(messages, &event.context)).await
    }

    /// Checks that the key is set in only one place and suits the lookup. [`run`](crate::run) calls this. Call it yourself before
    /// the first [`invoke`](Self::invoke), so that a mistake shows at the start and not in every batch.
    ///
    /// Logs a warning if the function was built with `panic = "abort"`. A panic in one message then ends the process, and
    /// every message of the batch is received again. Logs another if no subscriber has
    /// [`telemetry::layer`](crate::telemetry::layer), because the runbook's queries read the lines that it writes.
    ///
    /// # Errors
    ///
    /// Returns [`BatchError::KeyChangesOnRedrive`] or [`BatchError::KeySetTwice`].
    pub fn check(&self) -> Result<(), BatchError> {
        self.warn_once();
        self.check_key()
    }

    fn warn_once(&self) {
        self.process.has_warned.call_once(|| {
            if cfg!(panic = "abort") {
                tracing::warn!(
                    "built with panic = \"abort\": a panic ends the process and fails the whole batch; set panic = \"unwind\" in the build profile"
                );
            }
            telemetry::warn_of_other_subscriber();
        });
    }

    async fn process_invocation(
        &self,
        messages: Vec<Message>,
        invocation: &Invocation,
    ) -> Result<SqsBatchResponse, BatchError> {
        self.warn_once();
        let deadline = self.deadline(Timestamp::from_millis(invocation.deadline));
        let deadline = self.check_min_time(deadline).inspect_err(|error| {
            tracing::error!(%error, "the messages go back to the queue");
        })?;
        self.process_batch(messages, deadline, Some(&invocation.request_id))
            .await
    }
}

/// Processes one invocation. Clones share mode and handler, so one consumer serves concurrent invocations,
/// and you can wrap it in `tower` layers.
///
/// The request is the event's raw JSON: what an event source mapping sends, or the bare list of messages that
/// an EventBridge pipe sends. The Lambda runtime would log the payload of an event that it can't parse;
/// [`BatchError::NotSqs`] reports such an event without its payload. If a message has an id but can't be read,
/// only this message fails: permanently, with the outcome `invalid`.
///
/// A layer that cuts off an invocation has the same effect as a crash: messages in progress are received again,
/// and run when their leases have ended. To limit an invocation, set the function's timeout.
///
/// ```no_run
/// use lambda_runtime::tower::{ServiceBuilder, ServiceExt as _};
/// use lambda_runtime::{Error, LambdaEvent};
/// use serde_json::value::RawValue;
/// use sqs_once::{Consumer, Handler, Mode, telemetry};
///
/// # async fn main_<M: Mode<H::Output>, H: Handler>(consumer: Consumer<M, H>) -> Result<(), Error> {
/// telemetry::init();
/// let service = ServiceBuilder::new()
///     .map_request(|event: LambdaEvent<Box<RawValue>>| {
///         tracing::info!(bytes = event.payload.get().len(), "event received");
///         event
///     })
///     .service(consumer);
/// lambda_runtime::run_concurrent(service).await
/// # }
/// ```
///
/// # Graceful shutdown
///
/// Lambda sends SIGTERM before it ends a process, but only if an extension is registered. The feature
/// `graceful-shutdown` of `lambda_runtime` registers one and runs a hook, which can flush spans for example:
///
/// ```toml
/// lambda_runtime = { version = "1.5", default-features = false, features = ["graceful-shutdown"] }
/// ```
///
/// ```ignore (needs a feature of lambda_runtime that this crate does not enable)
/// lambda_runtime::spawn_graceful_shutdown_handler(|| async move {
///     let _unsent = tracer_provider.shutdown();
/// })
/// .await;
/// sqs_once::run(consumer).await
/// ```
impl<M: Mode<H::Output>, H: Handler> Service<LambdaEvent<Box<RawValue>>> for Consumer<M, H> {
    type Response = SqsBatchResponse;
    type Error = BatchError;
    type Future = BoxFuture<'static, Result<SqsBatchResponse, BatchError>>;

    /// Always ready, because a batch limits its concurrent messages itself.
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BatchError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, event: LambdaEvent<Box<RawValue>>) -> Self::Future {
        let consumer = self.clone();
        Box::pin(async move {
            let LambdaEvent { payload, context } = event;
            let messages = event::read(payload.get())?;
            // The messages have their own copies of the bodies.
            drop(payload);
            consumer.process_invocation(messages, &context).await
        })
    }
}

impl From<BatchError> for Diagnostic {
    fn from(error: BatchError) -> Self {
        let error_type = match error {
            BatchError::StoreUnavailable { .. } => "StoreUnavailable",
            _ => "BatchError",
        };
        Self {
            error_type: error_type.into(),
            error_message: error.to_string(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        num::NonZeroUsize,
        sync::atomic::{AtomicUsize, Ordering::SeqCst},
        time::Duration,
    };

    use lambda_runtime::tower::{ServiceBuilder, ServiceExt as _};
    use serde_json::json;

    use super::*;
    use crate::{
        handler::{Attempt, Failure},
        modes::Once,
        protocol::Namespace,
        sqs::Concurrency,
        store::MemoryStore,
    };

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Handler for Count {
        type Message = u64;
        type Output = ();

        async fn handle(&self, _: u64, _: Attempt) -> Result<(), Failure> {
            self.0.fetch_add(1, SeqCst);
            Ok(())
        }
    }

    fn consumer() -> Consumer<Once<MemoryStore>, Count> {
        let once = Once::new(MemoryStore::default());
        Consumer::without_aws(once, Namespace::new("test").unwrap(), Count::default())
    }

    fn event(payload: &serde_json::Value) -> LambdaEvent<Box<RawValue>> {
        let payload = serde_json::value::to_raw_value(payload).unwrap();
        LambdaEvent::new(payload, lambda_runtime::Context::default())
    }

    fn two_messages() -> LambdaEvent<Box<RawValue>> {
        event(&json!({"Records": [
            {"messageId": "m-1", "body": "1"},
            {"messageId": "m-2", "body": "not JSON"},
        ]}))
    }

    #[tokio::test]
    async fn service_processes_a_batch() {
        let response = consumer().oneshot(two_messages()).await.unwrap();
        let failed = response.batch_item_failures;
        assert_eq!(failed.len(), 1);
        assert_eq!(failed[0].item_identifier, "m-2");
    }

    #[tokio::test]
    async fn timeout_below_min_time_fails_the_invocation() {
        // Without a deadline, the consumer assumes a timeout of 300 s.
        let consumer = consumer().min_time_to_start(Duration::from_secs(311));
        let mut refused = consumer.clone();
        refused.options.min_time_divisor = Some(1);
        let error = refused.oneshot(two_messages()).await.unwrap_err();
        assert!(
            matches!(error, BatchError::MinTimeToStart { .. }),
            "{error}"
        );
        assert_eq!(consumer.handler.0.load(SeqCst), 0);
        // The default in the code is ignored.
        consumer.clone().oneshot(two_messages()).await.unwrap();
        assert_eq!(consumer.handler.0.load(SeqCst), 1);
    }

    /// Notes how many handlers run at a time.
    #[derive(Default)]
    struct Crowd {
        running: AtomicUsize,
        most: AtomicUsize,
    }

    impl Handler for Crowd {
        type Message = u64;
        type Output = ();

        async fn handle(&self, _: u64, _: Attempt) -> Result<(), Failure> {
            let running = self.running.fetch_add(1, SeqCst) + 1;
            self.most.fetch_max(running, SeqCst);
            tokio::time::sleep(Duration::from_secs(1)).await;
            self.running.fetch_sub(1, SeqCst);
            Ok(())
        }
    }

    #[tokio::test(start_paused = true)]
    async fn handlers_beyond_the_memory_wait() {
        let record = |n| json!({"messageId": format!("m-{n}"), "body": "1"});
        let records: Vec<_> = (0..40).map(record).collect();
        let most = NonZeroUsize::new(30).unwrap();
        for (memory, at_a_time) in [(0, 10), (usize::MAX, 30)] {
            let once = Once::new(MemoryStore::default());
            let namespace = Namespace::new("test").unwrap();
            let mut consumer = Consumer::without_aws(once, namespace, Crowd::default());
            consumer.options.concurrency = Concurrency::within_memory(most, memory);
            let event = event(&json!({ "Records": records }));
            consumer.clone().oneshot(event).await.unwrap();
            assert_eq!(consumer.handler.most.load(SeqCst), at_a_time);
        }
    }

    #[tokio::test]
    async fn clones_share_records_and_handler() {
        let consumer = consumer();
        for _ in 0..2 {
            consumer.clone().oneshot(two_messages()).await.unwrap();
        }
        assert_eq!(consumer.handler.0.load(SeqCst), 1);
    }

    #[tokio::test]
    async fn layers_go_around_the_service() {
        let batches = AtomicUsize::new(0);
        let counting = ServiceBuilder::new().map_request(|event| {
            batches.fetch_add(1, SeqCst);
            event
        });
        let service = counting.service(consumer());
        service.oneshot(two_messages()).await.unwrap();
        assert_eq!(batches.load(SeqCst), 1);
    }

    #[tokio::test]
    async fn event_of_another_source_is_reported_without_payload() {
        for other in [
            json!({"Records": "SECRET"}),
            json!({"Records": null}),
            json!("SECRET"),
        ] {
            let error = consumer().oneshot(event(&other)).await.unwrap_err();
            assert!(matches!(error, BatchError::NotSqs { .. }), "{error}");
            assert!(!error.to_string().contains("SECRET"), "{error}");
        }
    }

    /// Returns the ids that the response to this event names, and how many times the handler ran.
    async fn failed(payload: &serde_json::Value) -> Result<(Vec<String>, usize), BatchError> {
        let consumer = consumer();
        let response = consumer.clone().oneshot(event(payload)).await?;
        let failures = response.batch_item_failures.into_iter();
        let ids = failures.map(|failure| failure.item_identifier).collect();
        Ok((ids, consumer.handler.0.load(SeqCst)))
    }

    #[tokio::test]
    async fn list_of_records_is_an_event_of_a_pipe() {
        let records = json!([
            {"messageId": "m-1", "body": "1"},
            {"messageId": "m-2", "body": "not JSON"},
        ]);
        assert_eq!(failed(&records).await, Ok((vec!["m-2".into()], 1)));
        assert_eq!(failed(&json!([])).await, Ok((vec![], 0)));
    }

    #[tokio::test]
    async fn message_of_odd_shape_fails_alone() {
        let attribute = |value| json!({"messageAttributes": {"a": value}});
        for odd in [
            attribute(json!({"binaryValue": "no base64?", "dataType": "Binary"})),
            attribute(json!({"stringValue": "1", "binaryValue": "?", "dataType": "Number"})),
            attribute(json!({"stringValue": "x", "stringListValues": null, "dataType": "String"})),
            attribute(json!({"stringValue": "x", "binaryListValues": null, "dataType": "String"})),
            attribute(json!({"stringValue": 7, "dataType": "Number"})),
            attribute(json!(null)),
            attribute(json!("SECRET")),
            json!({"messageAttributes": []}),
            json!({"attributes": {"ApproximateReceiveCount": 1}}),
            json!({"attributes": {"SentTimestamp": null}}),
            json!({"attributes": "SECRET"}),
            json!({"body": {"orderId": "SECRET"}}),
            json!({"body": 5}),
            json!({"body": null}),
            json!({"receiptHandle": 1}),
            json!({"eventSourceARN": ["SECRET"]}),
            json!({"awsRegion": 1}),
            json!({"md5OfBody": {}}),
        ] {
            let mut records: Vec<_> = (0..10)
                .map(|n| json!({"messageId": format!("m-{n}"), "body": n.to_string()}))
                .collect();
            let odd = odd.as_object().unwrap().clone();
            records[4].as_object_mut().unwrap().extend(odd);
            let record = records[4].to_string();
            let failed = failed(&json!({ "Records": records })).await;
            assert_eq!(failed, Ok((vec!["m-4".into()], 9)), "{record}");
        }
    }
}

//! [`run`]: asks Lambda for batches, and answers.

use std::sync::Arc;

use aws_lambda_events::sqs::SqsEvent;
use lambda_runtime::{Diagnostic, Error, LambdaEvent, service_fn};
use serde_json::value::RawValue;

use super::{BatchError, Consumer};
use crate::{handler::Handler, once::Mode, protocol::Timestamp};

/// Runs `consumer` as a Lambda function, until Lambda ends the process.
///
/// One invocation at a time, or as many as `AWS_LAMBDA_MAX_CONCURRENCY` says (Lambda Managed
/// Instances).
///
/// # Errors
///
/// If the Lambda runtime API is out of reach.
///
/// # Panics
///
/// If a variable of the Lambda environment is missing: `AWS_LAMBDA_RUNTIME_API`,
/// `AWS_LAMBDA_FUNCTION_NAME` and others.
///
/// ```no_run
/// # use sqs_once::{Consumer, Handler, Mode};
/// # async fn main_<M: Mode<H::Output>, H: Handler>(consumer: Consumer<M, H>) -> Result<(), lambda_runtime::Error> {
/// sqs_once::telemetry::init();
/// sqs_once::run(consumer).await
/// # }
/// ```
pub async fn run<M: Mode<H::Output>, H: Handler>(consumer: Consumer<M, H>) -> Result<(), Error> {
    let consumer = Arc::new(consumer);
    // Not LambdaEvent<SqsEvent>: the runtime would log an event that it cannot parse, payload included.
    lambda_runtime::run_concurrent(service_fn(move |event: LambdaEvent<Box<RawValue>>| {
        let consumer = Arc::clone(&consumer);
        async move {
            let deadline = consumer.deadline(Timestamp::from_millis(event.context.deadline));
            let event = serde_json::from_str::<SqsEvent>(event.payload.get());
            let event = event.map_err(|error| BatchError::NotSqs {
                line: error.line(),
                column: error.column(),
            })?;
            // Boxed: with the runtime's futures around it, the compiler would give up on its depth.
            Box::pin(consumer.process(event, deadline)).await
        }
    }))
    .await
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

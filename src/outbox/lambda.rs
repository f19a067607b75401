//! [`Relay`] as a `tower` service, and the loop that asks Lambda for batches.

use std::task::{Context, Poll};

use aws_lambda_events::{dynamodb::Event, streams::DynamoDbEventResponse};
use lambda_runtime::{BoxFuture, Diagnostic, Error, LambdaEvent, Service};
use serde_json::value::RawValue;

use super::Relay;
use crate::protocol::Timestamp;

/// The reason why a relay could not read a batch.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RelayError {
    /// The event is not a batch of a DynamoDB stream.
    #[error(
        "the event is not a batch of a DynamoDB stream (line {line}, column {column}): make the stream of the outbox table the event source"
    )]
    NotAStream {
        /// Line of the error, from 1.
        line: usize,
        /// Column of the error, from 1.
        column: usize,
    },
}

/// Runs `relay` as a Lambda function, until Lambda ends the process.
///
/// # Errors
///
/// If the Lambda runtime API is out of reach.
///
/// ```no_run
/// use sqs_once::{Settings, outbox};
///
/// # async fn main_() -> Result<(), lambda_runtime::Error> {
/// outbox::run(Settings::from_env().relay().await?).await
/// # }
/// ```
pub async fn run(relay: Relay) -> Result<(), Error> {
    lambda_runtime::run_concurrent(relay).await
}

/// The request is the raw JSON of the event: the Lambda runtime logs the payload of an event that it
/// can't parse.
impl Service<LambdaEvent<Box<RawValue>>> for Relay {
    type Response = DynamoDbEventResponse;
    type Error = RelayError;
    type Future = BoxFuture<'static, Result<DynamoDbEventResponse, RelayError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), RelayError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, event: LambdaEvent<Box<RawValue>>) -> Self::Future {
        let relay = self.clone();
        Box::pin(async move {
            let LambdaEvent { payload, context } = event;
            let event = serde_json::from_str::<Event>(payload.get());
            let event = event.map_err(|error| RelayError::NotAStream {
                line: error.line(),
                column: error.column(),
            })?;
            let deadline = relay.deadline(Timestamp::from_millis(context.deadline));
            let request_id = Some(context.request_id.as_str());
            Ok(relay.process_batch(event, deadline, request_id).await)
        })
    }
}

impl From<RelayError> for Diagnostic {
    fn from(error: RelayError) -> Self {
        Self {
            error_type: "RelayError".into(),
            error_message: error.to_string(),
        }
    }
}

//! The relays as `tower` services, and the loop that asks Lambda for invocations.

use std::task::{Context, Poll};

use aws_lambda_events::{dynamodb::Event, streams::DynamoDbEventResponse};
use lambda_runtime::{BoxFuture, Diagnostic, Error, LambdaEvent, Service};
use serde::Serialize;
use serde_json::value::RawValue;

use crate::Relay;
#[cfg(feature = "postgres")]
use crate::{PostgresRelay, Relayed};
use sqs_once::protocol::Timestamp;

/// Why an invocation of a relay failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RelayError {
    /// The event is not a batch from a DynamoDB stream.
    #[error(
        "the event is not a batch of a DynamoDB stream (line {line}, column {column}): make the stream of the outbox table the event source"
    )]
    NotAStream {
        /// Line of the parse error, from 1.
        line: usize,
        /// Column of the parse error, from 1.
        column: usize,
    },
    /// PostgreSQL failed. Events that were not sent stay in the table, and some may be sent again.
    #[error("the outbox could not be read or written to its end: {reason}")]
    Database {
        /// Names what failed, without payload.
        reason: String,
    },
}

/// Runs `relay`, a [`Relay`] or a `PostgresRelay`, as a Lambda function, until Lambda ends the process.
///
/// # Errors
///
/// Returns an error if the Lambda Runtime API can't be reached.
///
/// ```no_run
/// use sqs_once::Settings;
/// use sqs_once_outbox::Relay;
///
/// # async fn main_() -> Result<(), lambda_runtime::Error> {
/// sqs_once_outbox::run(Relay::from_settings(Settings::from_env()).await?).await
/// # }
/// ```
pub async fn run<R>(relay: R) -> Result<(), Error>
where
    R: Service<LambdaEvent<Box<RawValue>>, Error = RelayError> + Clone + Send + 'static,
    R::Response: Serialize + Send,
    R::Future: Send,
{
    lambda_runtime::run_concurrent(relay).await
}

/// The request is the event's raw JSON, because the Lambda runtime would log the payload of an event that it can't parse.
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
            let event = serde_json::from_str::<Event>(payload.get()).map_err(|error| {
                RelayError::NotAStream {
                    line: error.line(),
                    column: error.column(),
                }
            })?;
            let deadline = relay.deadline(Timestamp::from_millis(context.deadline));
            let request_id = Some(context.request_id.as_str());
            Ok(relay.process_batch(event, deadline, request_id).await)
        })
    }
}

/// Any event, such as one from a schedule, makes the relay send all published events that are due.
#[cfg(feature = "postgres")]
impl Service<LambdaEvent<Box<RawValue>>> for PostgresRelay {
    type Response = Relayed;
    type Error = RelayError;
    type Future = BoxFuture<'static, Result<Relayed, RelayError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), RelayError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, event: LambdaEvent<Box<RawValue>>) -> Self::Future {
        let relay = self.clone();
        Box::pin(async move {
            let deadline = relay.deadline(Timestamp::from_millis(event.context.deadline));
            let request_id = Some(event.context.request_id.as_str());
            relay.send_all_due(deadline, request_id).await
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

//! Starts one execution of an AWS Lambda durable function for each order, and stores the execution's ARN
//! as the order's output. A durable function with a queue as its own event source would start an execution
//! for each delivery. `docs/durable-functions.md` says when this is the right choice.
//!
//! The name of the execution is made from the key, so a repeated start is harmless: for a known name and the
//! same payload, Lambda returns the execution that exists. The handler therefore ignores `attempt.prior()`,
//! which it sees after a start whose response was lost.
//!
//! Lambda runs the execution asynchronously (`InvocationType::Event`). A synchronous call would keep this
//! function, its lease and its bill running until the execution ends, for 15 minutes at most. So the message is
//! done when the execution exists, and not when it has succeeded. Give the durable function a dead-letter
//! queue, and read the state of an execution with `aws lambda get-durable-execution`.
//!
//! Not tried on AWS. `tests/cloud/start_durable.rs` runs this consumer against a Lambda API that starts
//! executions as AWS documents it.
//!
//! Deploy it with its queue, its role and its table, for a durable function that you have. That function
//! must keep its executions for 20 days, like the records here: a message can wait in the queue and its
//! dead-letter queue for almost as long, and Lambda starts a second execution under a name that it has forgotten.
//!
//! `make` installs cargo-lambda into `.venv/bin`: `export PATH="$PWD/.venv/bin:$PATH"`. A stack name and a
//! `--config-env` of its own keep this stack from replacing that of the sample.
//!
//! ```sh
//! cargo lambda build --release --arm64 --package programs --bin start_durable --features durable
//! sam deploy --guided --stack-name start-durable --config-env start-durable \
//!     --template-file examples/start_durable.template.yaml
//! ```

use aws_sdk_lambda::{
    Client, error::SdkError, operation::invoke::InvokeError, primitives::Blob,
    types::InvocationType,
};
use serde_json::Value;
use sqs_once::{
    Attempt, Consumer, Failure, Handler, Once, Settings, SettingsError, protocol::Fingerprint,
    store::AnyStore, telemetry,
};

struct StartDurable {
    lambda: Client,
    function: String,
}

impl StartDurable {
    fn read(settings: &mut Settings, lambda: Client) -> Result<Self, SettingsError> {
        let meaning = "durable function, with its version or alias";
        let function = settings.required("DURABLE_FUNCTION", meaning, qualified)?;
        Ok(Self { lambda, function })
    }
}

/// Lambda rejects durable invocations without a version or alias: an execution stays on the version that
/// started it. Accepts `name:alias`, an ARN, or the end of one.
fn qualified(text: &str) -> Result<String, &'static str> {
    let name = text.rsplit_once("function:").map_or(text, |(_, name)| name);
    match name.split_once(':') {
        Some((name, qualifier)) if !name.is_empty() && !qualifier.is_empty() => Ok(text.to_owned()),
        _ => Err("must end with a version or an alias, as `name:live`"),
    }
}

impl Handler for StartDurable {
    type Message = Value;
    type Output = String; // the execution's ARN

    async fn handle(&self, order: Value, attempt: Attempt) -> Result<String, Failure> {
        // 64 hex digits. A name has up to 64 characters of `[A-Za-z0-9-_]`, and a key may have any.
        let name = Fingerprint::of(attempt.key().as_str().as_bytes());
        let request = self
            .lambda
            .invoke()
            .function_name(&self.function)
            .invocation_type(InvocationType::Event)
            .durable_execution_name(name.as_str())
            // Sorts the members, so formatting and order of the producer's JSON make no different payload.
            .payload(Blob::new(serde_json::to_vec(&order)?));
        let started = request.send().await.map_err(failure)?;
        started.durable_execution_arn.ok_or_else(|| {
            // A retry would invoke it again: without an execution, nobody recognizes the name.
            Failure::permanent("the function was invoked, and is not durable")
        })
    }
}

/// A permanent failure if Lambda will never start this order. Every other start may have happened, or its
/// reason can pass: a throttled account, a missing permission, a deleted alias.
fn failure(error: SdkError<InvokeError>) -> Failure {
    match error.as_service_error() {
        Some(InvokeError::DurableExecutionAlreadyStartedException(_)) => {
            Failure::permanent("this key has an execution with a different payload")
        }
        Some(InvokeError::RequestTooLargeException(_)) => {
            Failure::permanent("the order is larger than an asynchronous payload may be")
        }
        _ => Failure::retryable(error),
    }
}

/// The consumer, with these settings.
pub async fn consumer(
    mut settings: Settings,
    lambda: Client,
) -> Result<Consumer<Once<AnyStore>, impl Handler<Output = String>>, SettingsError> {
    settings.set_default("IDEMPOTENCY_NAMESPACE", "orders");
    // An order that was sent twice has two message ids, and one order id.
    settings.set_default("IDEMPOTENCY_KEY", "body:/orderId");
    // The time limit of a request in `sqs_once::aws::config`.
    settings.set_default("CONSUMER_MIN_TIME_TO_START", "5s");
    let handler = StartDurable::read(&mut settings, lambda);
    settings.once(handler).await
}

#[tokio::main]
async fn main() -> Result<(), lambda_runtime::Error> {
    telemetry::init();
    let mut settings = Settings::from_env();
    let lambda = Client::new(&settings.config().await);
    sqs_once::run(consumer(settings, lambda).await?).await
}

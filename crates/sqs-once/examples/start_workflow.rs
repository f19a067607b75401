//! A dispatcher: starts one Step Functions workflow for each operation. The execution's name is the call key, and its ARN the output.
//!
//! `STATE_MACHINE_ARN` names a STANDARD workflow. The role needs `states:DescribeStateMachine` and `states:StartExecution` on it, and
//! `states:DescribeExecution` on its executions.

use aws_sdk_sfn::{
    Client,
    operation::start_execution::StartExecutionError,
    types::{IncludedData, StateMachineType},
};
use serde_json::Value;
use sqs_once::{Attempt, Failure, Settings, handler_with, telemetry};

pub(crate) struct Workflow {
    client: Client,
    state_machine: String,
    /// First part of its executions' ARNs.
    executions: String,
}

impl Workflow {
    /// Takes the ARN of a state machine, of a version, or of an alias.
    pub(crate) fn new(client: Client, state_machine: &str) -> Result<Self, &'static str> {
        let (account, machine) = (state_machine.split_once(":stateMachine:"))
            .ok_or("must be the ARN of a state machine")?;
        let name = machine.split_once(':').map_or(machine, |(name, _)| name);
        Ok(Self {
            client,
            state_machine: state_machine.to_owned(),
            executions: format!("{account}:execution:{name}"),
        })
    }

    /// An express workflow would start again under the same name.
    pub(crate) async fn check(&self) -> Result<(), lambda_runtime::Error> {
        let request = self.client.describe_state_machine();
        let machine = request
            .state_machine_arn(&self.state_machine)
            // We don't read the definition, which may be encrypted.
            .included_data(IncludedData::MetadataOnly);
        match machine.send().await?.r#type {
            StateMachineType::Standard => Ok(()),
            other => Err(format!("STATE_MACHINE_ARN: {other} workflows don't start once").into()),
        }
    }

    /// Returns the execution that already has the name, if an earlier attempt started it for this order. An execution that was
    /// started for another payload may have outlived its key's record.
    async fn started(&self, execution: String, input: &str) -> Result<String, Failure> {
        let request = self.client.describe_execution().execution_arn(&execution);
        match request.send().await?.input() {
            Some(other) if other != input => Err(Failure::permanent(format!(
                "{execution} was started for another payload"
            ))),
            _ => Ok(execution),
        }
    }
}

pub(crate) async fn start(
    workflow: &Workflow,
    order: Value,
    attempt: Attempt,
) -> Result<String, Failure> {
    let (name, input) = (attempt.call_key(), order.to_string());
    let request = (workflow.client.start_execution())
        .state_machine_arn(&workflow.state_machine)
        .name(&name)
        .input(&input);
    match request.send().await {
        Ok(started) => Ok(started.execution_arn),
        Err(error) => match error.into_service_error() {
            StartExecutionError::ExecutionAlreadyExists(_) => {
                let execution = format!("{}:{name}", workflow.executions);
                workflow.started(execution, &input).await
            }
            error @ StartExecutionError::InvalidExecutionInput(_) => {
                Err(Failure::permanent_no_effect(error))
            }
            error => Err(Failure::retryable(error)),
        },
    }
}

#[tokio::main]
async fn main() -> Result<(), lambda_runtime::Error> {
    telemetry::init();
    let mut settings = Settings::from_env();
    // Step Functions remembers names for 90 days, or 30 if your quota says so.
    settings.set_default("CONSUMER_CALL_KEY_LIFETIME", "30d");
    let client = Client::new(&settings.config().await);
    let workflow = settings.required("STATE_MACHINE_ARN", "state machine to start", |arn| {
        Workflow::new(client, arn)
    });
    if let Ok(workflow) = &workflow {
        workflow.check().await?;
    }
    let handler = workflow.map(|workflow| handler_with(workflow, start));
    sqs_once::run(settings.once(handler).await?).await
}

//! Reads a stack's resources and functions from the account.

use std::time::Duration;

use aws_config::SdkConfig;

use super::{
    facts::{Consumer, Deployed, Function, Mapping, Records, Relay, Resource, Source},
    policies,
    reads::EventSource,
};
use crate::{aws::failed, output::Error};

/// The variable that marks a function as a consumer of this crate.
const TABLE: &str = "IDEMPOTENCY_TABLE_NAME";
/// The variable that marks a function as a consumer with records in PostgreSQL, or as the relay of an outbox
/// there.
const POSTGRES: &str = "IDEMPOTENCY_POSTGRES_URL";
/// The variable that marks a function without a queue as a relay.
const TARGETS: &str = "OUTBOX_TARGETS";
/// The variable that a consumer which publishes events has.
const OUTBOX: &str = "OUTBOX_TABLE_NAME";

/// The template's output that says where the alarms send notifications.
const NOTIFICATIONS: &str = "AlarmNotifications";

/// The clients that read a stack.
pub(crate) struct Account {
    pub(super) config: SdkConfig,
    cloudformation: aws_sdk_cloudformation::Client,
    pub(super) lambda: aws_sdk_lambda::Client,
    pub(super) dynamodb: aws_sdk_dynamodb::Client,
    pub(super) events: aws_sdk_eventbridge::Client,
    iam: aws_sdk_iam::Client,
}

impl Account {
    pub(crate) fn new(config: SdkConfig) -> Self {
        Self {
            cloudformation: aws_sdk_cloudformation::Client::new(&config),
            lambda: aws_sdk_lambda::Client::new(&config),
            dynamodb: aws_sdk_dynamodb::Client::new(&config),
            events: aws_sdk_eventbridge::Client::new(&config),
            iam: aws_sdk_iam::Client::new(&config),
            config,
        }
    }

    /// Lists the resources of a stack.
    pub(crate) async fn resources(&self, stack: &str) -> Result<Vec<Resource>, Error> {
        let (mut resources, mut next) = (Vec::new(), None);
        loop {
            let page = self
                .cloudformation
                .list_stack_resources()
                .stack_name(stack)
                .set_next_token(next)
                .send()
                .await
                .map_err(|error| {
                    let permission = "cloudformation:ListStackResources";
                    failed(&format!("read stack `{stack}`"), permission, &error)
                })?;
            let text = |text: Option<&str>| text.unwrap_or_default().to_owned();
            resources.extend(
                page.stack_resource_summaries()
                    .iter()
                    .map(|resource| Resource {
                        kind: text(resource.resource_type()),
                        logical: text(resource.logical_resource_id()),
                        physical: text(resource.physical_resource_id()),
                    }),
            );
            next = page.next_token;
            if next.is_none() {
                return Ok(resources);
            }
        }
    }

    /// Returns where the alarms send notifications, as an output of the stack says. `None` if there is no
    /// such output.
    pub(crate) async fn notifications(&self, stack: &str) -> Result<Option<String>, Error> {
        let request = self.cloudformation.describe_stacks().stack_name(stack);
        let read = request.send().await.map_err(|error| {
            let permission = "cloudformation:DescribeStacks";
            failed(&format!("read stack `{stack}`"), permission, &error)
        })?;
        let mut outputs = read.stacks().iter().flat_map(|stack| stack.outputs());
        let output = outputs.find(|output| output.output_key() == Some(NOTIFICATIONS));
        Ok(output.and_then(|output| output.output_value().map(str::to_owned)))
    }

    /// Reads a function and, if it is a consumer or a relay, everything that belongs to it.
    pub(crate) async fn function(
        &self,
        function: &str,
        resources: &[Resource],
        with_policies: bool,
    ) -> Result<Function, Error> {
        let function = self.deployed(function).await?;
        let is_set = |name| function.variable(name).is_some();
        if !is_set(TABLE) && !is_set(POSTGRES) && !is_set(TARGETS) {
            return Ok(Function::Other);
        }
        let sources = self.sources(&function.name).await?;
        let is_relay =
            !is_set(TABLE) && is_set(TARGETS) && !sources.iter().any(|of| of.is_of("sqs"));
        let function = if with_policies {
            self.with_policies(function).await?
        } else {
            function
        };
        if is_relay {
            let source = self.source(&function, &sources, resources).await?;
            Ok(Function::Relay(Box::new(Relay { function, source })))
        } else {
            let mappings = self.mappings(&sources).await?;
            let consumer = self.consumer(function, mappings).await?;
            Ok(Function::Consumer(Box::new(consumer)))
        }
    }

    async fn consumer(
        &self,
        function: Deployed,
        mappings: Vec<Mapping>,
    ) -> Result<Consumer, Error> {
        let records = match function.variable(TABLE) {
            Some(table) => Records::DynamoDb(self.table(table).await?),
            None => Records::Postgres {
                reserved: self.reserved_concurrency(&function.name).await?,
            },
        };
        let outbox = match (&records, function.variable(OUTBOX)) {
            (Records::DynamoDb(_), Some(outbox)) => Some(self.table(outbox).await?),
            _ => None,
        };
        Ok(Consumer {
            function,
            mappings,
            records,
            outbox,
        })
    }

    async fn source(
        &self,
        function: &Deployed,
        sources: &[EventSource],
        resources: &[Resource],
    ) -> Result<Source, Error> {
        if function.variable(POSTGRES).is_none() {
            return Ok(Source::Streams(Self::streams(sources)));
        }
        Ok(Source::Postgres {
            schedules: self.schedules(&function.arn, resources).await?,
            retries: self.retries(&function.name).await?,
        })
    }

    async fn deployed(&self, function: &str) -> Result<Deployed, Error> {
        let read = self
            .lambda
            .get_function_configuration()
            .function_name(function)
            .send()
            .await
            .map_err(|error| {
                let permission = "lambda:GetFunctionConfiguration";
                failed(&format!("read function `{function}`"), permission, &error)
            })?;
        let environment = read.environment;
        if let Some(error) = environment.as_ref().and_then(|of| of.error.as_ref()) {
            return Err(Error::remote(format!(
                "Lambda does not show the variables of function `{function}`: you may need kms:Decrypt on its key. {}",
                error.message.as_deref().unwrap_or_default()
            )));
        }
        let variables = environment.and_then(|environment| environment.variables);
        let region = self.config.region().map(ToString::to_string);
        let logging = read.logging_config;
        let arn = read.function_arn.unwrap_or_default();
        let group = logging
            .as_ref()
            .and_then(|logging| logging.log_group.clone())
            .unwrap_or_else(|| format!("/aws/lambda/{function}"));
        Ok(Deployed {
            name: function.to_owned(),
            region: region.unwrap_or_default(),
            timeout: Duration::from_secs(read.timeout.and_then(|s| s.try_into().ok()).unwrap_or(3)),
            variables: variables.unwrap_or_default(),
            log_level: logging.and_then(|logging| logging.application_log_level),
            log_stream: log_stream(&arn, &group),
            role: read.role,
            policies: None,
            arn,
        })
    }

    async fn with_policies(&self, function: Deployed) -> Result<Deployed, Error> {
        let policies = match &function.role {
            Some(role) => Some(policies::read(&self.iam, role).await?),
            None => None,
        };
        Ok(Deployed {
            policies,
            ..function
        })
    }
}

/// Returns the ARN of a stream in a log group in the function's account.
fn log_stream(function: &str, group: &str) -> String {
    let parts: Vec<_> = function.splitn(6, ':').collect();
    match *parts {
        ["arn", partition, "lambda", region, account, _] => {
            format!("arn:{partition}:logs:{region}:{account}:log-group:{group}:log-stream:any")
        }
        _ => String::new(),
    }
}

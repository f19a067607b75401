//! The facts of a deployed stack that the checks need.

use std::{collections::HashMap, time::Duration};

use aws_config::SdkConfig;
use aws_sdk_dynamodb::types::{
    KeyType, MultiRegionConsistency, ScalarAttributeType, TimeToLiveStatus,
};
use aws_sdk_lambda::types::{ApplicationLogLevel, FunctionResponseType};
use aws_sdk_sqs::types::QueueAttributeName;
use serde_json::Value;

use super::policies::{self, Policies};
use crate::{aws::failed, dead_letters::Queue, output::Error};

/// The variable by which a function is known as a consumer of this crate.
const TABLE: &str = "IDEMPOTENCY_TABLE_NAME";

/// The variable by which a function is known as a consumer with records in PostgreSQL.
const POSTGRES: &str = "IDEMPOTENCY_POSTGRES_URL";

/// The output of the template that says where the alarms notify.
const NOTIFICATIONS: &str = "AlarmNotifications";

/// A function of the stack.
pub(crate) enum Function {
    Consumer(Box<Consumer>),
    /// A consumer with records in PostgreSQL.
    InPostgres,
    Other,
}

/// A function of the stack that consumes queues.
pub(crate) struct Consumer {
    pub(crate) name: String,
    pub(crate) region: String,
    pub(crate) timeout: Duration,
    pub(crate) variables: HashMap<String, String>,
    /// Level below which Lambda drops lines of the function. `None` with text logs.
    pub(crate) log_level: Option<ApplicationLogLevel>,
    /// ARN of a stream in the log group of the function.
    pub(crate) log_stream: String,
    /// `None` if the policies were not to be read.
    pub(crate) policies: Option<Policies>,
    pub(crate) mappings: Vec<Mapping>,
    pub(crate) table: Option<Table>,
}

/// An event source mapping of a queue.
pub(crate) struct Mapping {
    pub(crate) id: String,
    pub(crate) enabled: bool,
    pub(crate) reports_failures: bool,
    pub(crate) maximum_concurrency: Option<i32>,
    pub(crate) provisioned_pollers: bool,
    pub(crate) filters: bool,
    pub(crate) window: Duration,
    pub(crate) queue: SourceQueue,
}

pub(crate) struct SourceQueue {
    pub(crate) arn: String,
    pub(crate) visibility_timeout: Duration,
    pub(crate) retention: Duration,
    pub(crate) dead_letters: Option<DeadLetterQueue>,
}

pub(crate) struct DeadLetterQueue {
    pub(crate) arn: String,
    pub(crate) max_receive_count: u64,
    pub(crate) retention: Duration,
}

pub(crate) struct Table {
    pub(crate) arn: String,
    /// Name, role and whether the type is string, of each key attribute.
    pub(crate) keys: Vec<(String, KeyType, bool)>,
    /// `None` if TTL is off.
    pub(crate) ttl_attribute: Option<String>,
    /// Other Regions of a global table.
    pub(crate) replicas: Vec<String>,
    pub(crate) strongly_consistent: bool,
}

/// The clients that read a stack.
pub(crate) struct Account {
    pub(crate) config: SdkConfig,
    cloudformation: aws_sdk_cloudformation::Client,
    lambda: aws_sdk_lambda::Client,
    dynamodb: aws_sdk_dynamodb::Client,
    iam: aws_sdk_iam::Client,
}

impl Account {
    pub(crate) fn new(config: SdkConfig) -> Self {
        Self {
            cloudformation: aws_sdk_cloudformation::Client::new(&config),
            lambda: aws_sdk_lambda::Client::new(&config),
            dynamodb: aws_sdk_dynamodb::Client::new(&config),
            iam: aws_sdk_iam::Client::new(&config),
            config,
        }
    }

    /// Names the Lambda functions of a stack.
    pub(crate) async fn functions(&self, stack: &str) -> Result<Vec<String>, Error> {
        let (mut functions, mut next) = (Vec::new(), None);
        loop {
            let list = self.cloudformation.list_stack_resources();
            let list = list.stack_name(stack).set_next_token(next).send().await;
            let page = list.map_err(|error| {
                let permission = "cloudformation:ListStackResources";
                failed(&format!("read stack `{stack}`"), permission, &error)
            })?;
            for resource in page.stack_resource_summaries() {
                if resource.resource_type() == Some("AWS::Lambda::Function") {
                    functions.extend(resource.physical_resource_id().map(str::to_owned));
                }
            }
            next = page.next_token;
            if next.is_none() {
                return Ok(functions);
            }
        }
    }

    /// Where the alarms notify, as an output of the stack says. `None` without that output.
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

    /// Reads a function, and all that belongs to it if it is a consumer with a DynamoDB table.
    pub(crate) async fn function(
        &self,
        function: &str,
        with_policies: bool,
    ) -> Result<Function, Error> {
        let read = self.lambda.get_function_configuration();
        let read = read.function_name(function).send().await.map_err(|error| {
            let permission = "lambda:GetFunctionConfiguration";
            failed(&format!("read function `{function}`"), permission, &error)
        })?;
        let variables = read
            .environment
            .and_then(|environment| environment.variables);
        let variables = variables.unwrap_or_default();
        let Some(table) = variables.get(TABLE).cloned() else {
            return Ok(match variables.contains_key(POSTGRES) {
                true => Function::InPostgres,
                false => Function::Other,
            });
        };
        let policies = match (with_policies, read.role) {
            (true, Some(role)) => Some(policies::read(&self.iam, &role).await?),
            _ => None,
        };
        let region = self.config.region().map(ToString::to_string);
        let logging = read.logging_config;
        let arn = read.function_arn.unwrap_or_default();
        let group = logging
            .as_ref()
            .and_then(|logging| logging.log_group.clone());
        let group = group.unwrap_or_else(|| format!("/aws/lambda/{function}"));
        Ok(Function::Consumer(Box::new(Consumer {
            name: function.to_owned(),
            region: region.unwrap_or_default(),
            timeout: Duration::from_secs(read.timeout.and_then(|s| s.try_into().ok()).unwrap_or(3)),
            log_level: logging.and_then(|logging| logging.application_log_level),
            log_stream: log_stream(&arn, &group),
            policies,
            mappings: self.mappings(function).await?,
            table: self.table(&table).await?,
            variables,
        })))
    }

    /// The mappings of a function and of its aliases.
    async fn mappings(&self, function: &str) -> Result<Vec<Mapping>, Error> {
        let mut mappings = self.mappings_of(function).await?;
        let list = self.lambda.list_aliases().function_name(function);
        let mut aliases = list.into_paginator().items().send();
        while let Some(read) = aliases.next().await {
            let alias = read.map_err(|error| {
                let action = format!("read the aliases of `{function}`");
                failed(&action, "lambda:ListAliases", &error)
            })?;
            let arn = alias.alias_arn().unwrap_or_default();
            for mapping in self.mappings_of(arn).await? {
                if mappings.iter().all(|known| known.id != mapping.id) {
                    mappings.push(mapping);
                }
            }
        }
        Ok(mappings)
    }

    async fn mappings_of(&self, function: &str) -> Result<Vec<Mapping>, Error> {
        let mut pages = self
            .lambda
            .list_event_source_mappings()
            .function_name(function)
            .into_paginator()
            .items()
            .send();
        let mut mappings = Vec::new();
        while let Some(mapping) = pages.next().await {
            let mapping = mapping.map_err(|error| {
                let permission = "lambda:ListEventSourceMappings";
                failed(
                    &format!("read the mappings of `{function}`"),
                    permission,
                    &error,
                )
            })?;
            let Some(arn) = mapping.event_source_arn.as_deref() else {
                continue;
            };
            if !arn.contains(":sqs:") {
                continue;
            }
            let scaling = mapping.scaling_config.as_ref();
            let filters = mapping.filter_criteria.as_ref();
            let window = mapping.maximum_batching_window_in_seconds.unwrap_or(0);
            mappings.push(Mapping {
                id: mapping.uuid.clone().unwrap_or_default(),
                enabled: !matches!(mapping.state.as_deref(), Some("Disabled" | "Disabling")),
                reports_failures: mapping
                    .function_response_types()
                    .contains(&FunctionResponseType::ReportBatchItemFailures),
                maximum_concurrency: scaling.and_then(|scaling| scaling.maximum_concurrency),
                provisioned_pollers: mapping.provisioned_poller_config.is_some(),
                filters: filters.is_some_and(|criteria| !criteria.filters().is_empty()),
                window: Duration::from_secs(window.try_into().unwrap_or(0)),
                queue: self.queue(arn).await?,
            });
        }
        Ok(mappings)
    }

    async fn queue(&self, arn: &str) -> Result<SourceQueue, Error> {
        let attributes = self.attributes(arn).await?;
        let policy = attributes.get(&QueueAttributeName::RedrivePolicy);
        let policy = policy.and_then(|policy| serde_json::from_str::<Value>(policy).ok());
        let dead_letters = match policy {
            None => None,
            Some(policy) => {
                let arn = policy["deadLetterTargetArn"].as_str().unwrap_or_default();
                let count = &policy["maxReceiveCount"];
                let count = count.as_u64().or_else(|| count.as_str()?.parse().ok());
                Some(DeadLetterQueue {
                    arn: arn.to_owned(),
                    max_receive_count: count.unwrap_or(0),
                    retention: retention(&self.attributes(arn).await?),
                })
            }
        };
        Ok(SourceQueue {
            arn: arn.to_owned(),
            visibility_timeout: seconds(&attributes, &QueueAttributeName::VisibilityTimeout),
            retention: retention(&attributes),
            dead_letters,
        })
    }

    async fn attributes(&self, arn: &str) -> Result<Attributes, Error> {
        let queue = Queue::find(&self.config, arn).await?;
        let read = queue.client.get_queue_attributes().queue_url(&queue.url);
        let read = read.attribute_names(QueueAttributeName::All).send().await;
        let read = read.map_err(|error| {
            failed(
                &format!("read queue `{arn}`"),
                "sqs:GetQueueAttributes",
                &error,
            )
        })?;
        Ok(read.attributes.unwrap_or_default())
    }

    /// `None` if there is no such table.
    async fn table(&self, name: &str) -> Result<Option<Table>, Error> {
        let described = self.dynamodb.describe_table().table_name(name).send().await;
        let described = match described {
            Ok(described) => described.table,
            Err(error)
                if error
                    .as_service_error()
                    .is_some_and(|error| error.is_resource_not_found_exception()) =>
            {
                return Ok(None);
            }
            Err(error) => {
                let action = format!("read table `{name}`");
                return Err(failed(&action, "dynamodb:DescribeTable", &error));
            }
        };
        let Some(table) = described else {
            return Ok(None);
        };
        let ttl = self.dynamodb.describe_time_to_live().table_name(name);
        let ttl = ttl.send().await.map_err(|error| {
            let permission = "dynamodb:DescribeTimeToLive";
            failed(
                &format!("read the TTL of table `{name}`"),
                permission,
                &error,
            )
        })?;
        let ttl = ttl.time_to_live_description.filter(|ttl| {
            let status = ttl.time_to_live_status();
            matches!(
                status,
                Some(TimeToLiveStatus::Enabled | TimeToLiveStatus::Enabling)
            )
        });
        let is_string = |name: &str| {
            let mut definitions = table.attribute_definitions().iter();
            definitions.any(|definition| {
                definition.attribute_name() == name
                    && *definition.attribute_type() == ScalarAttributeType::S
            })
        };
        let keys = table.key_schema().iter().map(|key| {
            let name = key.attribute_name();
            (name.to_owned(), key.key_type().clone(), is_string(name))
        });
        let replicas = table.replicas().iter();
        Ok(Some(Table {
            arn: table.table_arn().unwrap_or_default().to_owned(),
            keys: keys.collect(),
            ttl_attribute: ttl.and_then(|ttl| ttl.attribute_name),
            replicas: replicas
                .filter_map(|replica| replica.region_name().map(str::to_owned))
                .collect(),
            strongly_consistent: table.multi_region_consistency()
                == Some(&MultiRegionConsistency::Strong),
        }))
    }
}

/// The ARN of a stream in a log group that is in the account of the function.
fn log_stream(function: &str, group: &str) -> String {
    let parts: Vec<_> = function.splitn(6, ':').collect();
    match *parts {
        ["arn", partition, "lambda", region, account, _] => {
            format!("arn:{partition}:logs:{region}:{account}:log-group:{group}:log-stream:any")
        }
        _ => String::new(),
    }
}

type Attributes = HashMap<QueueAttributeName, String>;

fn seconds(attributes: &Attributes, name: &QueueAttributeName) -> Duration {
    let seconds = attributes
        .get(name)
        .and_then(|seconds| seconds.parse().ok());
    Duration::from_secs(seconds.unwrap_or(0))
}

fn retention(attributes: &Attributes) -> Duration {
    seconds(attributes, &QueueAttributeName::MessageRetentionPeriod)
}

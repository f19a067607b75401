//! Reads event sources, queues, tables and schedules.

use std::{collections::HashMap, time::Duration};

use aws_sdk_dynamodb::types::{MultiRegionConsistency, ScalarAttributeType, TimeToLiveStatus};
use aws_sdk_eventbridge::types::RuleState;
use aws_sdk_lambda::types::{EventSourceMappingConfiguration, FunctionResponseType};
use aws_sdk_sqs::types::QueueAttributeName;
use serde_json::Value;

use super::{
    account::Account,
    facts::{
        DeadLetterQueue, DeadLetters, Mapping, Resource, Schedules, SourceQueue, Stream, Table,
    },
};
use crate::{aws::failed, dead_letters::Queue, output::Error};

/// How often Lambda retries a failed asynchronous invocation, unless the function sets a number (*AWS
/// Lambda API Reference*, "PutFunctionEventInvokeConfig").
const RETRIES: i32 = 2;
/// The most provisioned pollers, unless the event source mapping sets a number (*AWS Lambda API Reference*,
/// "ProvisionedPollerConfig").
const DEFAULT_POLLERS: i32 = 200;

/// An event source mapping, as Lambda describes it.
pub(super) struct EventSource(EventSourceMappingConfiguration);

impl EventSource {
    fn arn(&self) -> &str {
        self.0.event_source_arn.as_deref().unwrap_or_default()
    }

    /// Returns whether the source belongs to this service.
    pub(super) fn is_of(&self, service: &str) -> bool {
        self.arn().split(':').nth(2) == Some(service)
    }

    fn id(&self) -> String {
        self.0.uuid.clone().unwrap_or_default()
    }

    fn is_enabled(&self) -> bool {
        !matches!(self.0.state.as_deref(), Some("Disabled" | "Disabling"))
    }

    fn reports_failures(&self) -> bool {
        let types = self.0.function_response_types();
        types.contains(&FunctionResponseType::ReportBatchItemFailures)
    }

    fn filters(&self) -> Vec<String> {
        let criteria = self.0.filter_criteria.iter();
        let filters = criteria.flat_map(|criteria| criteria.filters());
        filters
            .filter_map(|filter| filter.pattern.clone())
            .collect()
    }
}

impl Account {
    /// Returns the event sources of a function and of its aliases.
    pub(super) async fn sources(&self, function: &str) -> Result<Vec<EventSource>, Error> {
        let mut sources = self.sources_of(function).await?;
        let list = self.lambda.list_aliases().function_name(function);
        let mut aliases = list.into_paginator().items().send();
        while let Some(read) = aliases.next().await {
            let alias = read.map_err(|error| {
                let action = format!("read the aliases of `{function}`");
                failed(&action, "lambda:ListAliases", &error)
            })?;
            let arn = alias.alias_arn().unwrap_or_default();
            for source in self.sources_of(arn).await? {
                if sources.iter().all(|known| known.id() != source.id()) {
                    sources.push(source);
                }
            }
        }
        Ok(sources)
    }

    async fn sources_of(&self, function: &str) -> Result<Vec<EventSource>, Error> {
        let mappings = self
            .lambda
            .list_event_source_mappings()
            .function_name(function)
            .into_paginator()
            .items()
            .send()
            .collect::<Result<Vec<_>, _>>()
            .await
            .map_err(|error| {
                let action = format!("read the mappings of `{function}`");
                failed(&action, "lambda:ListEventSourceMappings", &error)
            })?;
        Ok(mappings.into_iter().map(EventSource).collect())
    }

    /// Returns the event source mappings of queues.
    pub(super) async fn mappings(&self, sources: &[EventSource]) -> Result<Vec<Mapping>, Error> {
        let mut mappings = Vec::new();
        for source in sources.iter().filter(|source| source.is_of("sqs")) {
            let scaling = source.0.scaling_config.as_ref();
            let pollers = source.0.provisioned_poller_config.as_ref();
            let window = source.0.maximum_batching_window_in_seconds.unwrap_or(0);
            mappings.push(Mapping {
                id: source.id(),
                enabled: source.is_enabled(),
                reports_failures: source.reports_failures(),
                maximum_concurrency: scaling.and_then(|scaling| scaling.maximum_concurrency),
                maximum_pollers: pollers.map(|of| of.maximum_pollers.unwrap_or(DEFAULT_POLLERS)),
                filters: !source.filters().is_empty(),
                window: Duration::from_secs(window.try_into().unwrap_or(0)),
                queue: self.queue(source.arn()).await?,
            });
        }
        Ok(mappings)
    }

    /// Returns the event source mappings of table streams.
    pub(super) fn streams(sources: &[EventSource]) -> Vec<Stream> {
        let streams = sources.iter().filter(|source| source.is_of("dynamodb"));
        let stream = |source: &EventSource| {
            let destination = source.0.destination_config.as_ref();
            let on_failure = destination.and_then(|destination| destination.on_failure.as_ref());
            Stream {
                id: source.id(),
                arn: source.arn().to_owned(),
                enabled: source.is_enabled(),
                reports_failures: source.reports_failures(),
                parallelization: source.0.parallelization_factor.unwrap_or(1),
                has_destination: on_failure.is_some_and(|queue| queue.destination.is_some()),
                filters: source.filters(),
            }
        };
        streams.map(stream).collect()
    }

    /// Returns the EventBridge rules that invoke a function.
    pub(super) async fn schedules(
        &self,
        arn: &str,
        resources: &[Resource],
    ) -> Result<Schedules, Error> {
        let list = self
            .events
            .list_rule_names_by_target()
            .target_arn(arn)
            .send()
            .await
            .map_err(|error| {
                let action = format!("read the rules that invoke `{arn}`");
                failed(&action, "events:ListRuleNamesByTarget", &error)
            })?;
        let mut rules = Vec::new();
        for name in list.rule_names() {
            let rule = self
                .events
                .describe_rule()
                .name(name)
                .send()
                .await
                .map_err(|error| {
                    let action = format!("read rule `{name}`");
                    failed(&action, "events:DescribeRule", &error)
                })?;
            rules.push((name.clone(), rule.state != Some(RuleState::Disabled)));
        }
        let schedules = "AWS::Scheduler::Schedule";
        let has_others = resources.iter().any(|resource| resource.kind == schedules);
        Ok(if rules.is_empty() && has_others {
            Schedules::Unread
        } else {
            Schedules::Rules(rules)
        })
    }

    /// Returns how often a failed asynchronous invocation is retried.
    pub(super) async fn retries(&self, function: &str) -> Result<i32, Error> {
        let read = self
            .lambda
            .get_function_event_invoke_config()
            .function_name(function)
            .qualifier("$LATEST");
        match read.send().await {
            Ok(config) => Ok(config.maximum_retry_attempts.unwrap_or(RETRIES)),
            Err(error)
                if error
                    .as_service_error()
                    .is_some_and(|error| error.is_resource_not_found_exception()) =>
            {
                Ok(RETRIES)
            }
            Err(error) => {
                let action = format!("read the retries of `{function}`");
                let permission = "lambda:GetFunctionEventInvokeConfig";
                Err(failed(&action, permission, &error))
            }
        }
    }

    /// Returns the function's reserved concurrency. `None` if it has no such limit.
    pub(super) async fn reserved_concurrency(&self, function: &str) -> Result<Option<u32>, Error> {
        let read = self
            .lambda
            .get_function_concurrency()
            .function_name(function)
            .send()
            .await
            .map_err(|error| {
                let action = format!("read the concurrency of `{function}`");
                failed(&action, "lambda:GetFunctionConcurrency", &error)
            })?;
        let reserved = read.reserved_concurrent_executions;
        Ok(reserved.and_then(|reserved| reserved.try_into().ok()))
    }

    async fn queue(&self, arn: &str) -> Result<SourceQueue, Error> {
        let attributes = self
            .attributes(&Queue::find(&self.config, arn).await?)
            .await?;
        let policy = attributes
            .get(&QueueAttributeName::RedrivePolicy)
            .and_then(|policy| serde_json::from_str::<Value>(policy).ok());
        let dead_letters = match policy {
            None => DeadLetters::None,
            Some(policy) => self.dead_letters(&policy).await?,
        };
        Ok(SourceQueue {
            arn: arn.to_owned(),
            visibility_timeout: seconds(&attributes, &QueueAttributeName::VisibilityTimeout),
            retention: retention(&attributes),
            dead_letters,
        })
    }

    async fn dead_letters(&self, policy: &Value) -> Result<DeadLetters, Error> {
        let arn = policy["deadLetterTargetArn"].as_str().unwrap_or_default();
        let Some(queue) = Queue::find_existing(&self.config, arn).await? else {
            return Ok(DeadLetters::Missing(arn.to_owned()));
        };
        let limit = &policy["maxReceiveCount"];
        let max_receive_count = limit
            .as_u64()
            .or_else(|| limit.as_str()?.parse().ok())
            .unwrap_or(0);
        Ok(DeadLetters::Queue(DeadLetterQueue {
            arn: arn.to_owned(),
            max_receive_count,
            retention: retention(&self.attributes(&queue).await?),
        }))
    }

    async fn attributes(&self, queue: &Queue) -> Result<Attributes, Error> {
        let read = queue
            .client
            .get_queue_attributes()
            .queue_url(&queue.url)
            .attribute_names(QueueAttributeName::All)
            .send()
            .await
            .map_err(|error| {
                let action = format!("read queue `{}`", queue.name());
                failed(&action, "sqs:GetQueueAttributes", &error)
            })?;
        Ok(read.attributes.unwrap_or_default())
    }

    /// Reads a table. `None` if there is no such table.
    pub(super) async fn table(&self, name: &str) -> Result<Option<Table>, Error> {
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
        let described = self
            .dynamodb
            .describe_time_to_live()
            .table_name(name)
            .send()
            .await
            .map_err(|error| {
                let action = format!("read the TTL of table `{name}`");
                failed(&action, "dynamodb:DescribeTimeToLive", &error)
            })?;
        let ttl = described.time_to_live_description.filter(|ttl| {
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
            stream: table
                .stream_specification()
                .filter(|stream| stream.stream_enabled())
                .and_then(|stream| stream.stream_view_type().cloned()),
            strongly_consistent: table.multi_region_consistency()
                == Some(&MultiRegionConsistency::Strong),
        }))
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

//! Reads functions, event sources, queues, tables and schedules from the account.

use std::{collections::HashMap, time::Duration};

use aws_config::SdkConfig;
use aws_sdk_dynamodb::types::{TableDescription, TimeToLiveStatus};
use aws_sdk_eventbridge::types::RuleState;
use aws_sdk_iam::types::PolicyEvaluationDecisionType;
use aws_sdk_lambda::types::{EventSourceMappingConfiguration, FunctionResponseType};
use aws_sdk_sqs::{
    error::{ProvideErrorMetadata, SdkError},
    types::QueueAttributeName,
};
use sqs_once::internal::table::Setting;

use crate::{
    aws::{failed, is_missing},
    dead_letters::NamedQueue,
    output::Error,
};

#[derive(Default)]
pub(crate) struct Function {
    pub(crate) name: String,
    pub(super) arn: String,
    pub(super) role: String,
    pub(crate) timeout: Duration,
    variables: HashMap<String, String>,
}

impl Function {
    /// Returns the value of a variable, without white space at either end. An empty variable is treated as not set.
    pub(crate) fn variable(&self, name: &str) -> Option<&str> {
        let value = self.variables.get(name).map(|value| value.trim());
        value.filter(|value| !value.is_empty())
    }

    /// Returns whether a setting with the default `on` is on.
    pub(crate) fn is_on(&self, name: &str) -> bool {
        self.variable(name) != Some("off")
    }

    /// Returns the duration of a setting, or the default if the function has no valid one.
    pub(crate) fn span(&self, setting: &Setting) -> Duration {
        let texts = self
            .variable(setting.name)
            .into_iter()
            .chain([setting.default]);
        let mut spans = texts.filter_map(|text| humantime::parse_duration(text).ok());
        spans.next().unwrap_or_default()
    }

    #[cfg(test)]
    pub(crate) fn with<const N: usize>(variables: [(&str, &str); N]) -> Self {
        let variables = variables.map(|(name, value)| (name.to_owned(), value.to_owned()));
        Self {
            variables: variables.into(),
            ..Self::default()
        }
    }

    /// Returns whether the function has this library's variables.
    pub(super) fn is_ours(&self) -> bool {
        let prefixes = ["CONSUMER_", "IDEMPOTENCY_", "OUTBOX_"];
        let mut names = self.variables.keys();
        names.any(|name| prefixes.iter().any(|prefix| name.starts_with(prefix)))
    }

    /// Returns whether the function sends published events and doesn't consume a queue.
    pub(super) fn is_relay(&self, mappings: &[Mapping]) -> bool {
        let mut queues = sources_of("sqs", mappings);
        self.variable("OUTBOX_TARGETS").is_some() && queues.next().is_none()
    }
}

pub(super) type Mapping = EventSourceMappingConfiguration;

/// Returns the event sources that belong to a service, such as `sqs`.
pub(super) fn sources_of<'a>(
    service: &str,
    mappings: &'a [Mapping],
) -> impl Iterator<Item = &'a Mapping> {
    mappings.iter().filter(move |mapping| {
        let arn = mapping.event_source_arn().unwrap_or_default();
        arn.split(':').nth(2) == Some(service)
    })
}

pub(super) fn is_enabled(mapping: &Mapping) -> bool {
    !matches!(mapping.state(), Some("Disabled" | "Disabling"))
}

pub(super) fn reports_failures(mapping: &Mapping) -> bool {
    let types = mapping.function_response_types();
    types.contains(&FunctionResponseType::ReportBatchItemFailures)
}

#[derive(Default)]
pub(super) struct QueueAttributes(HashMap<QueueAttributeName, String>);

impl QueueAttributes {
    pub(super) fn get(&self, name: &QueueAttributeName) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    pub(super) fn visibility_timeout(&self) -> Duration {
        self.seconds(&QueueAttributeName::VisibilityTimeout)
    }

    pub(super) fn retention(&self) -> Duration {
        self.seconds(&QueueAttributeName::MessageRetentionPeriod)
    }

    fn seconds(&self, name: &QueueAttributeName) -> Duration {
        let seconds = self.get(name).and_then(|seconds| seconds.parse().ok());
        Duration::from_secs(seconds.unwrap_or(0))
    }
}

pub(crate) struct Account {
    config: SdkConfig,
    cloudformation: aws_sdk_cloudformation::Client,
    lambda: aws_sdk_lambda::Client,
    dynamodb: aws_sdk_dynamodb::Client,
    events: aws_sdk_eventbridge::Client,
    iam: aws_sdk_iam::Client,
    sns: aws_sdk_sns::Client,
    sqs: aws_sdk_sqs::Client,
}

impl Account {
    pub(crate) fn new(config: SdkConfig) -> Self {
        Self {
            cloudformation: aws_sdk_cloudformation::Client::new(&config),
            lambda: aws_sdk_lambda::Client::new(&config),
            dynamodb: aws_sdk_dynamodb::Client::new(&config),
            events: aws_sdk_eventbridge::Client::new(&config),
            iam: aws_sdk_iam::Client::new(&config),
            sns: aws_sdk_sns::Client::new(&config),
            sqs: aws_sdk_sqs::Client::new(&config),
            config,
        }
    }

    /// Returns the names or ARNs of the stack's resources of this type.
    pub(super) async fn resources(&self, stack: &str, kind: &str) -> Result<Vec<String>, Error> {
        let resources = self
            .cloudformation
            .list_stack_resources()
            .stack_name(stack)
            .into_paginator()
            .items()
            .send()
            .collect::<Result<Vec<_>, _>>()
            .await
            .map_err(|error| {
                let permission = "cloudformation:ListStackResources";
                failed(&format!("read stack `{stack}`"), permission, &error)
            })?;
        let names = resources
            .into_iter()
            .filter(|resource| resource.resource_type() == Some(kind))
            .filter_map(|resource| resource.physical_resource_id);
        Ok(names.collect())
    }

    /// Returns how many of a topic's subscriptions are confirmed.
    pub(super) async fn subscriptions(&self, topic: &str) -> Result<u32, Error> {
        let read = self.sns.get_topic_attributes().topic_arn(topic);
        let read = read
            .send()
            .await
            .map_err(|error| failed("read its subscriptions", "sns:GetTopicAttributes", &error))?;
        let attributes = read.attributes.unwrap_or_default();
        let confirmed = attributes.get("SubscriptionsConfirmed");
        Ok(confirmed.and_then(|count| count.parse().ok()).unwrap_or(0))
    }

    pub(crate) async fn function(&self, name: String) -> Result<Function, Error> {
        let request = self
            .lambda
            .get_function_configuration()
            .function_name(&name);
        let read = request.send().await.map_err(|error| {
            let permission = "lambda:GetFunctionConfiguration";
            failed(&format!("read function `{name}`"), permission, &error)
        })?;
        let environment = read.environment;
        if let Some(error) = environment.as_ref().and_then(|of| of.error.as_ref()) {
            return Err(Error::remote(format!(
                "Lambda does not show the variables of function `{name}`: you may need kms:Decrypt on its key. {}",
                error.message.as_deref().unwrap_or_default()
            )));
        }
        Ok(Function {
            name,
            arn: read.function_arn.unwrap_or_default(),
            role: read.role.unwrap_or_default(),
            timeout: Duration::from_secs(read.timeout.and_then(|s| s.try_into().ok()).unwrap_or(3)),
            variables: environment.and_then(|of| of.variables).unwrap_or_default(),
        })
    }

    /// Returns the event source mappings of a function and of its aliases.
    pub(super) async fn mappings(&self, function: &str) -> Result<Vec<Mapping>, Error> {
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
                if mappings.iter().all(|known| known.uuid != mapping.uuid) {
                    mappings.push(mapping);
                }
            }
        }
        Ok(mappings)
    }

    async fn mappings_of(&self, function: &str) -> Result<Vec<Mapping>, Error> {
        self.lambda
            .list_event_source_mappings()
            .function_name(function)
            .into_paginator()
            .items()
            .send()
            .collect::<Result<_, _>>()
            .await
            .map_err(|error| {
                let action = format!("read the mappings of `{function}`");
                failed(&action, "lambda:ListEventSourceMappings", &error)
            })
    }

    /// Reads the attributes of the queue with this ARN, or returns `None` if it does not exist.
    pub(super) async fn queue(&self, arn: &str) -> Result<Option<QueueAttributes>, Error> {
        let Some(queue) = NamedQueue::find_existing(&self.config, arn).await? else {
            return Ok(None);
        };
        let request = queue
            .client
            .get_queue_attributes()
            .queue_url(&queue.url)
            .attribute_names(QueueAttributeName::All);
        let read = request.send().await.map_err(|error| {
            let action = format!("read queue `{}`", queue.name());
            failed(&action, "sqs:GetQueueAttributes", &error)
        })?;
        Ok(Some(QueueAttributes(read.attributes.unwrap_or_default())))
    }

    /// Reads a table. Returns `None` if it does not exist.
    pub(super) async fn table(&self, name: &str) -> Result<Option<TableDescription>, Error> {
        match self.dynamodb.describe_table().table_name(name).send().await {
            Ok(described) => Ok(described.table),
            Err(error) if is_missing(&error) => Ok(None),
            Err(error) => {
                let action = format!("read table `{name}`");
                Err(failed(&action, "dynamodb:DescribeTable", &error))
            }
        }
    }

    /// Returns a table's TTL attribute, or `None` if TTL is off.
    pub(super) async fn ttl(&self, table: &str) -> Result<Option<String>, Error> {
        let request = self.dynamodb.describe_time_to_live().table_name(table);
        let read = request.send().await.map_err(|error| {
            let action = format!("read the TTL of table `{table}`");
            failed(&action, "dynamodb:DescribeTimeToLive", &error)
        })?;
        let ttl = read.time_to_live_description.filter(|ttl| {
            matches!(
                ttl.time_to_live_status(),
                Some(TimeToLiveStatus::Enabled | TimeToLiveStatus::Enabling)
            )
        });
        Ok(ttl.and_then(|ttl| ttl.attribute_name))
    }

    /// Returns whether an enabled EventBridge rule invokes a function.
    pub(super) async fn has_schedule(&self, function: &Function) -> Result<bool, Error> {
        let list = self
            .events
            .list_rule_names_by_target()
            .target_arn(&function.arn);
        let rules = list.send().await.map_err(|error| {
            let action = format!("read the rules that invoke `{}`", function.name);
            failed(&action, "events:ListRuleNamesByTarget", &error)
        })?;
        for name in rules.rule_names() {
            let describe = self.events.describe_rule().name(name);
            let rule = describe.send().await.map_err(|error| {
                let action = format!("read rule `{name}`");
                failed(&action, "events:DescribeRule", &error)
            })?;
            if rule.state != Some(RuleState::Disabled) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Returns whether an event target exists. The target is a queue's URL, or the ARN of a topic or an event bus.
    pub(super) async fn has_target(&self, target: &str) -> Result<bool, Error> {
        if target.starts_with("http") {
            let read = self
                .sqs
                .get_queue_attributes()
                .queue_url(target)
                .attribute_names(QueueAttributeName::QueueArn);
            exists(target, "sqs:GetQueueAttributes", read.send().await)
        } else if target.split(':').nth(2) == Some("sns") {
            let read = self.sns.get_topic_attributes().topic_arn(target);
            exists(target, "sns:GetTopicAttributes", read.send().await)
        } else {
            let read = self.events.describe_event_bus().name(target);
            exists(target, "events:DescribeEventBus", read.send().await)
        }
    }

    /// Returns the actions that a role is denied on a resource, each with the condition keys whose values the
    /// simulation did not know.
    pub(super) async fn denied(
        &self,
        role: &str,
        resource: &str,
        actions: &[&str],
    ) -> Result<Vec<(String, Vec<String>)>, Error> {
        let results = self
            .iam
            .simulate_principal_policy()
            .policy_source_arn(role)
            .resource_arns(resource)
            .set_action_names(Some(actions.iter().map(ToString::to_string).collect()))
            .into_paginator()
            .items()
            .send()
            .collect::<Result<Vec<_>, _>>()
            .await
            .map_err(|error| {
                let action = "ask IAM what the role may do";
                failed(action, "iam:SimulatePrincipalPolicy", &error)
            })?;
        let denied = results
            .into_iter()
            .filter(|result| result.eval_decision != PolicyEvaluationDecisionType::Allowed)
            .map(|result| {
                let unknown = result.missing_context_values.unwrap_or_default();
                (result.eval_action_name, unknown)
            });
        Ok(denied.collect())
    }
}

fn exists<T, E>(target: &str, permission: &str, read: Result<T, SdkError<E>>) -> Result<bool, Error>
where
    E: ProvideErrorMetadata + std::error::Error + 'static,
{
    match read {
        Ok(_) => Ok(true),
        Err(error) if is_missing(&error) => Ok(false),
        Err(error) => Err(failed(
            &format!("find target `{target}`"),
            permission,
            &error,
        )),
    }
}

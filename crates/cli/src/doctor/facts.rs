//! The facts of a deployed stack that the checks need.

use std::{collections::HashMap, time::Duration};

use aws_config::SdkConfig;
use aws_sdk_dynamodb::types::{KeyType, StreamViewType};
use aws_sdk_lambda::types::ApplicationLogLevel;

use super::policies::{self, Policies};
use crate::{aws::failed, output::Error};

/// The variable by which a function is known as a consumer of this crate.
const TABLE: &str = "IDEMPOTENCY_TABLE_NAME";
/// The variable by which a function is known as a consumer with records in PostgreSQL, or as the relay of
/// an outbox there.
const POSTGRES: &str = "IDEMPOTENCY_POSTGRES_URL";
/// The variable by which a function without a queue is known as a relay.
const TARGETS: &str = "OUTBOX_TARGETS";
/// The variable of a consumer that publishes events.
const OUTBOX: &str = "OUTBOX_TABLE_NAME";

/// The output of the template that says where the alarms notify.
const NOTIFICATIONS: &str = "AlarmNotifications";

/// A resource of the stack.
pub(crate) struct Resource {
    pub(crate) kind: String,
    /// Its name in the template.
    pub(crate) logical: String,
    /// Its name in the account.
    pub(crate) physical: String,
}

/// A function of the stack.
pub(crate) enum Function {
    Consumer(Box<Consumer>),
    Relay(Box<Relay>),
    /// A function without the variables of a consumer or relay.
    Other,
}

/// The facts of any function.
pub(crate) struct Deployed {
    pub(crate) name: String,
    pub(crate) arn: String,
    pub(crate) region: String,
    pub(crate) timeout: Duration,
    pub(crate) variables: HashMap<String, String>,
    /// Level below which Lambda drops lines of the function. `None` with text logs.
    pub(crate) log_level: Option<ApplicationLogLevel>,
    /// ARN of a stream in the log group of the function.
    pub(crate) log_stream: String,
    role: Option<String>,
    /// `None` if the policies were not to be read.
    pub(crate) policies: Option<Policies>,
}

/// A function of the stack that consumes queues.
pub(crate) struct Consumer {
    pub(crate) function: Deployed,
    pub(crate) mappings: Vec<Mapping>,
    pub(crate) records: Records,
    /// The table of published events. The inner `None`: there is no such table.
    pub(crate) outbox: Option<Option<Table>>,
}

/// The place of a consumer's records.
pub(crate) enum Records {
    /// `None` if there is no such table.
    DynamoDb(Option<Table>),
    Postgres {
        /// Most executions at a time. `None` without a limit.
        reserved: Option<u32>,
    },
}

/// A function of the stack that sends published events.
pub(crate) struct Relay {
    pub(crate) function: Deployed,
    pub(crate) source: Source,
}

/// The place of a relay's events.
pub(crate) enum Source {
    Streams(Vec<Stream>),
    Postgres {
        schedules: Schedules,
        /// Invocations after one that failed.
        retries: i32,
    },
}

/// The event source mapping of a table's stream.
pub(crate) struct Stream {
    pub(crate) id: String,
    pub(crate) arn: String,
    pub(crate) enabled: bool,
    pub(crate) reports_failures: bool,
    pub(crate) parallelization: i32,
    pub(crate) has_destination: bool,
    /// Patterns of the filters.
    pub(crate) filters: Vec<String>,
}

/// The schedules that start a relay.
pub(crate) enum Schedules {
    /// Rules of EventBridge: name, and whether it is enabled.
    Rules(Vec<(String, bool)>),
    /// Schedules of EventBridge Scheduler, which are not read.
    Unread,
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
    pub(crate) dead_letters: DeadLetters,
}

/// The redrive policy of a queue.
pub(crate) enum DeadLetters {
    None,
    /// It names a queue that does not exist.
    Missing(String),
    Queue(DeadLetterQueue),
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
    /// `None` if the table has no stream.
    pub(crate) stream: Option<StreamViewType>,
}

impl Deployed {
    /// The value of a variable. An empty one counts as not set.
    pub(crate) fn variable(&self, name: &str) -> Option<&str> {
        let value = self.variables.get(name).map(String::as_str);
        value.filter(|value| !value.is_empty())
    }

    /// A duration of the variables. An invalid one is a finding of its own.
    pub(crate) fn span(&self, name: &str, default: Duration) -> Duration {
        let text = self.variable(name);
        let parsed = text.and_then(|text| humantime::parse_duration(text).ok());
        parsed.unwrap_or(default)
    }

    /// The partition in the ARN, such as `aws`.
    pub(crate) fn partition(&self) -> &str {
        self.arn.split(':').nth(1).unwrap_or("aws")
    }
}

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
            let list = self.cloudformation.list_stack_resources();
            let list = list.stack_name(stack).set_next_token(next).send().await;
            let page = list.map_err(|error| {
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

    /// Reads a function, and all that belongs to it if it is a consumer or a relay.
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
        let function = match with_policies {
            true => self.with_policies(function).await?,
            false => function,
        };
        Ok(match is_relay {
            true => {
                let source = self.source(&function, &sources, resources).await?;
                Function::Relay(Box::new(Relay { function, source }))
            }
            false => {
                let mappings = self.mappings(&sources).await?;
                Function::Consumer(Box::new(self.consumer(function, mappings).await?))
            }
        })
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
        sources: &[super::reads::EventSource],
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
        let read = self.lambda.get_function_configuration();
        let read = read.function_name(function).send().await.map_err(|error| {
            let permission = "lambda:GetFunctionConfiguration";
            failed(&format!("read function `{function}`"), permission, &error)
        })?;
        let variables = read
            .environment
            .and_then(|environment| environment.variables);
        let region = self.config.region().map(ToString::to_string);
        let logging = read.logging_config;
        let arn = read.function_arn.unwrap_or_default();
        let group = logging
            .as_ref()
            .and_then(|logging| logging.log_group.clone());
        let group = group.unwrap_or_else(|| format!("/aws/lambda/{function}"));
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

//! The facts of a deployed stack that the checks need.

use std::{collections::HashMap, time::Duration};

use aws_sdk_dynamodb::types::{KeyType, StreamViewType};
use aws_sdk_lambda::types::ApplicationLogLevel;
use sqs_once_core::settings::table::Setting;

use super::policies::Policies;

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
    /// Level below which Lambda drops the function's log lines. `None` with text logs.
    pub(crate) log_level: Option<ApplicationLogLevel>,
    /// ARN of a stream in the log group of the function.
    pub(crate) log_stream: String,
    pub(super) role: Option<String>,
    /// `None` if the policies could not be read.
    pub(crate) policies: Option<Policies>,
}

/// A function of the stack that consumes queues.
pub(crate) struct Consumer {
    pub(crate) function: Deployed,
    pub(crate) mappings: Vec<Mapping>,
    pub(crate) records: Records,
    /// Table for published events. The inner `None` means that there is no such table.
    pub(crate) outbox: Option<Option<Table>>,
}

/// Where a consumer's records are.
pub(crate) enum Records {
    /// `None` if there is no such table.
    DynamoDb(Option<Table>),
    Postgres {
        /// The most executions at a time. `None` without a limit.
        reserved: Option<u32>,
    },
}

/// A function of the stack that sends published events.
pub(crate) struct Relay {
    pub(crate) function: Deployed,
    pub(crate) source: Source,
}

/// Where a relay's events are.
pub(crate) enum Source {
    Streams(Vec<Stream>),
    Postgres {
        schedules: Schedules,
        /// How often a failed invocation is retried.
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
    /// EventBridge rules: the name, and whether it is enabled.
    Rules(Vec<(String, bool)>),
    /// Schedules of EventBridge Scheduler, which we do not read.
    Unread,
}

/// An event source mapping of a queue.
pub(crate) struct Mapping {
    pub(crate) id: String,
    pub(crate) enabled: bool,
    pub(crate) reports_failures: bool,
    pub(crate) maximum_concurrency: Option<i32>,
    /// The most provisioned pollers. `None` without provisioned pollers.
    pub(crate) maximum_pollers: Option<i32>,
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
    /// For each key attribute, its name, its role, and whether its type is string.
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
    /// Returns the value of a variable. An empty variable is treated as not set.
    pub(crate) fn variable(&self, name: &str) -> Option<&str> {
        let value = self.variables.get(name).map(String::as_str);
        value.filter(|value| !value.is_empty())
    }

    /// Returns the duration of a setting. If it is invalid, returns the default; a different finding reports
    /// that.
    pub(crate) fn span(&self, setting: &Setting) -> Duration {
        let mut texts = self
            .variable(setting.name)
            .into_iter()
            .chain([setting.default]);
        texts
            .find_map(|text| humantime::parse_duration(text).ok())
            .unwrap_or_default()
    }

    /// Returns the partition in the ARN, such as `aws`.
    pub(crate) fn partition(&self) -> &str {
        self.arn.split(':').nth(1).unwrap_or("aws")
    }
}

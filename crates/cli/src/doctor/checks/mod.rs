//! The checks: they turn the facts about a function into findings, without I/O.

mod database;
mod permissions;
mod queues;
mod relay;
mod settings;
mod tables;

use serde_json::{Value, json};

pub(crate) use database::Client;
#[cfg(feature = "postgres")]
pub(crate) use database::{Server, check_server};

use super::facts::{Consumer, Records, Relay, Resource};
use settings::Kind;

/// The place of the values that satisfy the shortest way to a dead-letter queue and the retention.
const VALUES: &str = "docs/operations.md#outages-that-messages-survive";

/// Declares [`Check`] with its names.
macro_rules! checks {
    ($($check:ident $name:literal)+) => {
        /// A check. Its name is stable: `--skip` takes it.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[cfg_attr(
            not(feature = "postgres"),
            allow(dead_code, reason = "without the feature, no database is read")
        )]
        pub(crate) enum Check { $($check,)+ }

        impl Check {
            pub(crate) const NAMES: &[&str] = &[$($name),+];

            pub(crate) const fn name(self) -> &'static str {
                match self { $(Self::$check => $name,)+ }
            }
        }
    };
}

checks! {
    Mapping "mapping"
    MappingEnabled "mapping-enabled"
    PartialResponses "partial-responses"
    VisibilityTimeout "visibility-timeout"
    DeadLetterQueue "dead-letter-queue"
    Receives "receives"
    QueueRetention "queue-retention"
    CrashWaits "crash-waits"
    DeadLetterRetention "dead-letter-retention"
    FilterCriteria "filter-criteria"
    Scaling "scaling"
    Settings "settings"
    UnknownVariables "unknown-variables"
    TimeToStart "time-to-start"
    RecordRetention "record-retention"
    LogLevel "log-level"
    Table "table"
    KeySchema "key-schema"
    Ttl "ttl"
    TableRegion "table-region"
    GlobalTable "global-table"
    Permissions "permissions"
    AlarmActions "alarm-actions"
    OutboxTable "outbox-table"
    Parallelization "parallelization"
    FailureDestination "failure-destination"
    RelaySchedule "relay-schedule"
    RelayRetries "relay-retries"
    RelayAlarms "relay-alarms"
    PostgresConnections "postgres-connections"
    PostgresTables "postgres-tables"
    PostgresPrivileges "postgres-privileges"
    OldestEvent "oldest-event"
}

/// Something that breaks a promise, or costs messages.
pub(crate) struct Finding {
    pub(crate) check: Check,
    pub(crate) resource: String,
    pub(crate) found: String,
    /// The consequence for messages and records if nobody fixes it.
    pub(crate) consequence: &'static str,
    pub(crate) fix: String,
}

impl Finding {
    pub(crate) fn json(&self) -> Value {
        json!({
            "check": self.check.name(),
            "resource": self.resource,
            "found": self.found,
            "consequence": self.consequence,
            "fix": self.fix,
        })
    }
}

/// Something that was not checked.
pub(crate) struct NotChecked {
    pub(crate) resource: String,
    pub(crate) reason: String,
}

impl NotChecked {
    pub(crate) fn json(&self) -> Value {
        json!({"resource": self.resource, "reason": self.reason})
    }
}

/// Collects findings about one resource after the other.
#[derive(Default)]
pub(crate) struct Findings {
    pub(crate) all: Vec<Finding>,
    pub(crate) not_checked: Vec<NotChecked>,
    resource: String,
}

impl Findings {
    fn add(
        &mut self,
        check: Check,
        found: impl Into<String>,
        consequence: &'static str,
        fix: impl Into<String>,
    ) {
        self.all.push(Finding {
            check,
            resource: self.resource.clone(),
            found: found.into(),
            consequence,
            fix: fix.into(),
        });
    }

    /// Records that something about the resource was not checked.
    pub(crate) fn skip(&mut self, reason: impl Into<String>) {
        self.not_checked.push(NotChecked {
            resource: self.resource.clone(),
            reason: reason.into(),
        });
    }

    /// Sets the resource of the next findings.
    pub(crate) fn about(&mut self, resource: impl Into<String>) {
        self.resource = resource.into();
    }
}

/// Checks a consumer, its queues, its DynamoDB tables and its role.
pub(crate) fn check(consumer: &Consumer, findings: &mut Findings) {
    let function = &consumer.function;
    findings.about(format!("function {}", function.name));
    let kind = match &consumer.records {
        Records::DynamoDb(_) => Kind::Consumer,
        Records::Postgres { .. } => Kind::PostgresMode,
    };
    settings::settings(function, kind, findings);
    if consumer.mappings.is_empty() {
        findings.add(
            Check::Mapping,
            "no queue is an event source of the function",
            "the function processes nothing",
            "add an event source mapping with ReportBatchItemFailures",
        );
    }
    settings::time_to_start(function, findings);
    settings::log_level(function, findings);
    for mapping in &consumer.mappings {
        let queue = name(&mapping.queue.arn);
        findings.about(format!("event source mapping {} of {queue}", mapping.id));
        queues::source(consumer, mapping, findings);
        findings.about(format!("queue {queue}"));
        queues::queue(consumer, mapping, findings);
    }
    tables::tables(consumer, findings);
    findings.about(format!("role of function {}", function.name));
    permissions::of_consumer(consumer, findings);
}

/// Checks a relay, its event sources, its alarms and its role.
pub(crate) fn check_relay(relay: &Relay, resources: &[Resource], findings: &mut Findings) {
    let function = &relay.function;
    findings.about(format!("function {}", function.name));
    settings::settings(function, Kind::Relay, findings);
    settings::log_level(function, findings);
    relay::relay(relay, resources, findings);
    findings.about(format!("role of function {}", function.name));
    permissions::of_relay(relay, findings);
}

/// Checks where the alarms of a stack send notifications, as its output says.
pub(crate) fn notifications(stack: &str, told: &str) -> Option<Finding> {
    let nobody = told.starts_with("NONE");
    nobody.then(|| Finding {
        check: Check::AlarmActions,
        resource: format!("stack {stack}"),
        found: "the alarms notify nobody".to_owned(),
        consequence: "an outage shows on the dashboard alone, and its messages reach the dead-letter queue",
        fix: "deploy with AlarmEmail or AlarmTopicArn, then test the way: docs/runbook.md#test-the-notifications"
            .to_owned(),
    })
}

/// Returns the name at the end of an ARN.
fn name(arn: &str) -> &str {
    arn.rsplit([':', '/']).next().unwrap_or(arn)
}

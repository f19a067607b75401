//! The checks: from the facts of a function to findings. No I/O.

mod database;
mod permissions;
mod queues;
mod relay;
mod tables;

use std::time::Duration;

use aws_sdk_lambda::types::ApplicationLogLevel as Level;
use serde_json::{Value, json};
use sqs_once::{Settings, telemetry};

pub(crate) use database::Client;
#[cfg(feature = "postgres")]
pub(crate) use database::{Server, check_server};

use super::facts::{Consumer, Deployed, Records, Relay, Resource};

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
    /// The effect on messages and records if it stays.
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

    /// Says of the resource that something was not checked.
    pub(crate) fn skip(&mut self, reason: impl Into<String>) {
        self.not_checked.push(NotChecked {
            resource: self.resource.clone(),
            reason: reason.into(),
        });
    }

    /// The resource that the next findings are about.
    pub(crate) fn about(&mut self, resource: impl Into<String>) {
        self.resource = resource.into();
    }
}

/// Checks a consumer, its queues, its tables in DynamoDB and its role.
pub(crate) fn check(consumer: &Consumer, findings: &mut Findings) {
    let function = &consumer.function;
    findings.about(format!("function {}", function.name));
    let kind = match &consumer.records {
        Records::DynamoDb(_) => Kind::Consumer,
        Records::Postgres { .. } => Kind::InPostgres,
    };
    settings(function, kind, findings);
    if consumer.mappings.is_empty() {
        findings.add(
            Check::Mapping,
            "no queue is an event source of the function",
            "the function processes nothing",
            "add an event source mapping with ReportBatchItemFailures",
        );
    }
    time_to_start(function, findings);
    log_level(function, findings);
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
    settings(function, Kind::Relay, findings);
    log_level(function, findings);
    relay::relay(relay, resources, findings);
    findings.about(format!("role of function {}", function.name));
    permissions::of_relay(relay, findings);
}

/// Checks where the alarms of a stack notify, as its output says.
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

/// The name at the end of an ARN.
fn name(arn: &str) -> &str {
    arn.rsplit([':', '/']).next().unwrap_or(arn)
}

/// The settings that a function reads.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Consumer,
    InPostgres,
    Relay,
}

impl Kind {
    /// Reads the settings, which then know their errors. Returns false if this tool was built without the
    /// feature that reads them.
    fn read(self, settings: &mut Settings) -> bool {
        match self {
            Self::Consumer => settings.read_once(),
            #[cfg(feature = "postgres")]
            Self::InPostgres => {
                let _errors_are_kept = sqs_once_outbox::DatabaseWithRelay::read(settings);
                settings.read_consumer();
            }
            Self::Relay => {
                #[cfg(feature = "postgres")]
                if settings.value("IDEMPOTENCY_POSTGRES_URL").is_some() {
                    let _errors_are_kept = sqs_once_postgres::DatabaseSettings::read(settings);
                }
                let _errors_are_kept = sqs_once_outbox::RelaySettings::read(settings);
                settings.read_runtime();
            }
            #[cfg(not(feature = "postgres"))]
            Self::InPostgres => return false,
        }
        true
    }
}

fn settings(function: &Deployed, kind: Kind, findings: &mut Findings) {
    let lambda = [
        ("AWS_LAMBDA_RUNTIME_API", "127.0.0.1"),
        ("AWS_LAMBDA_FUNCTION_NAME", &*function.name),
    ];
    let variables = function.variables.iter();
    let variables = variables.map(|(name, value)| (name.as_str(), value.as_str()));
    let mut settings = Settings::from_vars(variables.chain(lambda));
    if !kind.read(&mut settings) {
        findings.skip("its variables: this tool was built without the feature `postgres`");
        return;
    }
    for (name, nearest) in settings.unknown() {
        findings.add(
            Check::UnknownVariables,
            format!("no setting has the name {name}"),
            "the variable has no effect: the default of the setting that was meant holds",
            match nearest {
                Some(nearest) => format!("rename it to {nearest}, or remove it"),
                None => "correct the name, or remove it; if the handler reads the variable, pass --skip unknown-variables".to_owned(),
            },
        );
    }
    let consequence = match kind {
        Kind::Relay => "the function does not start, and no target gets events",
        _ => "the function does not start, and every message fails",
    };
    for problem in settings.errors() {
        let fix = "correct the variable: see docs/settings.md";
        findings.add(Check::Settings, problem.clone(), consequence, fix);
    }
}

fn time_to_start(function: &Deployed, findings: &mut Findings) {
    let to_start = function.span("CONSUMER_MIN_TIME_TO_START", Duration::ZERO);
    let reserve = function.span("CONSUMER_DEADLINE_RESERVE", Duration::from_millis(500));
    if to_start + reserve >= function.timeout {
        findings.add(
            Check::TimeToStart,
            format!(
                "CONSUMER_MIN_TIME_TO_START and CONSUMER_DEADLINE_RESERVE are {:?} together, and the function has {:?}",
                to_start + reserve,
                function.timeout
            ),
            "no message ever starts: each returns to the queue at once, and reaches the dead-letter queue",
            "lower the settings, or raise the timeout of the function",
        );
    }
}

/// Metrics are lines at INFO.
fn log_level(function: &Deployed, findings: &mut Findings) {
    if function.variable("CONSUMER_METRICS") == Some("off") {
        return;
    }
    let (setting, level) = match (&function.log_level, function.variable("RUST_LOG")) {
        (Some(level @ (Level::Warn | Level::Error | Level::Fatal)), _) => {
            ("LoggingConfig.ApplicationLogLevel", level.as_str())
        }
        // With JSON logs, Lambda passes its own level, which comes before this variable.
        (None, Some(level)) if !telemetry::logs_info(level) => ("RUST_LOG", level),
        _ => return,
    };
    findings.add(
        Check::LogLevel,
        format!("{setting} is {level}"),
        "the lines of completed messages and batches are dropped, and with them the metrics: no alarm on them fires",
        format!("set {setting} to INFO, or CONSUMER_METRICS to off"),
    );
}

#[cfg(all(test, feature = "postgres"))]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn documented_and_deployed_variables_are_known() {
        let (page, template) = (
            include_str!("../../../../docs/settings.md"),
            include_str!("../../../../template.yaml"),
        );
        assert_known(page, &[Kind::Consumer, Kind::InPostgres, Kind::Relay]);
        assert_known(template, &[Kind::Consumer]);
    }

    /// Asserts that one of these functions reads each variable that the text names.
    fn assert_known(text: &str, kinds: &[Kind]) {
        let is_of_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let words = text.split(|c| !is_of_name(c));
        let prefixes = ["CONSUMER_", "IDEMPOTENCY_", "OUTBOX_"];
        // `CONSUMER_BACKOFF_...` stands for two names.
        let is_name = |word: &&str| {
            prefixes.iter().any(|prefix| word.starts_with(prefix)) && !word.ends_with('_')
        };
        let names: BTreeSet<_> = words.filter(is_name).collect();
        assert!(names.len() > 25, "{names:?}");
        let mut settings = Settings::from_vars(names.into_iter().map(|name| (name, "1")));
        for kind in kinds {
            assert!(kind.read(&mut settings));
        }
        assert_eq!(settings.unknown(), []);
    }

    #[test]
    fn invalid_runtime_is_an_error_of_each_kind() {
        for kind in [Kind::Consumer, Kind::InPostgres, Kind::Relay] {
            let mut settings = Settings::from_vars([("CONSUMER_RUNTIME", "two")]);
            kind.read(&mut settings);
            let is_of_runtime = |error: &&String| error.starts_with("CONSUMER_RUNTIME:");
            assert_eq!(settings.errors().iter().filter(is_of_runtime).count(), 1);
        }
    }
}

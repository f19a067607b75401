//! The checks: from the facts of a consumer to findings. No I/O.

use std::time::Duration;

use aws_sdk_dynamodb::types::KeyType;
use aws_sdk_lambda::types::ApplicationLogLevel as Level;
use serde_json::{Value, json};
use sqs_once::{Settings, store::Field, telemetry};

use super::facts::{Consumer, DeadLetterQueue, Mapping, SourceQueue, Table};
use crate::output::in_words;

/// Time for which trouble must last before it moves a message to the dead-letter queue.
const SHORTEST_WAY: Duration = Duration::from_secs(12 * 3600);
/// The place of the values that satisfy [`SHORTEST_WAY`] and the retention.
const VALUES: &str = "docs/operations.md#outages-that-messages-survive";
/// Visibility timeout that AWS recommends, in function timeouts (*AWS Lambda Developer Guide*,
/// "Using Lambda with Amazon SQS").
const TIMEOUTS: u32 = 6;

/// The default of `CONSUMER_CRASH_WAITS`.
const CRASH_WAITS: &str = "20m,2h,10h";

/// Declares [`Check`] with its names.
macro_rules! checks {
    ($($check:ident $name:literal)+) => {
        /// A check. Its name is stable: `--skip` takes it.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
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

/// Collects findings about one resource after the other.
pub(crate) struct Findings {
    all: Vec<Finding>,
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
}

/// Checks a consumer, its queues, its table and its role.
pub(crate) fn check(consumer: &Consumer) -> Vec<Finding> {
    let mut findings = Findings {
        all: Vec::new(),
        resource: format!("function {}", consumer.name),
    };
    function(consumer, &mut findings);
    for mapping in &consumer.mappings {
        findings.resource = format!(
            "event source mapping {} of {}",
            mapping.id,
            name(&mapping.queue.arn)
        );
        source(consumer, mapping, &mut findings);
        findings.resource = format!("queue {}", name(&mapping.queue.arn));
        queue(consumer, mapping, &mut findings);
    }
    findings.resource = format!(
        "table {}",
        variable(consumer, "IDEMPOTENCY_TABLE_NAME").unwrap_or_default()
    );
    match &consumer.table {
        None => findings.add(
            Check::Table,
            "DynamoDB has no such table",
            "every message fails, and reaches the dead-letter queue",
            "correct IDEMPOTENCY_TABLE_NAME, or create the table",
        ),
        Some(found) => table(consumer, found, &mut findings),
    }
    findings.resource = format!("role of function {}", consumer.name);
    permissions(consumer, &mut findings);
    findings.all
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

fn variable<'a>(consumer: &'a Consumer, name: &str) -> Option<&'a str> {
    let value = consumer.variables.get(name).map(String::as_str);
    value.filter(|value| !value.is_empty())
}

/// A duration of the consumer's variables. An invalid one is a finding of its own.
fn span(consumer: &Consumer, name: &str, default: Duration) -> Duration {
    let text = variable(consumer, name);
    let parsed = text.and_then(|text| humantime::parse_duration(text).ok());
    parsed.unwrap_or(default)
}

/// The name at the end of an ARN.
fn name(arn: &str) -> &str {
    arn.rsplit([':', '/']).next().unwrap_or(arn)
}

fn function(consumer: &Consumer, findings: &mut Findings) {
    let lambda = [
        ("AWS_LAMBDA_RUNTIME_API", "127.0.0.1"),
        ("AWS_LAMBDA_FUNCTION_NAME", &consumer.name),
    ];
    let variables = consumer.variables.iter();
    let variables = variables.map(|(name, value)| (name.as_str(), value.as_str()));
    let settings = Settings::from_vars(variables.chain(lambda));
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
    for problem in settings.problems() {
        findings.add(
            Check::Settings,
            problem,
            "the function does not start, and every message fails",
            "correct the variable: see docs/settings.md",
        );
    }
    if consumer.mappings.is_empty() {
        findings.add(
            Check::Mapping,
            "no queue is an event source of the function",
            "the function processes nothing",
            "add an event source mapping with ReportBatchItemFailures",
        );
    }
    let to_start = span(consumer, "CONSUMER_MIN_TIME_TO_START", Duration::ZERO);
    let reserve = span(
        consumer,
        "CONSUMER_DEADLINE_RESERVE",
        Duration::from_millis(500),
    );
    if to_start + reserve >= consumer.timeout {
        findings.add(
            Check::TimeToStart,
            format!(
                "CONSUMER_MIN_TIME_TO_START and CONSUMER_DEADLINE_RESERVE are {:?} together, and the function has {:?}",
                to_start + reserve,
                consumer.timeout
            ),
            "no message ever starts: each returns to the queue at once, and reaches the dead-letter queue",
            "lower the settings, or raise the timeout of the function",
        );
    }
    log_level(consumer, findings);
}

/// Metrics are lines at INFO.
fn log_level(consumer: &Consumer, findings: &mut Findings) {
    if variable(consumer, "CONSUMER_METRICS") == Some("off") {
        return;
    }
    let (setting, level) = match (&consumer.log_level, variable(consumer, "RUST_LOG")) {
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

fn source(consumer: &Consumer, mapping: &Mapping, findings: &mut Findings) {
    if !mapping.enabled {
        findings.add(
            Check::MappingEnabled,
            "the mapping is disabled",
            "messages wait in the queue until its retention ends, and are then lost",
            "enable the mapping once the reason for the pause is gone",
        );
    }
    if !mapping.reports_failures {
        findings.add(
            Check::PartialResponses,
            "FunctionResponseTypes lacks ReportBatchItemFailures",
            "Lambda ignores which messages failed, and deletes them: they are lost",
            "set FunctionResponseTypes: [ReportBatchItemFailures]",
        );
    }
    if mapping.filters {
        findings.add(
            Check::FilterCriteria,
            "the mapping has filter criteria",
            "Lambda deletes each message that matches no filter: it is lost",
            "filter in the handler, or at the producer; if the loss is intended, pass --skip filter-criteria",
        );
    }
    if let (Some(maximum), true) = (mapping.maximum_concurrency, mapping.provisioned_pollers) {
        findings.add(
            Check::Scaling,
            format!("MaximumConcurrency is {maximum}, and the mapping has provisioned pollers"),
            "Lambda takes one of the two: the next deployment fails, or the limit does not hold",
            "remove MaximumConcurrency or ProvisionedPollerConfig",
        );
    }
    let wanted = consumer.timeout * TIMEOUTS + mapping.window;
    if mapping.queue.visibility_timeout < wanted {
        findings.add(
            Check::VisibilityTimeout,
            format!(
                "the visibility timeout of the queue is {}, and the function has {}",
                in_words(mapping.queue.visibility_timeout),
                in_words(consumer.timeout)
            ),
            "SQS delivers messages again while the first delivery is retried by Lambda or still runs: receives are used up by conflicts",
            format!(
                "set VisibilityTimeout to {} s or more: six function timeouts, and the batching window",
                wanted.as_secs()
            ),
        );
    }
}

fn queue(consumer: &Consumer, mapping: &Mapping, findings: &mut Findings) {
    let queue: &SourceQueue = &mapping.queue;
    if variable(consumer, "CONSUMER_CRASH_WAITS") == Some("off") {
        findings.add(
            Check::CrashWaits,
            "CONSUMER_CRASH_WAITS is off",
            "a message that ends its process takes its batch with it at each receive, until all of them are in the dead-letter queue",
            "remove CONSUMER_CRASH_WAITS",
        );
    }
    let mut longest = queue.retention;
    match &queue.dead_letters {
        None => findings.add(
            Check::DeadLetterQueue,
            "the queue has no dead-letter queue",
            "a message that fails permanently is received again until the retention ends, and is then lost",
            format!("set a RedrivePolicy with a dead-letter queue and the maxReceiveCount of {VALUES}"),
        ),
        Some(dead) => {
            let dead: &DeadLetterQueue = dead;
            longest += dead.retention;
            let receives = dead.max_receive_count;
            let (shortest, longest) = ways(consumer, mapping, receives);
            if shortest < SHORTEST_WAY {
                findings.add(
                    Check::Receives,
                    format!(
                        "maxReceiveCount is {receives}: a message may be in the dead-letter queue after {}",
                        in_words(shortest)
                    ),
                    "an outage of that length, a broken build or dying workers move good messages to the dead-letter queue",
                    format!(
                        "set maxReceiveCount, visibility timeout and CONSUMER_BACKOFF_CAP as in {VALUES}; a stack of the template needs one deployment with MaxReceiveCount=\"\""
                    ),
                );
            }
            let needed = receives_until_crashed(consumer, mapping);
            if let Some(needed) = needed.filter(|needed| shortest >= SHORTEST_WAY && receives < *needed)
            {
                findings.add(
                    Check::CrashWaits,
                    format!(
                        "maxReceiveCount is {receives}, and a message that ends its process needs {needed} receives until it is `crashed`"
                    ),
                    "it is in the dead-letter queue before, without a reason",
                    "shorten CONSUMER_CRASH_WAITS, or raise maxReceiveCount",
                );
            }
            if longest > queue.retention * 3 / 4 {
                findings.add(
                    Check::QueueRetention,
                    format!(
                        "{receives} receives can last {}, and the queue keeps messages for {}",
                        in_words(longest),
                        in_words(queue.retention)
                    ),
                    "SQS deletes a message that fails for so long before it reaches the dead-letter queue: it is lost",
                    format!(
                        "set maxReceiveCount, visibility timeout and CONSUMER_BACKOFF_CAP as in {VALUES}, or raise MessageRetentionPeriod"
                    ),
                );
            }
            if dead.retention <= queue.retention {
                findings.add(
                    Check::DeadLetterRetention,
                    format!(
                        "the dead-letter queue keeps messages for {}, and the queue for {}",
                        in_words(dead.retention),
                        in_words(queue.retention)
                    ),
                    "on a standard queue the age counts from the first send: a dead letter can be deleted as soon as it arrives",
                    "raise MessageRetentionPeriod of the dead-letter queue to 1209600 s (14 days)",
                );
            }
        }
    }
    let kept = span(
        consumer,
        "IDEMPOTENCY_RETENTION",
        Duration::from_secs(20 * 86_400),
    );
    if kept < longest {
        findings.add(
            Check::RecordRetention,
            format!(
                "records are kept for {}, and a message can live for {} in queue and dead-letter queue",
                in_words(kept),
                in_words(longest)
            ),
            "a message that is redriven after its record expired runs a second time",
            format!("set IDEMPOTENCY_RETENTION to {}d or more", longest.as_secs().div_ceil(86_400)),
        );
    }
}

/// Receives of a message that ends its process until it is `crashed`: one for each death, one or more conflicts
/// while it rests, and the last. `None` if it never is.
fn receives_until_crashed(consumer: &Consumer, mapping: &Mapping) -> Option<u64> {
    let waits = variable(consumer, "CONSUMER_CRASH_WAITS").unwrap_or(CRASH_WAITS);
    let waits = waits
        .split(',')
        .map(|wait| humantime::parse_duration(wait.trim()));
    let waits: Vec<_> = waits.collect::<Result<_, _>>().ok()?;
    let conflicts = |wait: &Duration| {
        if variable(consumer, "CONSUMER_VISIBILITY") == Some("off") {
            wait.as_secs()
                .div_ceil(mapping.queue.visibility_timeout.as_secs().max(1))
        } else {
            1
        }
    };
    // The first death is beside others. The last one alone has no rest.
    let deaths = waits.len() as u64 + 2;
    Some(deaths + waits.iter().map(conflicts).sum::<u64>() + 1)
}

/// The shortest and the longest time from the first receive of a message to the dead-letter queue, if
/// no time passes in the queue. A worker that dies leaves the visibility timeout. After a failure the
/// message waits for at least half of the back-off.
fn ways(consumer: &Consumer, mapping: &Mapping, receives: u64) -> (Duration, Duration) {
    let visibility_timeout = mapping.queue.visibility_timeout;
    let sets_timeouts = variable(consumer, "CONSUMER_VISIBILITY") != Some("off");
    let base = span(consumer, "CONSUMER_BACKOFF_BASE", Duration::from_secs(10));
    let cap = span(
        consumer,
        "CONSUMER_BACKOFF_CAP",
        Duration::from_secs(15 * 60),
    );
    let back_off = |receive: u64| {
        let doubled = u32::try_from(receive - 1).ok();
        let doubled = doubled.and_then(|exponent| 2_u32.checked_pow(exponent));
        base.saturating_mul(doubled.unwrap_or(u32::MAX)).min(cap)
    };
    let shortest = |receive| {
        if sets_timeouts {
            visibility_timeout.min(back_off(receive) / 2)
        } else {
            visibility_timeout
        }
    };
    let longest = |receive| {
        if sets_timeouts {
            visibility_timeout.max(back_off(receive) + consumer.timeout + mapping.window)
        } else {
            visibility_timeout
        }
    };
    (
        (1..receives).map(shortest).sum(),
        (1..=receives).map(longest).sum(),
    )
}

/// The name of a record's attribute in this consumer's layout.
fn attribute(consumer: &Consumer, field: Field) -> String {
    let names = variable(consumer, "IDEMPOTENCY_ATTRIBUTES").unwrap_or_default();
    let mut pairs = names.split(',').filter_map(|pair| pair.split_once('='));
    let renamed = pairs.rfind(|(native, _)| *native == field.native_name());
    let powertools = variable(consumer, "IDEMPOTENCY_LAYOUT") == Some("powertools");
    match renamed {
        Some((_, name)) => name.to_owned(),
        None if powertools && field == Field::ExpiresAt => "expiration".to_owned(),
        None => field.native_name().to_owned(),
    }
}

fn table(consumer: &Consumer, table: &Table, findings: &mut Findings) {
    let mut wanted = vec![(attribute(consumer, Field::Id), KeyType::Hash, true)];
    if let Some(sort) = variable(consumer, "IDEMPOTENCY_SORT_KEY") {
        let name = sort.split_once('=').map_or(sort, |(name, _)| name);
        wanted.push((name.to_owned(), KeyType::Range, true));
    }
    if table.keys != wanted {
        let text = |keys: &[(String, KeyType, bool)]| {
            let keys = keys.iter().map(|(name, role, string)| {
                let kind = if *string { "string" } else { "no string" };
                format!("{name} ({role}, {kind})")
            });
            keys.collect::<Vec<_>>().join(", ")
        };
        findings.add(
            Check::KeySchema,
            format!(
                "the primary key is {}, and the consumer writes {}",
                text(&table.keys),
                text(&wanted)
            ),
            "DynamoDB refuses every claim: every message fails",
            "create a table with that key, or set IDEMPOTENCY_ATTRIBUTES and IDEMPOTENCY_SORT_KEY",
        );
    }
    let expires = attribute(consumer, Field::ExpiresAt);
    match &table.ttl_attribute {
        None => findings.add(
            Check::Ttl,
            "TTL is off",
            "DynamoDB never deletes records: the table and its cost grow without end",
            format!("enable TTL on the attribute `{expires}`"),
        ),
        Some(attribute) if *attribute != expires => findings.add(
            Check::Ttl,
            format!("TTL is on the attribute `{attribute}`"),
            "DynamoDB deletes records too early, and their messages run again; or never, and the table grows",
            format!("move TTL to the attribute `{expires}`"),
        ),
        Some(_) => {}
    }
    let region = table.arn.split(':').nth(3).unwrap_or_default();
    if !region.is_empty() && region != consumer.region {
        findings.add(
            Check::TableRegion,
            format!("the table is in {region}, and the function in {}", consumer.region),
            "each claim takes a request between Regions: messages are slow, and fail when either Region does",
            "use a table in the Region of the function",
        );
    }
    if table.strongly_consistent {
        findings.add(
            Check::GlobalTable,
            "the table is a global table with strong consistency",
            "it has no TTL and no transactions: records stay, and an inbox fails",
            "use a table in one Region",
        );
    } else if table.replicas.iter().any(|replica| replica != region) {
        findings.add(
            Check::GlobalTable,
            format!("the table has replicas: {}", table.replicas.join(", ")),
            "DynamoDB checks conditions in each Region separately: consumers in two Regions both run a message",
            "let the consumers of one Region write; if they do, pass --skip global-table",
        );
    }
}

/// The ARNs of a bucket and of its objects.
struct Bucket {
    arn: String,
    objects: String,
}

impl Bucket {
    fn new(consumer: &Consumer, name: &str, objects: &str) -> Self {
        let partition = consumer.log_stream.split(':').nth(1).unwrap_or("aws");
        let arn = format!("arn:{partition}:s3:::{name}");
        let objects = format!("{arn}/{objects}");
        Self { arn, objects }
    }
}

/// The buckets from which the consumer reads bodies.
fn buckets(consumer: &Consumer) -> Vec<Bucket> {
    let names = variable(consumer, "CONSUMER_S3_BUCKETS").into_iter();
    let names = names.flat_map(|names| names.split(','));
    names.map(|name| Bucket::new(consumer, name, "*")).collect()
}

/// The bucket of large outputs.
fn result_bucket(consumer: &Consumer) -> Option<Bucket> {
    let name = variable(consumer, "IDEMPOTENCY_RESULT_BUCKET");
    let in_s3 = variable(consumer, "IDEMPOTENCY_RESULTS") == Some("s3");
    let name = name.filter(|_| in_s3)?;
    Some(Bucket::new(consumer, name, "results/*"))
}

fn permissions(consumer: &Consumer, findings: &mut Findings) {
    let Some(policies) = &consumer.policies else {
        return;
    };
    let is = |name, value| variable(consumer, name) == Some(value);
    let (buckets, results) = (buckets(consumer), result_bucket(consumer));
    let mut wanted: Vec<(&str, &str, &'static str)> = Vec::new();
    let fails = "every message fails";
    if let Some(table) = &consumer.table {
        let actions = [
            "dynamodb:PutItem",
            "dynamodb:UpdateItem",
            "dynamodb:DeleteItem",
        ];
        wanted.extend(actions.map(|action| (action, &*table.arn, fails)));
        if is("IDEMPOTENCY_GROUPING", "on") {
            let alone = "grouping is off, with a warning, after the first group of writes";
            let actions = ["dynamodb:PartiQLInsert", "dynamodb:PartiQLUpdate"];
            wanted.extend(actions.map(|action| (action, &*table.arn, alone)));
        }
        if !is("CONSUMER_PRIME", "off") {
            let slow = "each start logs a warning, and the first message waits for the connection";
            wanted.push(("dynamodb:GetItem", &table.arn, slow));
        }
    }
    for queue in consumer.mappings.iter().map(|mapping| &mapping.queue) {
        let actions = [
            "sqs:ReceiveMessage",
            "sqs:DeleteMessage",
            "sqs:GetQueueAttributes",
        ];
        let stops = "Lambda stops to read the queue, and disables the mapping";
        wanted.extend(actions.map(|action| (action, &*queue.arn, stops)));
        if !is("CONSUMER_VISIBILITY", "off") {
            let actions = ["sqs:GetQueueUrl", "sqs:ChangeMessageVisibility"];
            let waits = "failed messages wait for the queue's visibility timeout, without back-off";
            wanted.extend(actions.map(|action| (action, &*queue.arn, waits)));
        }
        if let Some(dead) = &queue.dead_letters
            && !is("CONSUMER_DEAD_LETTER", "off")
            && !is("CONSUMER_VISIBILITY", "off")
        {
            let actions = ["sqs:GetQueueUrl", "sqs:SendMessage"];
            let indirect = "permanent failures reach the dead-letter queue only after maxReceiveCount, without a reason";
            wanted.extend(actions.map(|action| (action, &*dead.arn, indirect)));
        }
    }
    for bucket in &buckets {
        let unread =
            "messages whose body is in the bucket return until they reach the dead-letter queue";
        wanted.push(("s3:GetObject", &bucket.objects, unread));
        let missing = "S3 denies access to a missing object, so its message is retried";
        wanted.push(("s3:ListBucket", &bucket.arn, missing));
    }
    if let Some(bucket) = &results {
        let omitted = "large outputs are not stored, and duplicates get none";
        wanted.push(("s3:PutObject", &bucket.objects, omitted));
        let unread = "duplicates whose handler asks for a large output are retried";
        wanted.push(("s3:GetObject", &bucket.objects, unread));
        let lost = "S3 denies access to a lost output, so the error does not say that it is lost";
        wanted.push(("s3:ListBucket", &bucket.arn, lost));
    }
    let silent = "the function writes no logs and no metrics: no alarm on them fires";
    for action in ["logs:CreateLogStream", "logs:PutLogEvents"] {
        wanted.push((action, &consumer.log_stream, silent));
    }
    for (action, resource, consequence) in wanted {
        if !policies.may_allow(action, resource) {
            findings.add(
                Check::Permissions,
                format!("no policy allows {action} on {resource}"),
                consequence,
                format!("allow {action} on {resource} in a policy of the role"),
            );
        }
    }
}

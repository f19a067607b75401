//! The checks for a consumer with its queues and tables, and for a relay.

use std::time::Duration;

use aws_sdk_dynamodb::types::{
    KeyType, MultiRegionConsistency, ScalarAttributeType, TableDescription,
};
use aws_sdk_sqs::types::QueueAttributeName;
use serde_json::Value;
use sqs_once::internal::{
    LEAST_OUTAGE, survived_outage,
    table::{
        CONSUMER_BACKOFF_BASE, CONSUMER_BACKOFF_CAP, CONSUMER_CALL_KEY_LIFETIME,
        CONSUMER_VISIBILITY, IDEMPOTENCY_RETENTION,
    },
};

use super::{
    Check, Findings,
    account::{
        Account, Function, Mapping, QueueAttributes, is_enabled, reports_failures, sources_of,
    },
    permissions::{Needed, arn_of_target, of_buckets, of_records},
};
use crate::output::{Error, in_words};

/// The visibility timeout that AWS recommends, as a multiple of the function timeout (*AWS Lambda Developer
/// Guide*, "Using Lambda with Amazon SQS").
const TIMEOUTS: u32 = 6;
/// The section with values that fit together: messages survive an outage, and still reach the dead-letter queue before their
/// retention ends.
const VALUES: &str = "docs/operations.md#outages-that-messages-survive";

/// Checks a consumer, its queues and its tables. Returns what its role needs.
pub(super) async fn consumer(
    account: &Account,
    function: &Function,
    mappings: &[Mapping],
    findings: &mut Findings,
) -> Result<Vec<Needed>, Error> {
    let mut needed = of_buckets(function);
    let queues: Vec<_> = sources_of("sqs", mappings).collect();
    if queues.is_empty() {
        findings.skip("its queue: no queue is an event source of the function");
    }
    for mapping in queues {
        needed.extend(queue(account, function, mapping, findings).await?);
    }
    if let Some(name) = function.variable("IDEMPOTENCY_TABLE_NAME") {
        findings.about(format!("table {name}"));
        match account.table(name).await? {
            None => findings.add(
                Check::KeySchema,
                "DynamoDB has no such table",
                "every message fails, and reaches the dead-letter queue",
                "correct IDEMPOTENCY_TABLE_NAME, or create the table",
            ),
            Some(table) => {
                let ttl = account.ttl(name).await?;
                of_table(function, &table, ttl.as_deref(), findings);
                needed.push(of_records(function, table.table_arn().unwrap_or_default()));
            }
        }
    }
    if let Some(name) = function.variable("OUTBOX_TABLE_NAME") {
        findings.about(format!("table {name}"));
        let fails = "each message whose answer publishes fails, and reaches the dead-letter queue";
        match account.table(name).await? {
            None => findings.add(
                Check::KeySchema,
                "DynamoDB has no such table",
                fails,
                "correct OUTBOX_TABLE_NAME, or create the table: docs/outbox.md",
            ),
            Some(table) => {
                key_schema(&table, &["group", "sequence"], fails, findings);
                let arn = table.table_arn().unwrap_or_default();
                needed.push(Needed::new(arn, ["dynamodb:PutItem"], fails));
            }
        }
    }
    Ok(needed)
}

/// Adds a note if a topic has no confirmed subscription. An alarm sent to it would reach nobody.
pub(super) async fn topic(account: &Account, topic: &str, findings: &mut Findings) {
    match account.subscriptions(topic).await {
        Ok(0) => findings.note(
            "nobody has confirmed a subscription: an alarm that goes there tells nobody; confirm the email from AWS",
        ),
        Ok(_) => {}
        Err(error) => findings.skip(error.to_string()),
    }
}

/// Adds a note if a mapping is disabled or could not deliver.
fn deliveries(mapping: &Mapping, findings: &mut Findings) {
    let id = mapping.uuid().unwrap_or_default();
    if !is_enabled(mapping) {
        findings.note(format!(
            "the consumer is paused: the mapping {id} is disabled, and messages wait until it is enabled"
        ));
    }
    let last = mapping.last_processing_result().unwrap_or_default();
    if last.starts_with("PROBLEM") {
        findings.note(format!("Lambda says of the mapping {id}: {last}"));
    }
}

/// Checks a queue, its event source mapping and its dead-letter queue. Returns what the role needs on both
/// queues.
async fn queue(
    account: &Account,
    function: &Function,
    mapping: &Mapping,
    findings: &mut Findings,
) -> Result<Vec<Needed>, Error> {
    let arn = mapping.event_source_arn().unwrap_or_default();
    let queue = account.queue(arn).await?.unwrap_or_default();
    let name = arn.rsplit(':').next().unwrap_or(arn);
    findings.about(format!("queue {name}"));
    deliveries(mapping, findings);
    partial_responses(
        mapping,
        "Lambda ignores which messages failed, and deletes them: they are lost",
        findings,
    );
    let window = mapping.maximum_batching_window_in_seconds().unwrap_or(0);
    let window = Duration::from_secs(window.try_into().unwrap_or(0));
    visibility_timeout(function, &queue, window, findings);

    let sets_timeouts = function.is_on(CONSUMER_VISIBILITY.name);
    let mut needed = vec![Needed::new(
        arn,
        [
            "sqs:ReceiveMessage",
            "sqs:DeleteMessage",
            "sqs:GetQueueAttributes",
        ],
        "Lambda stops to read the queue, and disables the mapping",
    )];
    if sets_timeouts {
        let actions = ["sqs:GetQueueUrl", "sqs:ChangeMessageVisibility"];
        let waits = "failed messages wait for the queue's visibility timeout, without backoff";
        needed.push(Needed::new(arn, actions, waits));
    }

    let policy: Value = queue
        .get(&QueueAttributeName::RedrivePolicy)
        .and_then(|policy| serde_json::from_str(policy).ok())
        .unwrap_or_default();
    let named = policy["deadLetterTargetArn"].as_str();
    let dead = match named {
        Some(arn) => account
            .queue(arn)
            .await?
            .map(|attributes| (arn, attributes)),
        None => None,
    };
    let mut longest = queue.retention();
    if let Some((dead_arn, dead)) = &dead {
        longest += dead.retention();
        let most = &policy["maxReceiveCount"];
        let count = most.as_u64().or_else(|| most.as_str()?.parse().ok());
        let count = count.and_then(|count| count.try_into().ok());
        receives(function, &queue, window, count.unwrap_or(0), findings);
        // For a FIFO queue, a message's age starts again in the dead-letter queue.
        if !arn.ends_with(".fifo") {
            dead_letter_retention(&queue, dead, findings);
        }
        if sets_timeouts && function.is_on("CONSUMER_DIRECT_DEAD_LETTERING") {
            let actions = ["sqs:GetQueueUrl", "sqs:SendMessage"];
            let indirect = "permanent failures reach the dead-letter queue only after maxReceiveCount, without a reason";
            needed.push(Needed::new(*dead_arn, actions, indirect));
        }
    } else {
        findings.add(
            Check::DeadLetterQueue,
            match named {
                Some(arn) => format!("the redrive policy names a queue that does not exist: {arn}"),
                None => "the queue has no dead-letter queue".to_owned(),
            },
            "a message that fails permanently is received again until the retention ends, and is then lost",
            format!("set a RedrivePolicy with a dead-letter queue and the maxReceiveCount of {VALUES}"),
        );
    }
    record_retention(function, longest, findings);
    call_key_lifetime(function, findings);
    Ok(needed)
}

fn visibility_timeout(
    function: &Function,
    queue: &QueueAttributes,
    window: Duration,
    findings: &mut Findings,
) {
    let wanted = function.timeout * TIMEOUTS + window;
    if queue.visibility_timeout() < wanted {
        findings.add(
            Check::VisibilityTimeout,
            format!(
                "the visibility timeout of the queue is {}, and the function has {}",
                in_words(queue.visibility_timeout()),
                in_words(function.timeout)
            ),
            "SQS delivers messages again while the first delivery is retried by Lambda or still runs: receives are used up by conflicts",
            format!(
                "set VisibilityTimeout to {} s or more: six function timeouts, and the batching window",
                wanted.as_secs()
            ),
        );
    }
}

fn dead_letter_retention(queue: &QueueAttributes, dead: &QueueAttributes, findings: &mut Findings) {
    if dead.retention() <= queue.retention() {
        findings.add(
            Check::DeadLetterRetention,
            format!(
                "the dead-letter queue keeps messages for {}, and the queue for {}",
                in_words(dead.retention()),
                in_words(queue.retention())
            ),
            "on a standard queue the age counts from the first send: a dead letter can be deleted as soon as it arrives",
            "raise MessageRetentionPeriod of the dead-letter queue to 1209600 s (14 days)",
        );
    }
}

fn record_retention(function: &Function, longest: Duration, findings: &mut Findings) {
    let kept = function.span(&IDEMPOTENCY_RETENTION);
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

fn call_key_lifetime(function: &Function, findings: &mut Findings) {
    let setting = &CONSUMER_CALL_KEY_LIFETIME;
    if !function.is_on(setting.name) {
        return;
    }
    let lifetime = function.span(setting);
    // A lifetime of 1 ms means at most once.
    if lifetime > Duration::from_millis(1) && lifetime <= function.timeout {
        findings.add(
            Check::CallKeyLifetime,
            format!(
                "{} is {}, and an invocation may last {}",
                setting.name,
                in_words(lifetime),
                in_words(function.timeout)
            ),
            "every retry fails permanently with `too old to repeat`, because its call key may expire before its invocation ends",
            "set a function timeout that is well below the time for which the downstream system remembers a call key",
        );
    }
}

fn partial_responses(mapping: &Mapping, consequence: &'static str, findings: &mut Findings) {
    if !reports_failures(mapping) {
        findings.add(
            Check::PartialResponses,
            format!(
                "FunctionResponseTypes of the mapping {} lacks ReportBatchItemFailures",
                mapping.uuid().unwrap_or_default()
            ),
            consequence,
            "set FunctionResponseTypes: [ReportBatchItemFailures]",
        );
    }
}

/// Checks how long a message can fail before it reaches the dead-letter queue.
fn receives(
    function: &Function,
    queue: &QueueAttributes,
    window: Duration,
    receives: u32,
    findings: &mut Findings,
) {
    let (survived, longest) = ways(function, queue, window, receives);
    if survived < LEAST_OUTAGE {
        findings.add(
            Check::Receives,
            format!(
                "maxReceiveCount is {receives}: an outage that lasts longer than {} can move good messages to the dead-letter queue",
                in_words(survived)
            ),
            "a broken build or dying workers do the same",
            format!("set maxReceiveCount to 130, as our template does (47 for a function timeout over 300 s), and visibility timeout and CONSUMER_BACKOFF_CAP as in {VALUES}"),
        );
    }
    let retention = queue.retention();
    if longest > retention * 3 / 4 {
        findings.add(
            Check::Receives,
            format!(
                "{receives} receives can last {}, and the queue keeps messages for {}",
                in_words(longest),
                in_words(retention)
            ),
            "SQS deletes a message that fails for so long before it reaches the dead-letter queue: it is lost",
            format!(
                "set maxReceiveCount, visibility timeout and CONSUMER_BACKOFF_CAP as in {VALUES}, or raise MessageRetentionPeriod"
            ),
        );
    }
}

/// Returns the longest outage that every message survives, and the longest time that a message takes to reach the
/// dead-letter queue if it never waits for an invocation.
fn ways(
    function: &Function,
    queue: &QueueAttributes,
    window: Duration,
    receives: u32,
) -> (Duration, Duration) {
    let visibility_timeout = queue.visibility_timeout();
    if !function.is_on(CONSUMER_VISIBILITY.name) {
        let times = |count: u32| visibility_timeout * count;
        return (times(receives.saturating_sub(1)), times(receives));
    }
    let base = function.span(&CONSUMER_BACKOFF_BASE);
    let cap = function.span(&CONSUMER_BACKOFF_CAP);
    let survived = survived_outage((base, cap), receives, visibility_timeout);
    let longest = |receive| {
        let doubled = 2_u32.checked_pow(receive - 1).unwrap_or(u32::MAX);
        let backoff = base.saturating_mul(doubled).min(cap);
        visibility_timeout.max(backoff + function.timeout + window)
    };
    (survived, (1..=receives).map(longest).sum())
}

/// Checks the table of records.
fn of_table(
    function: &Function,
    table: &TableDescription,
    ttl: Option<&str>,
    findings: &mut Findings,
) {
    let names = function
        .variable("IDEMPOTENCY_ATTRIBUTES")
        .unwrap_or_default();
    let name = |native: &'static str| {
        let mut pairs = names.split(',').filter_map(|pair| pair.split_once('='));
        pairs
            .rfind(|(of, _)| *of == native)
            .map_or(native, |(_, name)| name)
    };
    let mut wanted = vec![name("id")];
    if let Some(sort) = function.variable("IDEMPOTENCY_SORT_KEY") {
        wanted.push(sort.split_once('=').map_or(sort, |(name, _)| name));
    }
    let refused = "DynamoDB refuses every claim: every message fails";
    key_schema(table, &wanted, refused, findings);
    let expires = name("expires_at");
    match ttl {
        None => findings.add(
            Check::Ttl,
            "TTL is off",
            "DynamoDB never deletes records: the table and its cost grow without end",
            format!("enable TTL on the attribute `{expires}`"),
        ),
        Some(attribute) if attribute != expires => findings.add(
            Check::Ttl,
            format!("TTL is on the attribute `{attribute}`"),
            "DynamoDB deletes records too early, and their messages run again; or never, and the table grows",
            format!("move TTL to the attribute `{expires}`"),
        ),
        Some(_) => {}
    }
    let region = table.table_arn().unwrap_or_default().split(':').nth(3);
    let replicas = table
        .replicas()
        .iter()
        .filter_map(|replica| replica.region_name());
    let others: Vec<_> = replicas
        .filter(|replica| Some(*replica) != region)
        .collect();
    if table.multi_region_consistency() == Some(&MultiRegionConsistency::Strong) {
        findings.add(
            Check::GlobalTable,
            "the table is a global table with strong consistency",
            "it has no TTL and no transactions: records stay, and an inbox fails",
            "use a table in one Region",
        );
    } else if !others.is_empty() {
        findings.add(
            Check::GlobalTable,
            format!("the table has replicas: {}", others.join(", ")),
            "DynamoDB checks conditions in each Region separately: consumers in two Regions both run a message",
            "let the consumers of one Region write; if they do, pass --skip global-table",
        );
    }
}

/// Checks that a table's primary key has these attributes, with the partition key first. All must be strings.
fn key_schema(
    table: &TableDescription,
    wanted: &[&str],
    consequence: &'static str,
    findings: &mut Findings,
) {
    let is_string = |name: &str| {
        let mut definitions = table.attribute_definitions().iter();
        definitions.any(|definition| {
            definition.attribute_name() == name
                && *definition.attribute_type() == ScalarAttributeType::S
        })
    };
    let text = |name: &str, role: &KeyType, is_string: bool| {
        let kind = if is_string { "string" } else { "no string" };
        format!("{name} ({role}, {kind})")
    };
    let found: Vec<_> = table
        .key_schema()
        .iter()
        .map(|key| {
            let name = key.attribute_name();
            text(name, key.key_type(), is_string(name))
        })
        .collect();
    let wanted: Vec<_> = wanted
        .iter()
        .zip(&[KeyType::Hash, KeyType::Range])
        .map(|(name, role)| text(name, role, true))
        .collect();
    if found != wanted {
        let (found, wanted) = (found.join(", "), wanted.join(", "));
        findings.add(
            Check::KeySchema,
            format!("the primary key is {found}, and the consumer writes {wanted}"),
            consequence,
            "create a table with that key, or set IDEMPOTENCY_ATTRIBUTES and IDEMPOTENCY_SORT_KEY",
        );
    }
}

/// Checks that something starts a relay, and that its targets exist. Returns what its role needs.
pub(super) async fn relay(
    account: &Account,
    function: &Function,
    mappings: &[Mapping],
    findings: &mut Findings,
) -> Result<Vec<Needed>, Error> {
    const WAIT: &str = "no event is sent: events wait in PostgreSQL, and DynamoDB drops the records of a stream after 24 hours";
    let streams: Vec<_> = sources_of("dynamodb", mappings).collect();
    let is_started = if streams.is_empty() {
        account.has_schedule(function).await?
    } else {
        streams.iter().any(|mapping| is_enabled(mapping))
    };
    if !is_started {
        findings.add(
            Check::Relay,
            "neither an enabled mapping of a table's stream nor an enabled rule of EventBridge invokes the function",
            WAIT,
            "enable the mapping or the schedule of the template in examples; if something else invokes the function, pass --skip relay",
        );
    }
    let mut needed = Vec::new();
    for mapping in streams {
        let lost = "Lambda ignores which events were not sent: they are lost";
        partial_responses(mapping, lost, findings);
        needed.push(Needed::new(
            mapping.event_source_arn().unwrap_or_default(),
            [
                "dynamodb:DescribeStream",
                "dynamodb:GetRecords",
                "dynamodb:GetShardIterator",
            ],
            "Lambda does not read the stream, and DynamoDB drops its records after 24 hours",
        ));
    }
    let unsent = "its events are not sent: they wait, or go to the relay's dead-letter queue";
    let targets = function
        .variable("OUTBOX_TARGETS")
        .unwrap_or_default()
        .split(',')
        .filter_map(|pair| Some(pair.split_once('=')?.1));
    let dead_letters = function.variable("OUTBOX_DEAD_LETTER_QUEUE_URL");
    for target in targets.chain(dead_letters) {
        match account.has_target(target).await {
            Ok(true) => {}
            Ok(false) => findings.add(
                Check::Relay,
                format!("AWS has no target {target}"),
                unsent,
                "correct OUTBOX_TARGETS or OUTBOX_DEAD_LETTER_QUEUE_URL, or create the target",
            ),
            Err(error) => findings.skip(error.to_string()),
        }
        if let Some(arn) = arn_of_target(function, target) {
            let action = match arn.split(':').nth(2) {
                Some("sns") => "sns:Publish",
                Some("events") => "events:PutEvents",
                _ => "sqs:SendMessage",
            };
            needed.push(Needed::new(arn, [action], unsent));
        }
    }
    Ok(needed)
}

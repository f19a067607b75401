//! Checks of event source mappings, queues and dead-letter queues.

use std::time::Duration;

use sqs_once::protocol::isolation::CrashWaits;
use sqs_once_core::settings::table::{
    CONSUMER_BACKOFF_BASE, CONSUMER_BACKOFF_CAP, CONSUMER_CRASH_ISOLATION, CONSUMER_HEARTBEAT,
    CONSUMER_VISIBILITY, IDEMPOTENCY_RETENTION,
};

use super::{Check, Findings, VALUES};
use crate::{
    doctor::facts::{Consumer, DeadLetterQueue, DeadLetters, Mapping, Records, SourceQueue},
    output::in_words,
};

/// How long an outage must last before messages may move to the dead-letter queue.
const SHORTEST_WAY: Duration = Duration::from_secs(12 * 3600);
/// The visibility timeout that AWS recommends, as a multiple of the function timeout (*AWS Lambda Developer
/// Guide*, "Using Lambda with Amazon SQS").
const TIMEOUTS: u32 = 6;

pub(super) fn source(consumer: &Consumer, mapping: &Mapping, findings: &mut Findings) {
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
    if let (Some(maximum), Some(_)) = (mapping.maximum_concurrency, mapping.maximum_pollers) {
        findings.add(
            Check::Scaling,
            format!("MaximumConcurrency is {maximum}, and the mapping has provisioned pollers"),
            "Lambda takes one of the two: the next deployment fails, or the limit does not hold",
            "remove MaximumConcurrency or ProvisionedPollerConfig",
        );
    }
    let wanted = consumer.function.timeout * TIMEOUTS + mapping.window;
    if mapping.queue.visibility_timeout < wanted {
        findings.add(
            Check::VisibilityTimeout,
            format!(
                "the visibility timeout of the queue is {}, and the function has {}",
                in_words(mapping.queue.visibility_timeout),
                in_words(consumer.function.timeout)
            ),
            "SQS delivers messages again while the first delivery is retried by Lambda or still runs: receives are used up by conflicts",
            format!(
                "set VisibilityTimeout to {} s or more: six function timeouts, and the batching window",
                wanted.as_secs()
            ),
        );
    }
}

pub(super) fn queue(consumer: &Consumer, mapping: &Mapping, findings: &mut Findings) {
    let queue: &SourceQueue = &mapping.queue;
    // In PostgreSQL a crash rolls the claim back, so we cannot know which message crashed.
    let isolates = matches!(consumer.records, Records::DynamoDb(_));
    if isolates && consumer.function.variable(CONSUMER_CRASH_ISOLATION.name) == Some("off") {
        findings.add(
            Check::CrashWaits,
            "CONSUMER_CRASH_ISOLATION is off",
            "a message that ends its process takes its batch with it at each receive, until all of them are in the dead-letter queue",
            "remove CONSUMER_CRASH_ISOLATION",
        );
    }
    let mut longest = queue.retention;
    match &queue.dead_letters {
        DeadLetters::Missing(arn) => findings.add(
            Check::DeadLetterQueue,
            format!("the redrive policy names a queue that does not exist: {arn}"),
            "a message that fails permanently is received again until the retention ends, and is then lost",
            "create the dead-letter queue again, or correct the RedrivePolicy",
        ),
        DeadLetters::None => findings.add(
            Check::DeadLetterQueue,
            "the queue has no dead-letter queue",
            "a message that fails permanently is received again until the retention ends, and is then lost",
            format!("set a RedrivePolicy with a dead-letter queue and the maxReceiveCount of {VALUES}"),
        ),
        DeadLetters::Queue(dead) => {
            longest += dead.retention;
            receives(consumer, mapping, dead, isolates, findings);
            dead_letter_retention(queue, dead, findings);
        }
    }
    let kept = consumer.function.span(&IDEMPOTENCY_RETENTION);
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

/// Checks how long a message can fail before it is in the dead-letter queue.
fn receives(
    consumer: &Consumer,
    mapping: &Mapping,
    dead: &DeadLetterQueue,
    isolates: bool,
    findings: &mut Findings,
) {
    let queue = &mapping.queue;
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
    if isolates && shortest >= SHORTEST_WAY && receives < needed {
        findings.add(
            Check::CrashWaits,
            format!(
                "maxReceiveCount is {receives}, and a message that ends its process needs {needed} receives until it is `crashed`"
            ),
            "it is in the dead-letter queue before, without a reason",
            "raise maxReceiveCount",
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
}

fn dead_letter_retention(queue: &SourceQueue, dead: &DeadLetterQueue, findings: &mut Findings) {
    // On a FIFO queue the age starts anew in the dead-letter queue.
    let keeps_age = !queue.arn.ends_with(".fifo");
    if keeps_age && dead.retention <= queue.retention {
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

/// Returns how often a message that ends its process is received until it is `crashed`: once for each death,
/// one or more times as a conflict while it rests, and once at the end.
fn receives_until_crashed(consumer: &Consumer, mapping: &Mapping) -> u64 {
    let waits = CrashWaits::default();
    let waits: Vec<_> = (1..).map_while(|n| waits.after_death(n)).collect();
    let conflicts = |wait: &Duration| {
        if consumer.function.variable(CONSUMER_VISIBILITY.name) == Some("off") {
            wait.as_secs()
                .div_ceil(mapping.queue.visibility_timeout.as_secs().max(1))
        } else {
            1
        }
    };
    // The first death happens beside other handlers. There is no rest after the last one alone.
    let deaths = waits.len() as u64 + 2;
    deaths + waits.iter().map(conflicts).sum::<u64>() + 1
}

/// The shortest wait after a worker died. With a heartbeat, a batch has the visibility timeout of its latest
/// heartbeat. Isolation after a crash makes a message rest for longer than that.
fn after_death(consumer: &Consumer, mapping: &Mapping) -> Duration {
    let is_isolated = matches!(consumer.records, Records::DynamoDb(_))
        && consumer.function.variable(CONSUMER_CRASH_ISOLATION.name) != Some("off");
    let heartbeat = consumer.function.span(&CONSUMER_HEARTBEAT);
    let visibility_timeout = mapping.queue.visibility_timeout;
    if is_isolated || heartbeat.is_zero() {
        visibility_timeout
    } else {
        visibility_timeout.min(heartbeat)
    }
}

/// The shortest and the longest time from the first receive of a message to the dead-letter queue, if
/// no time passes in the queue. After a failure the message waits for at least half of the back-off.
fn ways(consumer: &Consumer, mapping: &Mapping, receives: u64) -> (Duration, Duration) {
    let visibility_timeout = mapping.queue.visibility_timeout;
    let sets_timeouts = consumer.function.variable(CONSUMER_VISIBILITY.name) != Some("off");
    let base = consumer.function.span(&CONSUMER_BACKOFF_BASE);
    let cap = consumer.function.span(&CONSUMER_BACKOFF_CAP);
    let back_off = |receive: u64| {
        let doubled = u32::try_from(receive - 1)
            .ok()
            .and_then(|exponent| 2_u32.checked_pow(exponent));
        base.saturating_mul(doubled.unwrap_or(u32::MAX)).min(cap)
    };
    let after_death = after_death(consumer, mapping);
    let shortest = |receive| {
        if sets_timeouts {
            after_death.min(back_off(receive) / 2)
        } else {
            visibility_timeout
        }
    };
    let longest = |receive| {
        if sets_timeouts {
            visibility_timeout.max(back_off(receive) + consumer.function.timeout + mapping.window)
        } else {
            visibility_timeout
        }
    };
    (
        (1..receives).map(shortest).sum(),
        (1..=receives).map(longest).sum(),
    )
}

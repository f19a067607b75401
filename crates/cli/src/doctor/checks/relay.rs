//! Checks of a relay: what starts it, and what notices that it does not run.

use serde_json::Value;

use super::{Check, Findings};
use crate::doctor::facts::{Relay, Resource, Schedules, Source, Stream};

/// The alarms of the templates that notice a relay which does not run or does not send.
const ALARMS: [&str; 3] = ["EventsDeadLettered", "EventsDelayed", "RelayStopped"];
/// The same for the PostgreSQL relay, which has no `IteratorAge`.
const ALARMS_IN_POSTGRES: [&str; 2] = ["EventsFailed", "RelayFails"];

/// Checks the sources of a relay and the alarms of its stack.
pub(super) fn relay(relay: &Relay, resources: &[Resource], findings: &mut Findings) {
    let function = format!("function {}", relay.function.name);
    let mut alarms = ALARMS.to_vec();
    match &relay.source {
        Source::Streams(streams) => {
            if streams.is_empty() {
                findings.add(
                    Check::Mapping,
                    "no stream of a table is an event source of the function",
                    "no event is sent, and DynamoDB drops the records of a stream after 24 hours",
                    "add the event source mapping of examples/outbox.template.yaml",
                );
            }
            for of_table in streams {
                findings.about(format!(
                    "event source mapping {} of {function}",
                    of_table.id
                ));
                stream(of_table, findings);
            }
        }
        Source::Postgres { schedules, retries } => {
            alarms.extend(ALARMS_IN_POSTGRES);
            schedule(schedules, findings);
            if *retries > 0 {
                findings.add(
                    Check::RelayRetries,
                    format!("Lambda repeats an invocation that failed up to {retries} times"),
                    "while the database fails, repeated relays run beside those of the schedule, each with a connection",
                    "set EventInvokeConfig: { MaximumRetryAttempts: 0 }: the next minute is the retry",
                );
            }
        }
    }
    findings.about(function);
    let has = |alarm: &str| {
        resources
            .iter()
            .any(|of| of.kind == "AWS::CloudWatch::Alarm" && of.logical == alarm)
    };
    alarms.retain(|alarm| !has(alarm));
    if !alarms.is_empty() {
        findings.add(
            Check::RelayAlarms,
            format!("the stack has no alarm {}", alarms.join(", ")),
            "nobody notices a relay that does not run, or a target that takes no events",
            "add the alarms of the template in examples; if others do the same, pass --skip relay-alarms",
        );
    }
}

fn stream(stream: &Stream, findings: &mut Findings) {
    if !stream.enabled {
        findings.add(
            Check::MappingEnabled,
            "the mapping is disabled",
            "no event is sent, and DynamoDB drops the records of a stream after 24 hours",
            "enable the mapping; after a longer pause, send the items of that time again: docs/outbox.md#operation",
        );
    }
    if !stream.reports_failures {
        findings.add(
            Check::PartialResponses,
            "FunctionResponseTypes lacks ReportBatchItemFailures",
            "Lambda ignores which events were not sent: they are lost",
            "set FunctionResponseTypes: [ReportBatchItemFailures]",
        );
    }
    if stream.parallelization > 1 {
        findings.add(
            Check::Parallelization,
            format!("ParallelizationFactor is {}", stream.parallelization),
            "Lambda sends items of one group side by side, and their order is lost",
            "set ParallelizationFactor: 1",
        );
    }
    if !stream.has_destination {
        findings.add(
            Check::FailureDestination,
            "the mapping has no OnFailure destination",
            "nothing names the batches that Lambda gives up: their events are lost",
            "set DestinationConfig.OnFailure to the dead-letter queue of the outbox",
        );
    }
    for pattern in stream
        .filters
        .iter()
        .filter(|pattern| !lets_events_pass(pattern))
    {
        findings.add(
            Check::FilterCriteria,
            format!("the mapping has the filter {pattern}"),
            "Lambda drops each event that matches no filter: it is lost",
            "filter by eventName alone, with INSERT and MODIFY, as examples/outbox.template.yaml does",
        );
    }
}

/// Returns whether the filter lets every new item pass: it names only `eventName`, and `INSERT`.
fn lets_events_pass(pattern: &str) -> bool {
    let Ok(Value::Object(pattern)) = serde_json::from_str(pattern) else {
        return false;
    };
    let is_insert = |names: &Value| {
        names
            .as_array()
            .is_some_and(|names| names.iter().any(|name| name == "INSERT"))
    };
    pattern
        .iter()
        .all(|(name, names)| name == "eventName" && is_insert(names))
}

fn schedule(schedules: &Schedules, findings: &mut Findings) {
    const WAITS: &str = "events wait in the table: nothing else sends them";
    match schedules {
        Schedules::Unread => {
            findings.skip("its schedule: doctor reads rules of EventBridge, and no schedules of EventBridge Scheduler");
        }
        Schedules::Rules(rules) if rules.is_empty() => findings.add(
            Check::RelaySchedule,
            "no rule of EventBridge invokes the function",
            WAITS,
            "add the schedule of examples/outbox_postgres.template.yaml: rate(1 minute)",
        ),
        Schedules::Rules(rules) if rules.iter().all(|(_, enabled)| !enabled) => {
            let names: Vec<_> = rules.iter().map(|(name, _)| name.as_str()).collect();
            let names = names.join(", ");
            findings.add(
                Check::RelaySchedule,
                format!("the rule that invokes the function is disabled: {names}"),
                WAITS,
                format!("aws events enable-rule --name {names}"),
            );
        }
        Schedules::Rules(_) => {}
    }
}

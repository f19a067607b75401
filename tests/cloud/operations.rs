//! The template's alarms, and the overlay with the others and the dashboard.

use std::{collections::BTreeSet, fs, path::Path};

use regex_lite::Regex;
use serde_json::{Value, json};

use support::{
    emf::documented_outcomes,
    template::{
        CONSUMER, DASHBOARD, OWN_TABLE, STARTER, Template, met, of_type, read, shipped,
        with_dashboard,
    },
};

const OUTBOX: &str = "examples/outbox.template.yaml";
const OUTBOX_POSTGRES: &str = "examples/outbox_postgres.template.yaml";
const RELAYS: [&str; 2] = [OUTBOX, OUTBOX_POSTGRES];

/// Metrics of AWS services, as their guides document them, with the dimension of each.
const OF_SERVICES: [(&str, &str, &[&str]); 3] = [
    (
        "AWS/SQS",
        "QueueName",
        &[
            "ApproximateAgeOfOldestMessage",
            "ApproximateNumberOfMessagesNotVisible",
            "ApproximateNumberOfMessagesVisible",
        ],
    ),
    (
        "AWS/Lambda",
        "FunctionName",
        &["Duration", "Errors", "Throttles"],
    ),
    ("AWS/DynamoDB", "TableName", &["WriteThrottleEvents"]),
];

/// The metrics of the consumer: those that count outcomes, of docs/runbook.md, and those of docs/telemetry.md. The library's unit
/// tests say that it writes these and no others.
fn of_consumer() -> BTreeSet<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/telemetry.md");
    let page = fs::read_to_string(path).unwrap();
    let name = Regex::new(r"\| `([A-Z]\w+)` \|").unwrap();
    let others = name.captures_iter(&page).map(|row| row[1].to_owned());
    let of_outcomes = documented_outcomes().into_values().map(str::to_owned);
    others.chain(of_outcomes).collect()
}

fn assert_exists(namespace: &str, metric: &str, dimension: &str) {
    let exists = if namespace == "sqs-once" {
        dimension == "service" && of_consumer().contains(metric)
    } else {
        OF_SERVICES.iter().any(|(name, of, metrics)| {
            *name == namespace && *of == dimension && metrics.contains(&metric)
        })
    };
    assert!(exists, "{namespace} {metric} {dimension}");
}

fn text(value: &Value) -> String {
    value
        .as_str()
        .map_or_else(|| value.to_string(), str::to_owned)
}

/// The value of a dimension that the template gives each metric.
fn value_of(dimension: &str) -> Vec<Value> {
    match dimension {
        "QueueName" => ["OrdersQueue", "OrdersDeadLetterQueue"]
            .map(|queue| json!({"!GetAtt": format!("{queue}.QueueName")}))
            .into(),
        "TableName" => vec![json!({"!Ref": "IdempotencyTable"})],
        _ => vec![json!({"!Ref": "Consumer"})],
    }
}

#[test]
fn metrics_of_alarms_exist() {
    let template = with_dashboard();
    let alarms = of_type(&template, "AWS::CloudWatch::Alarm");
    for (name, alarm) in &alarms {
        let [dimension] = &alarm["Dimensions"].as_array().unwrap()[..] else {
            panic!("{name}");
        };
        let of = dimension["Name"].as_str().unwrap();
        assert_exists(&text(&alarm["Namespace"]), &text(&alarm["MetricName"]), of);
        let value = met(&dimension["Value"], &[OWN_TABLE]).unwrap();
        assert!(value_of(of).contains(value), "{name}: {value}");
    }
}

/// Metric, dimension, threshold, minutes and missing data of each alarm. An expression in place of the metric would
/// reach CloudWatch with the first deployment: no emulator evaluates one.
fn alarms_of(template: &Value) -> BTreeSet<String> {
    let alarms = of_type(template, "AWS::CloudWatch::Alarm").into_iter();
    alarms
        .map(|(name, alarm)| {
            let word = |member: &str| match &alarm[member] {
                Value::String(text) => text.clone(),
                other => panic!("{name}: {member} is {other}"),
            };
            let of = text(&alarm["Dimensions"][0]["Name"]);
            let is = match &*word("ComparisonOperator") {
                "GreaterThanThreshold" => ">",
                "LessThanThreshold" => "<",
                other => panic!("{name}: {other}"),
            };
            let limit = match &alarm["Threshold"] {
                Value::Number(limit) => limit.to_string(),
                _ => "80% of the timeout".to_owned(),
            };
            let periods = &alarm["EvaluationPeriods"];
            let of_them = match &alarm["DatapointsToAlarm"] {
                Value::Null => periods,
                some => some,
            };
            let (metric, statistic) = (word("MetricName"), word("Statistic"));
            let missing = word("TreatMissingData");
            format!("{metric}, {of}, {statistic} {is} {limit}, {of_them} of {periods}, {missing}")
        })
        .collect()
}

/// SQS reports nothing for a dead-letter queue that rests, with messages or without.
const DEAD_LETTERS: &str =
    "ApproximateNumberOfMessagesVisible, QueueName, Maximum > 0, 1 of 1, ignore";

/// The alarms of the template and of a new project. A permanent failure that was not sent is in the log alone, for half a
/// day and longer, and returns within 15 minutes, so an alarm of one minute would notify at each receive. SQS leaves
/// messages that were received three times out of its own age, so that age does not grow in an outage.
const OF_PROJECTS: [&str; 9] = [
    DEAD_LETTERS,
    "ApproximateAgeOfOldestMessage, QueueName, Maximum > 300, 1 of 1, notBreaching",
    "CompletionsUnrecorded, service, Sum > 0, 1 of 1, notBreaching",
    "DeadLettersNotSent, service, Sum > 0, 1 of 20, notBreaching",
    "DuplicatesOfOtherQueue, service, Sum > 0, 1 of 1, notBreaching",
    "Errors, FunctionName, Sum > 0, 1 of 1, notBreaching",
    "LeasesLost, service, Sum > 0, 1 of 1, notBreaching",
    "OldestMessageAge, service, Maximum > 300, 1 of 20, notBreaching",
    "StoreUnavailable, service, Sum > 0, 3 of 5, notBreaching",
];
const OF_TEMPLATE: [&str; 2] = [
    "Duration, FunctionName, Maximum > 80% of the timeout, 3 of 5, notBreaching",
    "Throttles, FunctionName, Sum > 0, 3 of 5, notBreaching",
];
/// What an alarm of the template reports too, if it lasts.
const EARLY: [&str; 5] = [
    "ApproximateNumberOfMessagesNotVisible, QueueName, Maximum > 100000, 1 of 1, notBreaching",
    "CircuitOpen, service, Sum > 0, 1 of 5, notBreaching",
    "Crashed, service, Sum > 0, 1 of 1, notBreaching",
    "RetryableFailures, service, Sum > 0, 3 of 5, notBreaching",
    "WriteThrottleEvents, TableName, Sum > 0, 3 of 5, notBreaching",
];
/// No other alarm sees a relay that is too slow, or that does not run.
const OF_RELAY: [&str; 3] = [
    DEAD_LETTERS,
    "Invocations, FunctionName, Sum < 1, 1 of 1, breaching",
    "IteratorAge, FunctionName, Maximum > 300000, 5 of 5, notBreaching",
];
const OF_POSTGRES_RELAY: [&str; 5] = [
    DEAD_LETTERS,
    "Errors, FunctionName, Sum > 0, 5 of 5, notBreaching",
    "EventsFailed, service, Sum > 0, 2 of 3, notBreaching",
    "Invocations, FunctionName, Sum < 1, 1 of 1, breaching",
    "OldestWaitingEventAge, service, Maximum > 300, 3 of 5, notBreaching",
];

/// None is on permanent failures: a declined card is the normal business of a consumer.
#[test]
fn alarms_of_every_template_are_these() {
    let overlay = (DASHBOARD.to_owned(), read(DASHBOARD));
    for (path, template) in shipped().into_iter().chain([overlay]) {
        let expected = match &*path {
            CONSUMER => [&OF_PROJECTS[..], &OF_TEMPLATE].concat(),
            STARTER => OF_PROJECTS.into(),
            DASHBOARD => EARLY.into(),
            OUTBOX => OF_RELAY.into(),
            OUTBOX_POSTGRES => OF_POSTGRES_RELAY.into(),
            _ => Vec::new(),
        };
        let expected = expected.into_iter().map(str::to_owned).collect();
        assert_eq!(alarms_of(&template), expected, "{path}");
    }
}

/// tests/cloud/safety.rs says which alarms notify their end too.
#[test]
fn alarms_notify_the_topic() {
    let template = with_dashboard();
    let topic = json!([{"!Ref": "AlarmTopic"}]);
    for (name, alarm) in of_type(&template, "AWS::CloudWatch::Alarm") {
        assert_eq!(alarm["AlarmActions"], topic, "{name}");
        let ends = &alarm["OKActions"];
        assert!(ends.is_null() || *ends == topic, "{name}");
        assert!(alarm["AlarmDescription"].is_string(), "{name}");
    }
    let topic = json!([{"!Ref": "AlarmTopicArn"}]);
    for path in RELAYS {
        for (name, alarm) in of_type(&read(path), "AWS::CloudWatch::Alarm") {
            for actions in ["AlarmActions", "OKActions"] {
                let notified = met(&alarm[actions], &["HasAlarmTopic"]);
                assert_eq!(notified, Some(&topic), "{name}");
            }
        }
    }
}

#[test]
fn alarm_email_subscribes_to_the_topic() {
    let template = read(CONSUMER);
    let [(_, topic)] = of_type(&template, "AWS::SNS::Topic")[..] else {
        panic!("more than one topic");
    };
    let subscription = json!([{"Protocol": "email", "Endpoint": {"!Ref": "AlarmEmail"}}]);
    let subscribed = met(&topic["Subscription"], &["HasAlarmEmail"]);
    assert_eq!(subscribed, Some(&subscription));
    assert_eq!(met(&topic["Subscription"], &[]), None);
    // CloudWatch may not use the key of SNS, and alarms would be silent.
    assert!(topic["KmsMasterKeyId"].is_null());
    for (email, admitted) in [
        ("", true),
        ("on-call@example.com", true),
        ("on-call", false),
    ] {
        let template = Template::with(&[("AlarmEmail", email)]);
        assert_eq!(template.admits(), admitted, "{email:?}");
    }
}

#[test]
fn output_says_that_alarms_notify_nobody() {
    for template in RELAYS.into_iter().chain([CONSUMER]) {
        let template = read(template);
        let output = &template["Outputs"]["AlarmNotifications"]["Value"];
        assert!(
            met(output, &[])
                .unwrap()
                .as_str()
                .unwrap()
                .starts_with("NONE")
        );
    }
}

/// The body of the dashboard, with a number in place of each variable that stands for a number,
/// and the other variables left as text.
fn dashboard() -> Value {
    let template = read(DASHBOARD);
    let dashboards = of_type(&template, "AWS::CloudWatch::Dashboard");
    let [(_, dashboard)] = dashboards.as_slice() else {
        panic!("more than one dashboard");
    };
    let body = dashboard["DashboardBody"]["!Sub"][0].as_str().unwrap();
    let number = Regex::new(r#""value": \$\{\w+\}"#).unwrap();
    serde_json::from_str(&number.replace_all(body, r#""value": 1"#)).unwrap()
}

fn widgets(dashboard: &Value) -> &Vec<Value> {
    dashboard["widgets"].as_array().unwrap()
}

#[test]
fn metrics_of_dashboard_exist() {
    let dashboard = dashboard();
    let metrics = widgets(&dashboard)
        .iter()
        .filter_map(|widget| widget["properties"]["metrics"].as_array());
    let mut shown = 0;
    for metrics in metrics {
        // A point stands for the part of the metric before.
        let mut parts = [const { String::new() }; 3];
        for metric in metrics {
            for (part, at) in parts.iter_mut().zip(0..) {
                if metric[at] != "." {
                    *part = text(&metric[at]);
                }
            }
            let [namespace, metric, dimension] = &parts;
            assert_exists(namespace, metric, dimension);
            shown += 1;
        }
    }
    assert!(shown > 15, "{shown} metrics");
}

#[test]
fn dashboard_shows_every_alarm() {
    let template = with_dashboard();
    let alarms = of_type(&template, "AWS::CloudWatch::Alarm").into_iter();
    let alarms: BTreeSet<_> = alarms.map(|(name, _)| format!("${{{name}.Arn}}")).collect();
    let dashboard = dashboard();
    let shown = widgets(&dashboard)
        .iter()
        .filter_map(|widget| widget["properties"]["alarms"].as_array())
        .flatten();
    assert_eq!(shown.map(text).collect::<BTreeSet<_>>(), alarms);
}

/// The rows of the table under a heading of docs/template.md.
pub(super) fn rows(heading: &str) -> Vec<Vec<String>> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/template.md");
    let page = fs::read_to_string(path).unwrap();
    let begins = |line: &&str| line.trim_start_matches('#').trim_matches([' ', '`']) == heading;
    let mut lines = page.lines().skip_while(|line| !begins(line));
    assert!(lines.next().is_some(), "docs/template.md: {heading}");
    let section = lines.take_while(|line| !line.starts_with('#'));
    let of_name = |line: &&str| line.starts_with("| `") || line.starts_with("| [`");
    let cells = |row: &str| {
        row.trim_matches('|')
            .split(" | ")
            .map(|cell| cell.trim().to_owned())
            .collect()
    };
    section.filter(of_name).map(cells).collect()
}

#[test]
fn docs_list_every_alarm() {
    for (path, heading) in [(CONSUMER, "Alarms"), (DASHBOARD, "dashboard")] {
        let template = read(path);
        let alarms = of_type(&template, "AWS::CloudWatch::Alarm").into_iter();
        let section = |name: &str| format!("[`{name}`](runbook.md#{})", name.to_lowercase());
        let alarms: BTreeSet<_> = alarms.map(|(name, _)| section(name)).collect();
        let documented = rows(heading).into_iter().map(|row| row[0].clone());
        assert_eq!(documented.collect::<BTreeSet<_>>(), alarms, "{heading}");
    }
}

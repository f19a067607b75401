//! The template's alarms, and the overlay with the others and the dashboard.

use std::{collections::BTreeSet, fs, path::Path};

use regex_lite::Regex;
use serde_json::{Value, json};

use support::template::{
    CONSUMER, DASHBOARD, OWN_TABLE, STARTER, Template, met, of_type, read, with_dashboard,
};

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

/// The metrics of the consumer, as docs/telemetry.md lists them. The library's unit tests say that it writes these and no others.
fn of_consumer() -> BTreeSet<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/telemetry.md");
    let page = fs::read_to_string(path).unwrap();
    let name = Regex::new(r"\| `([A-Z]\w+)` \|").unwrap();
    name.captures_iter(&page)
        .map(|row| row[1].to_owned())
        .collect()
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

/// The metrics that alarms watch.
fn watched_by(path: &str) -> BTreeSet<String> {
    let template = read(path);
    let alarms = of_type(&template, "AWS::CloudWatch::Alarm").into_iter();
    alarms
        .map(|(_, alarm)| text(&alarm["MetricName"]))
        .collect()
}

#[test]
fn every_required_alarm_exists() {
    let required = [
        "ApproximateAgeOfOldestMessage",
        "ApproximateNumberOfMessagesVisible",
        "CompletionsUnrecorded",
        "DeadLettersNotSent",
        "DuplicatesOfOtherQueue",
        "Duration",
        "Errors",
        "LeasesLost",
        "OldestMessageAge",
        "StoreUnavailable",
        "Throttles",
    ];
    assert_eq!(watched_by(CONSUMER), required.map(str::to_owned).into());
    // What an alarm of the template reports too, if it lasts.
    let early = [
        "ApproximateNumberOfMessagesNotVisible",
        "CircuitOpen",
        "Crashed",
        "RetryableFailures",
        "WriteThrottleEvents",
    ];
    assert_eq!(watched_by(DASHBOARD), early.map(str::to_owned).into());
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
        // SQS reports nothing for a dead-letter queue that rests, with messages or without.
        let of_dead_letters = name == "DeadLettersArriving";
        let missing = if of_dead_letters {
            "ignore"
        } else {
            "notBreaching"
        };
        assert_eq!(alarm["TreatMissingData"], missing, "{name}");
        assert!(alarm["AlarmDescription"].is_string(), "{name}");
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
    let relays =
        ["outbox", "outbox_postgres"].map(|relay| format!("examples/{relay}.template.yaml"));
    for template in relays.iter().map(String::as_str).chain([CONSUMER]) {
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

/// SQS leaves messages that were received three times out of its own age, so that age does not grow in
/// an outage.
#[test]
fn outage_begins_alarms_on_consumer_metrics() {
    let template = with_dashboard();
    let alarms = of_type(&template, "AWS::CloudWatch::Alarm");
    let of = |metric: &str| {
        let found = alarms
            .iter()
            .find(|(_, alarm)| alarm["MetricName"] == metric);
        let (_, alarm) = found.unwrap_or_else(|| panic!("{metric}"));
        assert_eq!(alarm["Namespace"], "sqs-once", "{metric}");
        let datapoints =
            ["DatapointsToAlarm", "EvaluationPeriods"].map(|name| alarm[name].as_u64());
        (alarm["Threshold"].clone(), datapoints)
    };
    assert_eq!(of("OldestMessageAge"), (json!(300), [Some(1), Some(20)]));
    assert_eq!(of("RetryableFailures"), (json!(0), [Some(3), Some(5)]));
    assert_eq!(of("CircuitOpen"), (json!(0), [Some(1), Some(5)]));
    assert_eq!(of("Crashed"), (json!(0), [None, Some(1)]));
}

/// An expression would reach CloudWatch with the first deployment: no emulator evaluates one.
#[test]
fn alarms_of_every_template_watch_one_metric() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let examples = fs::read_dir(root.join("examples")).unwrap();
    let examples = examples.map(|entry| entry.unwrap().path());
    let templates = examples.filter(|path| path.to_string_lossy().ends_with(".template.yaml"));
    let others = [CONSUMER, DASHBOARD, STARTER].map(|path| root.join(path));
    for path in templates.chain(others) {
        let text = fs::read_to_string(&path).unwrap();
        assert!(!text.contains(" Expression:"), "{}", path.display());
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

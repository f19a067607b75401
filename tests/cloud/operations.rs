//! The template's alarms and dashboard.

use std::{collections::BTreeSet, fs, path::Path};

use regex_lite::Regex;
use serde_json::{Value, json};

use support::template::{CONSUMER, OWN_TABLE, STARTER, Template, met, of_type, read};

/// Metrics of AWS services, as their guides document them, with the dimension of each.
const OF_SERVICES: [(&str, &str, &[&str]); 5] = [
    (
        "AWS/SQS",
        "QueueName",
        &[
            "ApproximateAgeOfOldestMessage",
            "ApproximateNumberOfMessagesNotVisible",
            "ApproximateNumberOfMessagesVisible",
            "NumberOfEmptyReceives",
            "NumberOfMessagesDeleted",
            "NumberOfMessagesReceived",
            "NumberOfMessagesSent",
        ],
    ),
    (
        "AWS/Lambda",
        "FunctionName",
        &[
            "ConcurrentExecutions",
            "Duration",
            "Errors",
            "Invocations",
            "Throttles",
        ],
    ),
    (
        "AWS/Lambda",
        "EventSourceMappingUUID",
        &[
            "DeletedEventCount",
            "FailedInvokeEventCount",
            "InvokedEventCount",
            "PolledEventCount",
        ],
    ),
    (
        "AWS/DynamoDB",
        "TableName",
        &[
            "ConditionalCheckFailedRequests",
            "ConsumedReadCapacityUnits",
            "ConsumedWriteCapacityUnits",
            "WriteThrottleEvents",
        ],
    ),
    ("AWS/Logs", "LogGroupName", &["IncomingBytes"]),
];

/// Metrics of the consumer.
const OF_CONSUMER: [&str; 26] = [
    "BatchSize",
    "BatchedWritesOff",
    "CircuitOpen",
    "ColdStart",
    "Completed",
    "CompletionsUnrecorded",
    "Conflicts",
    "Crashed",
    "DeadLettered",
    "DeadLettersNotSent",
    "Duplicates",
    "DuplicatesOfOtherQueue",
    "HandlerDuration",
    "Ignored",
    "Invalid",
    "KeysReused",
    "LeasesLost",
    "NotStarted",
    "OldestMessageAge",
    "PermanentFailures",
    "Reconciled",
    "ResultsNotStored",
    "RetryableFailures",
    "StoreLatency",
    "StoreUnavailable",
    "Takeovers",
];

fn assert_exists(namespace: &str, metric: &str, dimension: &str) {
    let exists = if namespace == "sqs-once" {
        dimension == "service" && OF_CONSUMER.contains(&metric)
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
    let template = read(CONSUMER);
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

#[test]
fn metrics_of_consumer_are_those_of_docs() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/telemetry.md");
    let page = fs::read_to_string(path).unwrap();
    let name = Regex::new(r"\| `([A-Z]\w+)` \|").unwrap();
    let documented = name.captures_iter(&page).map(|row| row[1].to_owned());
    let known = OF_CONSUMER.map(str::to_owned);
    assert_eq!(documented.collect::<BTreeSet<_>>(), known.into());
}

#[test]
fn every_required_alarm_exists() {
    let template = read(CONSUMER);
    let alarms = of_type(&template, "AWS::CloudWatch::Alarm");
    let watched: BTreeSet<_> = alarms
        .iter()
        .map(|(_, alarm)| text(&alarm["MetricName"]))
        .collect();
    let required = [
        "ApproximateAgeOfOldestMessage",
        "ApproximateNumberOfMessagesNotVisible",
        "ApproximateNumberOfMessagesVisible",
        "CircuitOpen",
        "CompletionsUnrecorded",
        "Crashed",
        "DeadLettersNotSent",
        "DuplicatesOfOtherQueue",
        "Duration",
        "Errors",
        "LeasesLost",
        "OldestMessageAge",
        "RetryableFailures",
        "StoreUnavailable",
        "Throttles",
        "WriteThrottleEvents",
    ];
    assert_eq!(watched, required.map(str::to_owned).into());
}

/// tests/cloud/safety.rs says which alarms notify their end too.
#[test]
fn alarms_notify_one_topic_or_none() {
    let template = read(CONSUMER);
    let own = json!([{"!Ref": "AlarmTopic"}]);
    let given = json!([{"!Ref": "AlarmTopicArn"}]);
    for (name, alarm) in of_type(&template, "AWS::CloudWatch::Alarm") {
        let begins = &alarm["AlarmActions"];
        assert_eq!(met(begins, &["MakesAlarmTopic"]), Some(&own), "{name}");
        assert_eq!(met(begins, &["HasAlarmTopic"]), Some(&given), "{name}");
        assert_eq!(met(begins, &[]), None, "{name}");
        let ends = &alarm["OKActions"];
        assert!(ends.is_null() || ends == begins, "{name}");
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
fn alarm_email_gets_a_topic() {
    let template = read(CONSUMER);
    let [(_, topic)] = of_type(&template, "AWS::SNS::Topic")[..] else {
        panic!("more than one topic");
    };
    let subscription = json!([{"Protocol": "email", "Endpoint": {"!Ref": "AlarmEmail"}}]);
    assert_eq!(topic["Subscription"], subscription);
    // CloudWatch may not use the key of SNS, and alarms would be silent.
    assert!(topic["KmsMasterKeyId"].is_null());
    let topic = "arn:aws:sns:eu-central-1:123456789012:on-call";
    for (email, arn, admitted) in [
        ("", "", true),
        ("on-call@example.com", "", true),
        ("", topic, true),
        ("on-call@example.com", topic, false),
        ("on-call", "", false),
    ] {
        let template = Template::with(&[("AlarmEmail", email), ("AlarmTopicArn", arn)]);
        assert_eq!(template.admits(), admitted, "{email:?} {arn:?}");
    }
}

#[test]
fn output_says_that_alarms_notify_nobody() {
    for relay in ["outbox", "outbox_postgres"] {
        let template = read(&format!("examples/{relay}.template.yaml"));
        let output = &template["Outputs"]["AlarmNotifications"]["Value"];
        assert!(
            met(output, &[])
                .unwrap()
                .as_str()
                .unwrap()
                .starts_with("NONE")
        );
    }
    let template = read(CONSUMER);
    let output = &template["Outputs"]["AlarmNotifications"]["Value"];
    let told = |conditions: &[&str]| met(output, conditions).unwrap();
    assert_eq!(*told(&["MakesAlarmTopic"]), json!({"!Ref": "AlarmTopic"}));
    assert_eq!(*told(&["HasAlarmTopic"]), json!({"!Ref": "AlarmTopicArn"}));
    assert!(told(&[]).as_str().unwrap().starts_with("NONE"));
}

/// SQS leaves messages that were received three times out of its own age, so that age does not grow in
/// an outage.
#[test]
fn outage_begins_alarms_on_consumer_metrics() {
    let template = read(CONSUMER);
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
    let parameter = |name: &str| json!({"!Ref": name});
    let age = of("OldestMessageAge");
    assert_eq!(
        age,
        (parameter("OldestMessageAgeAlarm"), [Some(1), Some(20)])
    );
    let failures = of("RetryableFailures");
    assert_eq!(
        failures,
        (parameter("RetryableFailuresAlarm"), [Some(3), Some(5)])
    );
    assert_eq!(of("CircuitOpen"), (json!(0), [Some(1), Some(5)]));
    assert_eq!(of("Crashed"), (json!(0), [None, Some(1)]));
    assert_eq!(
        template["Parameters"]["RetryableFailuresAlarm"]["Default"],
        0
    );
}

/// An expression would reach CloudWatch with the first deployment: no emulator evaluates one.
#[test]
fn alarms_of_every_template_watch_one_metric() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let examples = fs::read_dir(root.join("examples")).unwrap();
    let examples = examples.map(|entry| entry.unwrap().path());
    let templates = examples.filter(|path| path.to_string_lossy().ends_with(".template.yaml"));
    let others = [CONSUMER, STARTER].map(|path| root.join(path));
    for path in templates.chain(others) {
        let text = fs::read_to_string(&path).unwrap();
        assert!(!text.contains(" Expression:"), "{}", path.display());
    }
}

/// The body of the dashboard, with a number in place of each variable that stands for a number,
/// and the other variables left as text.
fn dashboard() -> Value {
    let template = read(CONSUMER);
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
    let mut shown = 0;
    for metric in widgets(&dashboard)
        .iter()
        .filter_map(|widget| widget["properties"]["metrics"].as_array())
        .flatten()
        .filter(|metric| metric[0].is_string())
    {
        assert_exists(&text(&metric[0]), &text(&metric[1]), &text(&metric[2]));
        shown += 1;
    }
    assert!(shown > 30, "{shown} metrics");
}

#[test]
fn dashboard_shows_every_alarm() {
    let template = read(CONSUMER);
    let alarms = of_type(&template, "AWS::CloudWatch::Alarm").into_iter();
    let alarms: BTreeSet<_> = alarms.map(|(name, _)| format!("${{{name}.Arn}}")).collect();
    let dashboard = dashboard();
    let shown = widgets(&dashboard)
        .iter()
        .filter_map(|widget| widget["properties"]["alarms"].as_array())
        .flatten();
    assert_eq!(shown.map(text).collect::<BTreeSet<_>>(), alarms);
}

/// The rows of a table in docs/template.md, by their first cell.
pub(super) fn rows(heading: &str) -> Vec<Vec<String>> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/template.md");
    let page = fs::read_to_string(path).unwrap();
    let (_, section) = page.split_once(&format!("\n## {heading}\n")).unwrap();
    let section = section.split("\n## ").next().unwrap();
    let of_name = |line: &&str| line.starts_with("| `") || line.starts_with("| [`");
    let rows = section.lines().filter(of_name);
    let cells = |row: &str| {
        row.trim_matches('|')
            .split(" | ")
            .map(|cell| cell.trim().to_owned())
            .collect()
    };
    rows.map(cells).collect()
}

#[test]
fn docs_list_every_alarm() {
    let template = read(CONSUMER);
    let alarms = of_type(&template, "AWS::CloudWatch::Alarm").into_iter();
    let section = |name: &str| format!("[`{name}`](runbook.md#{})", name.to_lowercase());
    let alarms: BTreeSet<_> = alarms.map(|(name, _)| section(name)).collect();
    let documented = rows("Alarms").into_iter().map(|row| row[0].clone());
    assert_eq!(documented.collect::<BTreeSet<_>>(), alarms);
}

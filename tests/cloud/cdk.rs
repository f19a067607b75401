//! The consumer of the CDK: settings, permissions and alarms are those of the template.

use std::{collections::BTreeSet, fs, path::Path};

use regex_lite::Regex;
use serde_json::Value;

use support::template::{CONSUMER, consumer_may, of_type, read};

/// The names of resources, in the template's terms.
const RESOURCES: [(&str, &str); 4] = [
    ("table", "IdempotencyTable.Arn"),
    ("queue", "OrdersQueue.Arn"),
    ("deadLetters", "OrdersDeadLetterQueue.Arn"),
    ("logGroup", "ConsumerLogGroup.Arn"),
];

/// Patterns of the values that the stack repeats, in the order of [`values`].
const VALUES: [&str; 12] = [
    r"const timeout = Duration\.seconds\((\d+)\)",
    r"visibilityTimeout: Duration\.seconds\((\d+)\)",
    r"retentionPeriod: Duration\.days\((\d+)\),\n.*\n.*\n +deadLetterQueue: ",
    r"retentionPeriod: Duration\.days\((\d+)\),\n.*\n.*\n +removalPolicy: ",
    r"maxReceiveCount: (\d+)",
    r"memorySize: (\d+)",
    r"batchSize: (\d+)",
    r"maxBatchingWindow: Duration\.seconds\((\d+)\)",
    r"maxConcurrency: (\d+)",
    r#"partitionKey: \{ name: "(\w+)", type: dynamodb\.AttributeType\.STRING \}"#,
    r#"timeToLiveAttribute: "(\w+)""#,
    r"metricApproximateAgeOfOldestMessage\(.*\n +threshold: (\d+)",
];

fn stack() -> String {
    let file = "examples/typescript/consumer-stack.ts";
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(file)).unwrap()
}

fn regex(pattern: &str) -> Regex {
    Regex::new(pattern).unwrap()
}

/// Pairs of an action and the resource that it is allowed on.
fn stack_may() -> BTreeSet<(String, String)> {
    let mut may = BTreeSet::new();
    for found in regex(r"allow\(\[([^\]]*)\], (\w+)\.").captures_iter(&stack()) {
        let named = RESOURCES.iter().find(|(name, _)| *name == &found[2]);
        let (_, resource) = named.unwrap_or_else(|| panic!("{}", &found[0]));
        for action in regex(r"\w+:\w+").find_iter(&found[1]) {
            may.insert((action.as_str().to_owned(), (*resource).to_owned()));
        }
    }
    may
}

fn number(value: &Value) -> u64 {
    let text = value.as_str().and_then(|text| text.parse().ok());
    value.as_u64().or(text).unwrap()
}

/// The values of the template that the stack repeats.
fn values() -> Vec<String> {
    let template = read(CONSUMER);
    let resource = |name: &str| &template["Resources"][name]["Properties"];
    let default = |name: &str| number(&template["Parameters"][name]["Default"]);
    let days = |queue: &str| number(&resource(queue)["MessageRetentionPeriod"]) / 86400;
    let timeout = default("FunctionTimeout");
    let of_timeout = &template["Mappings"]["OfTimeout"][&timeout.to_string()];
    let numbers = [
        timeout,
        number(&of_timeout["VisibilityTimeout"]),
        days("OrdersQueue"),
        days("OrdersDeadLetterQueue"),
        number(&of_timeout["MaxReceiveCount"]),
        default("MemorySize"),
        default("BatchSize"),
        0, // without the overlay large-batches, no batching window
        default("MaximumConcurrency"),
    ];
    let table = resource("IdempotencyTable");
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let mut values: Vec<_> = numbers.iter().map(u64::to_string).collect();
    values.push(text(&table["KeySchema"][0]["AttributeName"]));
    values.push(text(&table["TimeToLiveSpecification"]["AttributeName"]));
    values.push(number(&resource("OldestMessageTooOld")["Threshold"]).to_string());
    values
}

#[test]
fn cdk_stack_allows_what_the_template_allows() {
    assert_eq!(stack_may(), consumer_may(&[]));
    // No statement is written in another form.
    let text = stack();
    let mut known: BTreeSet<_> = stack_may().into_iter().map(|(action, _)| action).collect();
    known.insert("sqs:PurgeQueue".into()); // denied
    let action = regex(r#""((?:dynamodb|sqs|logs|kms|s3|iam):[\w*]+)""#);
    for found in action.captures_iter(&text) {
        assert!(known.contains(&found[1]), "{}", &found[1]);
    }
    assert!(!text.contains(".grant"));
}

#[test]
fn cdk_stack_keeps_its_queues_and_their_messages() {
    let text = stack();
    let queue = regex(r"(?s)new sqs\.Queue\(this, .*?\n    \}\);");
    let queues: Vec<_> = queue.find_iter(&text).collect();
    assert_eq!(queues.len(), 2);
    for queue in queues {
        let policy = "removalPolicy: RemovalPolicy.RETAIN_ON_UPDATE_OR_DELETE";
        assert!(queue.as_str().contains(policy), "{}", queue.as_str());
        assert!(queue.as_str().contains("enforceSSL: true"));
    }
    // Its source has the queue's name, which does not exist yet.
    assert!(text.contains("redrivePermission: sqs.RedrivePermission.BY_QUEUE"));
    assert!(text.contains("resource: queueName"));
    let denies = regex(r#"(?s)of \[queue, deadLetters\].*Effect\.DENY.*"sqs:PurgeQueue""#);
    assert!(denies.is_match(&text));
}

#[test]
fn cdk_stack_repeats_values_of_the_template() {
    let text = stack();
    let repeated = VALUES.map(|pattern| {
        let found = regex(pattern).captures(&text);
        found.unwrap_or_else(|| panic!("no {pattern}"))[1].to_owned()
    });
    assert_eq!(repeated, *values());
    assert!(text.contains("reportBatchItemFailures: true"));
}

#[test]
fn variables_of_cdk_stack_are_in_the_template() {
    let template = read(CONSUMER);
    let functions = of_type(&template, "AWS::Serverless::Function");
    let variables = &functions[0].1["Environment"]["Variables"];
    let text = stack();
    let name = regex(r"\b(?:IDEMPOTENCY|CONSUMER|PAYMENT)_[A-Z_]+");
    let names: BTreeSet<_> = name.find_iter(&text).map(|found| found.as_str()).collect();
    assert!(names.contains("IDEMPOTENCY_TABLE_NAME"));
    for name in names {
        assert!(!variables[name].is_null(), "{name}");
    }
}

#[test]
fn cdk_stack_has_outputs_that_the_runbook_reads() {
    let text = stack();
    let (_, outputs) = text.split_once("const outputs = {").unwrap();
    let (outputs, _) = outputs.split_once("};").unwrap();
    let name = regex(r"(?m)^ +(\w+): ");
    let names: BTreeSet<_> = name
        .captures_iter(outputs)
        .map(|found| found[1].to_owned())
        .collect();
    let runbook = include_str!("../../docs/runbook.md");
    let output = regex(r"\$\(output (\w+)\)");
    let needed: BTreeSet<_> = output
        .captures_iter(runbook)
        .map(|found| found[1].to_owned())
        .collect();
    assert!(needed.len() >= 7, "{needed:?}");
    assert!(needed.is_subset(&names), "{needed:?} of {names:?}");
    let template = read(CONSUMER);
    for name in &names {
        assert!(!template["Outputs"][name].is_null(), "{name}");
    }
}

/// The alarms on the consumer's own metrics: metric, statistic, threshold, datapoints, periods.
type Alarms = BTreeSet<(String, String, u64, u64, u64)>;

fn alarms_of_template() -> Alarms {
    let template = read(CONSUMER);
    let own = |(_, alarm): &(&str, &Value)| alarm["Namespace"] == "sqs-once";
    let alarm = |(_, alarm): (&str, &Value)| {
        let text = |name: &str| alarm[name].as_str().unwrap().to_owned();
        let datapoints = alarm["DatapointsToAlarm"].as_u64().unwrap_or(1);
        let periods = number(&alarm["EvaluationPeriods"]);
        let threshold = number(&alarm["Threshold"]);
        (
            text("MetricName"),
            text("Statistic"),
            threshold,
            datapoints,
            periods,
        )
    };
    let alarms = of_type(&template, "AWS::CloudWatch::Alarm").into_iter();
    alarms.filter(own).map(alarm).collect()
}

#[test]
fn cdk_stack_repeats_alarms_on_consumer_metrics() {
    let text = stack();
    let pattern = regex(
        r#"(?m)^      (\w+): \{(?: threshold: (\d+), statistic: "(\w+)",)?(?: minutes: \[(\d+), (\d+)\] )?\},$"#,
    );
    let alarms: Alarms = pattern
        .captures_iter(&text)
        .map(|found| {
            let part = |at: usize, default: &str| {
                found
                    .get(at)
                    .map_or(default, |part| part.as_str())
                    .to_owned()
            };
            let number = |at: usize, default: &str| part(at, default).parse().unwrap();
            (
                part(1, ""),
                part(3, "Sum"),
                number(2, "0"),
                number(4, "1"),
                number(5, "1"),
            )
        })
        .collect();
    assert_eq!(alarms, alarms_of_template());
    assert_eq!(alarms.len(), 6);
    // As in the template, the end of an alarm of one event notifies nobody.
    assert!(text.contains("if (!ofEvent) made.addOkAction("));
}
